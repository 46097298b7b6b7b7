"""``efface train``: records in, a workspace out: the folder with the model and what forgetting needs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import Mode, mode_for, show
from efface.commands.output import JsonFlag, TrustModule, finish, percent, plain, table, warn
from efface.errors import EffaceError

if TYPE_CHECKING:
    from rich.console import Console

    from efface.data.records import Records
    from efface.model.mixed_linear import MixedLinear
    from efface.network.activations import ActivationCache
    from efface.network.core import Core
    from efface.pipeline.config import Config

EXAMPLES = """\
Example: [bold]efface train digits --out model[/bold]

Example: [bold]efface train photos/ --backbone hf:models/resnet-50 --core-fraction 0.3 --dry-run[/bold]

Example: [bold]efface train --config run.toml --mu 0.1[/bold]"""

DATA = (
    "digits, cub200 (see `efface data list`), a folder, or a .npz, .parquet, .csv or .jsonl file."
)
BACKBONE = "cnn, hf:DIR_OR_ID, timm:NAME or torch:module.path:callable. Default: cnn."
LINEARIZE = (
    "Where the tail begins: head, last-block, last-stage, all or a step. Default: last-block."
)
MIRROR = "Read every image mirrored, too, and average the features. Default: off."
FRACTION = "Make this share of the owners, drawn by name, core whole. Default: as the data says."
CLASSES = (
    "The class list, in the order of the outputs: names separated by commas, or a file with one a line. "
    "Default: the data's own list, else the classes of core data."
)
REPLAY = "Use core records again in the user fit. Default: on."
USER = "compact (exact forgetting, the default) or tangent (the paper's)."
FEATURES = "How many features the compact part has, about. Default: 4096."
ARITHMETIC = (
    "integer (compact: rows and weights are the same bits on every machine), float (on this one), "
    "or auto: integer where the network has such a form. Default: auto."
)
CALIBRATION = (
    "Public images for bases and scales (compact). Default: core data, else none are needed."
)
MU = "The ridge. Default: chosen on core data (compact), 0.01 (tangent)."
SOLVER = "cg, sgd or cholesky; their options go into the config. Default: cg."


def train(
    data: Annotated[str | None, typer.Argument(help=DATA, show_default=False)] = None,
    backbone: Annotated[str | None, typer.Option(help=BACKBONE)] = None,
    linearize: Annotated[str | None, typer.Option(help=LINEARIZE)] = None,
    mirror: Annotated[bool | None, typer.Option("--mirror/--no-mirror", help=MIRROR)] = None,
    core_fraction: Annotated[float | None, typer.Option(help=FRACTION)] = None,
    classes: Annotated[str | None, typer.Option(help=CLASSES)] = None,
    replay_core: Annotated[
        bool | None, typer.Option("--replay-core/--no-replay-core", help=REPLAY)
    ] = None,
    user: Annotated[str | None, typer.Option(help=USER)] = None,
    features: Annotated[int | None, typer.Option(help=FEATURES)] = None,
    bits: Annotated[
        int | None, typer.Option(help="Of a compact feature, 2 to 16. Default: 8.")
    ] = None,
    arithmetic: Annotated[str | None, typer.Option(help=ARITHMETIC)] = None,
    calibration: Annotated[str | None, typer.Option(help=CALIBRATION)] = None,
    mu: Annotated[float | None, typer.Option(help=MU)] = None,
    solver: Annotated[str | None, typer.Option(help=SOLVER)] = None,
    seed: Annotated[int | None, typer.Option(help="Of the core split and training.")] = None,
    channels: Annotated[
        str | None, typer.Option(help="Convert images: gray or rgb. Default: they must agree.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Keep boundary activations in this folder.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The model's folder. Default: efface-model.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file; options given here win over it.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Set unreadable images aside instead of stopping.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is already in the folder.")
    ] = False,
    allow_reingest: Annotated[
        bool,
        typer.Option(
            "--allow-reingest", help="With --overwrite: take images that were forgotten there."
        ),
    ] = False,
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
    from efface.data.class_list import class_names, settled
    from efface.pipeline.config import load_config, to_toml

    settings = load_config(
        config,
        {
            "data.spec": data,
            "data.core_fraction": core_fraction,
            "data.classes": None if classes is None else class_names(classes),
            "data.seed": seed,
            "data.channels": channels,
            "data.skip_bad": skip_bad or None,
            "core.backbone": backbone,
            "core.linearize": linearize,
            "core.mirror": mirror,
            "core.seed": seed,
            "user.kind": user,
            "user.features": features,
            "user.bits": bits,
            "user.arithmetic": arithmetic,
            "user.calibration": calibration,
            "user.mu": mu,
            "user.replay_core": replay_core,
            "user.solver": solver,
            "output.dir": None if out is None else str(out),
            "output.cache": None if cache is None else str(cache),
        },
    )
    if backbone is None:
        _check_trust(settings.core.backbone, trust_module)
    if print_config:
        if json:
            finish(settings.model_dump(mode="json"), as_json=True, render=lambda _: None)
        else:
            print(to_toml(settings), end="")
        return
    if not dry_run:
        _check_folder(Path(settings.output.dir), overwrite)
    records = settled(settings.data.build())
    if not dry_run:
        _check_reingest(Path(settings.output.dir), records, allow_reingest)
    core = settings.core.build(records.classes)
    if dry_run:
        values = _plan(settings, core, records)
        finish(values, as_json=json, render=lambda console: _render_plan(console, values))
        return
    _check_room(settings, core, records)
    replaced = {"overwrite": overwrite, "allow_reingest": allow_reingest}
    values = _run(settings, core, records, mode_for(as_json=json), replaced)
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _check_trust(backbone: str, trusted: str | None) -> None:
    """Code that a config file names runs only if it is named on the command line as well."""
    kind, _, name = backbone.partition(":")
    if kind == "torch" and (trusted or "").removeprefix("torch:") != name:
        fix = "if you trust that code, name it: --trust-module NAME, or --backbone torch:NAME."
        raise EffaceError(f"the config's backbone is code, {name!r}.", fix)


def _check_folder(folder: Path, overwrite: bool) -> None:
    """All that can be known before training: whose folder it is, and whether it can be written."""
    from efface.workspace.founding import check_folder, check_writable

    check_folder(folder, overwrite=overwrite)
    check_writable(folder)


def _check_room(config: Config, core: Core, records: Records) -> None:
    """The core, and what forgetting needs of the records: rows and sums, or activations."""
    from efface.workspace.founding import check_room

    size = sum(t.numel() * t.element_size() for t in core.tensors.values())
    n = len(records.user) + (len(records.core) if config.user.replay_core else 0)
    if config.user.kind == "compact":
        k = config.user.features
        size += n * k * (1 if config.user.bits <= 8 else 2) + 8 * k * (k + len(records.classes))
    else:
        size += 4 * n * math.prod(core.boundary_shape)
    check_room(Path(config.output.dir), size)


def _check_reingest(folder: Path, records: Records, allowed: bool) -> None:
    """What was forgotten in this folder must not come back by training again."""
    from efface.workspace import Workspace

    Workspace(folder).check_forgotten(records.core, records.user, allow_reingest=allowed)


# Doing it.


def _run(
    config: Config, core: Core, records: Records, mode: Mode, replaced: Mapping[str, bool]
) -> dict[str, Any]:
    start = time.monotonic()
    _tell(records)
    with show("core", mode) as progress:
        cache = _fit_core(config, core, records, progress)
    for line in core.report:
        warn(line)
    with show("user part", mode) as progress:
        model = _fit_user(config, core, records, cache, progress)
    folder = Path(config.output.dir)
    _save(config, model, folder, replaced)
    return {
        "model": str(folder),
        "core_digest": core.digest,
        "records": _counts(records),
        "classes": len(records.classes),
        "weights": model.user.num_weights,
        "compact": _compact(model),
        "accuracy": _accuracy(model, records),
        "solution": _solution(model),
        "skipped": len(records.skipped),
        "seconds": round(time.monotonic() - start, 1),
    }


def _tell(records: Records) -> None:
    if records.skipped:
        first = records.skipped[0]
        warn(f"{len(records.skipped)} files set aside, the first {first.id!r}: {first.reason}")
    for note in records.notes[:5]:
        warn(note)
    if len(records.notes) > 5:
        warn(f"and {len(records.notes) - 5} more notes like these")
    if not len(records.user):
        warn("no user records: the model is the core model, with nothing to forget")


def _fit_core(
    config: Config, core: Core, records: Records, progress: Any
) -> ActivationCache | None:
    """Train the core; returns the cache that fits it: a stage that trains all changes its key."""
    options, where = config.core.fit_options(), config.output.cache
    first = (options["stages"] or core.default_stages())[0]
    cache = None if where is None or first.train == "all" else core.cache(where)
    if len(records.core):
        core.fit(records.core, **options, cache=cache, progress=progress)
    elif config.core.backbone == "cnn":
        fix = "set some aside with --core-fraction 0.3, or start from a pretrained --backbone."
        raise EffaceError("no core records, and the built-in network knows nothing yet.", fix)
    else:
        warn("no core records: the core is the pretrained network, and its new head says 0 for all")
    if where is not None:
        warn(f"activations in {where} are outside of the workspace: forgetting does not purge them")
    return None if where is None else core.cache(where)


def _fit_user(
    config: Config, core: Core, records: Records, cache: ActivationCache | None, progress: Any
) -> MixedLinear:
    from efface.linear.solution import Status

    model = config.user.build(core, cache)
    replay = records.core if config.user.replay_core and len(records.core) else None
    model.fit(records.user, replay=replay, calibration=_public(config), progress=progress)
    if model.solution is not None and model.solution.status is Status.DIVERGED:
        raise EffaceError("the solver diverged; nothing was saved.", model.solution.advice)
    if model.solution is not None and not model.solution.ok:
        warn(f"the solver {model.solution}")
    return model


def _public(config: Config) -> Records | None:
    """The calibration records, if the config names any and the user part is one that wants them."""
    if config.user.calibration is None or config.user.kind != "compact":
        return None
    options = {"spec": config.user.calibration, "core_fraction": None, "classes": None}
    return config.data.model_copy(update=options).build()


def _save(config: Config, model: MixedLinear, folder: Path, replaced: Mapping[str, bool]) -> None:
    from efface.pipeline.config import to_toml
    from efface.workspace import Workspace

    Workspace.create(
        folder,
        model,
        config=to_toml(config),
        overwrite=replaced["overwrite"],
        allow_reingest=replaced["allow_reingest"],
    )


def _counts(records: Records) -> dict[str, int]:
    return {"core": len(records.core), "user": len(records.user), "test": len(records.test)}


def _accuracy(model: MixedLinear, records: Records) -> dict[str, float | None]:
    if not len(records.test):
        return {"core": None, "user": None}
    return {
        "core": model.core.accuracy(records.test),
        "user": model.accuracy(records.test),
    }


def _compact(model: MixedLinear) -> dict[str, Any] | None:
    """Where the compact part's bases and scales came from, and how many numbers they clipped."""
    if model.user.kind != "compact":
        return None
    kept = None if model.data is None else model.data.rows
    rows = None if kept is None else kept.whole()
    return {
        "arithmetic": model.user.form.arithmetic,
        "form": model.user.form.kind,
        "why_not_better": list(model.user.form_reasons),
        "calibration": model.user.calibration,
        "total_ridge": model.user.total_ridge,
        "values": 0 if rows is None else rows.features.size + rows.targets.size,
        "saturated": 0 if rows is None else model.user.num_saturated(rows),
    }


