"""``efface train``: records in, a workspace out: the folder with the model and what forgetting needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import (
    EngineName,
    JsonFlag,
    ShardCount,
    TrustModule,
    finish,
    percent,
    plain,
    table,
    warn,
)
from efface.commands.settings import Given, takes_settings
from efface.errors import EffaceError
from efface.progress import duration

if TYPE_CHECKING:
    from rich.console import Console

    from efface.pipeline.config import Config
    from efface.pipeline.how import How

EXAMPLES = """\
Example: [bold]efface train digits --out model[/bold]

Example: [bold]efface train photos/ --backbone hf:models/resnet-50 --classes cat,dog --dry-run[/bold]

Example: [bold]efface train photos/ --backbone hf:models/resnet-50 --core-data public/ --finetune[/bold]

Example: [bold]efface train --config run.toml --mu 0.1[/bold]

Example: [bold]efface train cub200 --backbone hf:models/resnet-50 --core-fraction 0.3 --preset paper[/bold]"""

KEY = "Sign the receipts of later requests with this key (efface keys new)."


@takes_settings()
def train(
    given: Given,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file; options given here win over it.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="paper: the paper's model and training; paper-forgetting: with its larger weight decay. "
            "The config and options win over it."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is already in the folder.")
    ] = False,
    allow_reingest: Annotated[
        bool,
        typer.Option(
            "--allow-reingest", help="With --overwrite: take images that were forgotten there."
        ),
    ] = False,
    core_only: Annotated[
        bool,
        typer.Option(
            "--core-only", help="Leave user records out: `efface rows` and merge, or add."
        ),
    ] = False,
    engine: EngineName = None,
    shards: ShardCount = None,
    key: Annotated[Path | None, typer.Option(help=KEY)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take.")
    ] = False,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Only print the resolved config as TOML, or JSON."),
    ] = False,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Train a core on core data, then fit the user part on user data.

    The folder is a workspace: predict and evaluate read it, forget and add change it. The settings that
    were used are saved there as config.toml.
    """
    from efface.pipeline.config import load_config
    from efface.pipeline.how import How

    settings = load_config(config, given, preset)
    if "core.backbone" not in given:
        _check_trust(settings.core.backbone, trust_module)
    if print_config:
        _print(settings, as_json=json)
    elif dry_run:
        _forecast(settings, as_json=json)
    else:
        how = How(overwrite, allow_reingest, core_only, engine, shards, trust_module)
        _train(settings, how, key, as_json=json)


def _print(settings: Config, *, as_json: bool) -> None:
    from efface.pipeline.config import to_toml

    if as_json:
        finish(settings.model_dump(mode="json"), as_json=True, render=lambda _: None)
    else:
        print(to_toml(settings), end="")


def _forecast(settings: Config, *, as_json: bool) -> None:
    from efface.pipeline.forecast import forecast

    values = forecast(settings)
    finish(values, as_json=as_json, render=lambda console: _render_forecast(console, values))


def _train(settings: Config, how: How, key: Path | None, *, as_json: bool) -> None:
    from efface.pipeline.train import Watch
    from efface.pipeline.train import train as run

    watch = Watch(partial(show, mode=mode_for(as_json=as_json)), warn)
    if key is not None:
        _check_key(key)
    values = run(settings, watch, how)
    if key is not None:
        _use_key(Path(values["model"]), key)
    finish(values, as_json=as_json, render=lambda console: _render(console, values))


def _check_key(key: Path) -> None:
    """Before hours of training, not after them."""
    from efface.receipts.keys import mended

    mended(key)


def _use_key(model: Path, key: Path) -> None:
    from efface.workspace import Workspace

    Workspace.open(model, recover=False).protocol.signing.use(key)


def _check_trust(backbone: str, trusted: str | None) -> None:
    """Code that a config file names runs only if it is named on the command line as well."""
    kind, _, name = backbone.partition(":")
    if kind == "torch" and (trusted or "").removeprefix("torch:") != name:
        fix = "if you trust that code, name it: --trust-module NAME, or --backbone torch:NAME."
        raise EffaceError(f"the config's backbone is code, {name!r}.", fix)


def _render(console: Console, values: Mapping[str, Any]) -> None:
    rows = table("model", "test accuracy", right=(1,))
    if values["records"]["core"]:  # else it knows no class yet
        rows.add_row("core", percent(values["accuracy"]["core"]))
    rows.add_row("core + user", percent(values["accuracy"]["user"]))
    console.print(rows)
    if values["solution"]:
        solution = values["solution"]
        console.print(
            f"{values['weights']:,} user weights, solve {solution['status']}: "
            f"residual {solution['residual_norm']:.1e} after {solution['passes']:g} passes",
            soft_wrap=True,
        )
    part = values["part"]
    if "calibration" in part:
        console.print(
            f"bases and scales from {part['calibration']}: {part['saturated']:,} of "
            f"{part['values']:,} numbers at the end of their range",
            soft_wrap=True,
        )
    if "arithmetic" in part:
        console.print(arithmetic_text(part), markup=False, soft_wrap=True)
    console.print(took_text(values), style="dim")
    console.print(f"model: {plain(values['model'])}", style="bold", markup=False, soft_wrap=True)


def arithmetic_text(part: Mapping[str, Any]) -> str:
    """In which arithmetic rows are computed, and what follows."""
    if part["arithmetic"] == "integer":
        kind = "8-bit integers" if part["form"] == "integer" else "exact sums in float64"
        return f"arithmetic: {kind}; rows, sums and weights are the same on every machine"
    reasons = "; ".join(part["why_not_better"]) or "as asked for"
    return f"arithmetic: float32, exact on this machine only ({reasons})"


def took_text(values: Mapping[str, Any]) -> str:
    """How long it took: to be held against what ``--dry-run`` said."""
    return f"took {duration(values['seconds'])}"


def _render_forecast(console: Console, values: Mapping[str, Any]) -> None:
    counts = values["records"]
    rows = table("what", "how much", right=(1,))
    for split in ("core", "user", "test"):
        rows.add_row(f"{split} records", f"{counts[split]:,}")
    rows.add_row("classes", f"{values['classes']:,}")
    rows.add_row("user weights d", f"{values['weights']:,}")
    rows.add_row("boundary activations", f"{values['activations_gib']:.3g} GiB")
    rows.add_row("time", minutes_text(values["minutes_estimate"]))
    if values["passes_estimate"] is not None:
        rows.add_row("passes of the solver, assumed", f"{values['passes_estimate']:,}")
    if values["skipped"]:
        rows.add_row("files set aside", f"{values['skipped']:,}")
    console.print(rows)
    for note in values["notes"]:
        console.print(f"note: {plain(note)}", markup=False)
    console.print("dry run: nothing was trained or written", style="dim")


def minutes_text(minutes: float) -> str:
    """To one significant digit: it is no better than that."""
    if minutes < 1:
        return "under a minute"
    return f"about {round(minutes, -math.floor(math.log10(minutes))):.0f} minutes"
