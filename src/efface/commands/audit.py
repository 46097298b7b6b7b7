"""``efface audit``: is it really forgotten? A model after a request, read out and attacked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.forget import WorkspacePath
from efface.commands.output import (
    AbsolutePaths,
    DeviceName,
    JsonFlag,
    TrustModule,
    finish,
    plain,
    table,
    warn,
)

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface audit model digits --owner u07[/bold]

Example: [bold]efface audit model photos/ --id train/anna/17.jpg --worlds 0 --json[/bold]"""

OUT = "Folder for report.html, audit.json and the cache of finished parts."


def audit(
    workspace: WorkspacePath,
    data: Annotated[str, typer.Argument(help="Where the forgotten records still are, and tests.")],
    owner: Annotated[list[str] | None, typer.Option(help="A person; repeatable.")] = None,
    id_: Annotated[list[str] | None, typer.Option("--id", help="A record; repeatable.")] = None,
    worlds: Annotated[
        int, typer.Option(min=0, help="Models for the per-sample attacks; 0: none.")
    ] = 24,
    canaries: Annotated[int, typer.Option(min=0, help="Of the one-run audit; 0: none.")] = 200,
    seed: Annotated[int, typer.Option(help="Of all random choices.")] = 0,
    out: Annotated[Path, typer.Option(help=OUT)] = Path("efface-audit"),
    absolute_paths: AbsolutePaths = False,
    device: DeviceName = "cpu",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Compare a model with one retrained without some records, and attack it and its method.

    The workspace is only read. Exit code 3 if the records are still in the model, or if something that was
    measured contradicts the certificate.
    """
    from efface.audit.study import Settings
    from efface.network.backbone import trusted_module
    from efface.pipeline.audit import read, run
    from efface.workspace import Workspace

    opened = Workspace.open(workspace, module=trusted_module(trust_module), recover=False)
    with show("audit", mode_for(as_json=json)) as progress:
        asked, test = read(opened, data, owner, id_, absolute_paths=absolute_paths, note=warn)
        settings = Settings(seeds=1, worlds=worlds, canaries=canaries, seed=seed)
        words: dict[str, Any] = {"owners": owner or (), "device": device}
        values = run(opened, asked, test, settings, out, progress, **words)
    finish(values, as_json=json, render=lambda console: _render(console, values))
    if not values["ok"]:
        raise typer.Exit(3)


def _render(console: Console, values: dict[str, Any]) -> None:
    from efface.audit.methods import REFERENCE, UNTOUCHED, own_method

    served, methods = values["served"], values["methods"]
    for line in headline(values):
        console.print(line, style="bold", soft_wrap=True)
    rows = table("readout", "served", "retrained", "original", right=(1, 2, 3))
    for key, value in served["readouts"].items():
        shown = [methods[name]["readouts"][key]["mean"] for name in (REFERENCE, UNTOUCHED)]
        rows.add_row(key.replace("_", " "), *(f"{v:.4g}" for v in (value, *shown)))
    console.print(rows)
    rows = table("attack", "game", "AUC", "by chance", "ε ≥", right=(2, 3, 4))
    own = own_method(values["user"]).name
    for game in ("canary", "attacks"):
        for name, v in methods[own][game].items():
            chance = f"{v['chance'][0]:.2f}–{v['chance'][1]:.2f}"
            note = "" if v["covered"] else " (not covered)"
            rows.add_row(name + note, game, f"{v['auc']:.3f}", chance, f"{v['epsilon_bound']:.2f}")
    console.print(rows)
    console.print(difference_text(values["differencing"]), soft_wrap=True)
    for line in _verdicts(values):
        console.print(line, style="bold red", soft_wrap=True)
    if values["ok"]:
        console.print("nothing here contradicts the certificate", style="bold green")
    console.print(f"report: {plain(values['report'])}", style="bold", markup=False, soft_wrap=True)


def headline(values: dict[str, Any]) -> list[str]:
    """The strongest attacks: on the served weights themselves, and on the method in many worlds."""
    left, best = values["served"]["influence"], values["headline"]["attack"]
    lines = [
        f"of the forgotten records' influence {left['share']:.1e} is left in the served weights "
        f"(what can be told from rounding or noise: {left['resolution']:.0e})"
    ]
    if best is not None:
        chance = f"{best['chance'][0]:.3f} to {best['chance'][1]:.3f}"
        lines.append(
            f"strongest attack on the method: {best['attack']} ({best['game']}), AUC {best['auc']:.3f}, "
            f"by chance {chance}"
        )
    return lines


def difference_text(values: dict[str, Any]) -> str:
    """What somebody with the release before as well can tell, in a sentence."""
    return (
        f"with the release before as well, {values['found']} of the {values['deleted']} deleted images are "
        f"identified among {values['candidates']} candidates, nobody else known "
        f"(by chance {values['by_chance']:.2g}): no certificate covers that"
    )


def _verdicts(values: dict[str, Any]) -> list[str]:
    """What is wrong, a sentence each."""
    served, lines = values["served"], []
    if served["num_still_in"]:
        lines.append(f"{served['num_still_in']} of these records are still in the model's data")
    if served["num_in_core"]:
        lines.append(
            f"{served['num_in_core']} of these images are core data: they are in the core weights, and are "
            "never forgotten"
        )
    left = served["influence"]
    if left["found"]:
        lines.append(
            f"{left['share']:.1e} of these records' influence is left in the served weights"
        )
    held = served["held"]
    if held is not None and not held["kept"]:
        noise = held["noise_ratio"]
        lines.append(
            f"the weights are not those the certificate speaks of: off the retrained ones by "
            f"{held['relative_distance']:.1e} relative, {held['shift_lower_bound']:.3g} sigma at least"
            + ("" if noise is None else f", with {noise:.3f} of the noise")
        )
    for c in values["contradictions"]:
        lines.append(
            f"the {c['attack']} attack proves epsilon ≥ {c['refuted_epsilon_bound']:.2f} for "
            f"{c['method']}, claimed {c['claimed_epsilon']:.2f}"
        )
    return lines