def arithmetic_text(compact: Mapping[str, Any]) -> str:
    """In which arithmetic rows are computed, and what follows."""
    if compact["arithmetic"] == "integer":
        kind = "8-bit integers" if compact["form"] == "integer" else "exact sums in float64"
        return f"arithmetic: {kind}; rows, sums and weights are the same on every machine"
    reasons = "; ".join(compact["why_not_better"]) or "as asked for"
    return f"arithmetic: float32, exact on this machine only ({reasons})"


def _solution(model: MixedLinear) -> dict[str, Any] | None:
    solution = model.solution
    if solution is None:
        return None
    return {
        "status": str(solution.status),
        "residual_norm": solution.residual_norm,
        "passes": round(solution.passes, 1),
        "advice": solution.advice,
    }


def _render(console: Console, values: Mapping[str, Any]) -> None:
    rows = table("model", "test accuracy", right=(1,))
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
    if values["compact"]:
        compact = values["compact"]
        console.print(
            f"bases and scales from {compact['calibration']}: {compact['saturated']:,} of "
            f"{compact['values']:,} numbers at the end of their range",
            soft_wrap=True,
        )
        console.print(arithmetic_text(compact), markup=False, soft_wrap=True)
    console.print(f"model: {plain(values['model'])}", style="bold", markup=False, soft_wrap=True)


# Only saying what it would take.


def _plan(config: Config, core: Core, records: Records) -> dict[str, Any]:
    from efface.commands.estimate import estimate

    guess = estimate(config, core, records)
    return {
        "records": _counts(records),
        "classes": len(records.classes),
        "weights": guess.num_weights,
        "activations_gib": round(guess.activations_gib, 3),
        "minutes_estimate": round(guess.minutes_estimate, 2),
        "skipped": len(records.skipped),
        "notes": list(records.notes),
    }


def _render_plan(console: Console, values: Mapping[str, Any]) -> None:
    from efface.commands.estimate import minutes_text

    counts = values["records"]
    rows = table("what", "how much", right=(1,))
    for split in ("core", "user", "test"):
        rows.add_row(f"{split} records", f"{counts[split]:,}")
    rows.add_row("classes", f"{values['classes']:,}")
    rows.add_row("user weights d", f"{values['weights']:,}")
    rows.add_row("boundary activations", f"{values['activations_gib']:.3g} GiB")
    rows.add_row("time, at most", minutes_text(values["minutes_estimate"]))
    if values["skipped"]:
        rows.add_row("files set aside", f"{values['skipped']:,}")
    console.print(rows)
    for note in values["notes"]:
        console.print(f"note: {plain(note)}", markup=False)
    console.print("dry run: nothing was trained or written", style="dim")
