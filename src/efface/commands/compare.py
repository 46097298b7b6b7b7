"""``efface compare``: every forgetting method on one data set, read out and attacked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.output import JsonFlag, finish, percent, plain, table
from efface.progress import mode_for, part, show

if TYPE_CHECKING:
    from rich.console import Console

    from efface.data.records import Records
    from efface.pipeline.config import Config

EXAMPLES = """\
Example: [bold]efface compare digits[/bold]

Example: [bold]efface compare digits --user tangent --worlds 0 --seeds 2[/bold]

Example: [bold]efface compare photos/ --backbone hf:models/resnet-50 --core-fraction 0.3[/bold]"""

FEATURES = (
    "Of the compact part. Default: as for train. Fewer make it faster: many models are fitted."
)
OUT = "Folder for report.html, compare.json and the cache of finished parts."


def compare(
    data: Annotated[str, typer.Argument(help="Data, as for train.")],
    user: Annotated[str, typer.Option(help="The user part: compact or tangent.")] = "compact",
    owner: Annotated[
        str | None, typer.Option(help="Whom to forget. Default: a random tenth, anew each seed.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="As for train. Default: cnn.")] = None,
    core_fraction: Annotated[float | None, typer.Option(help="As for train.")] = None,
    features: Annotated[int | None, typer.Option(min=1, help=FEATURES)] = None,
    mu: Annotated[float | None, typer.Option(help="The ridge, as for train.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these, separated by commas. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each readout.")] = 3,
    worlds: Annotated[
        int, typer.Option(min=0, help="Models for the per-sample attacks; 0: none.")
    ] = 48,
    canaries: Annotated[int, typer.Option(min=0, help="Of the one-run audit; 0: none.")] = 200,
    seed: Annotated[int, typer.Option(help="Of all random choices.")] = 0,
    out: Annotated[Path, typer.Option(help=OUT)] = Path("efface-compare"),
    json: JsonFlag = False,
) -> None:
    """Forget by every method, and measure what is left: the paper's readouts and stronger attacks.

    Finished parts are kept, so a run that was cut short goes on where it stopped. Exit code 3 if an attack
    contradicts what a method claims.
    """
    from efface.audit.study import Settings
    from efface.pipeline.config import load_config

    overrides = {
        "data.spec": data,
        "data.core_fraction": core_fraction,
        "core.backbone": backbone,
        "user.kind": user,
        "user.mu": mu,
    }
    settings = Settings(
        seeds=seeds,
        worlds=worlds,
        canaries=canaries,
        methods=None if methods is None else tuple(methods.split(",")),
        seed=seed,
    )
    with show("compare", mode_for(as_json=json)) as progress:
        values = run(load_config(None, overrides), features, settings, owner, out, progress)
    finish(values, as_json=json, render=lambda console: render(console, values))
    if values["contradictions"]:
        raise typer.Exit(3)


def run(
    config: Config,
    features: int | None,
    settings: Any,
    owner: str | None,
    out: Path,
    progress: Any,
    records: Records | None = None,
) -> dict[str, Any]:
    """Train, measure, and write ``compare.json`` and ``report.html`` into ``out``.

    The data are those of the config, or ``records``.
    """
    import numpy as np
    import torch

    from efface import files
    from efface.audit.scene import Scene
    from efface.audit.study import SCHEMA, Study, identity_of
    from efface.model.request import Request
    from efface.report.audit import audit_report

    records = config.data.build() if records is None else records
    core = config.core.build(records.classes)
    if features is not None:
        user = config.user.model_copy(update={"features": features})
        config = config.model_copy(update={"user": user})
    if len(records.core):
        core.fit(records.core, **config.core.fit_options(), progress=part(progress, 0, 0.1, "core"))
    replay = records.core if config.user.replay_core and len(records.core) else None
    model = config.user.build(core)
    model.fit(records.user, replay=replay, progress=part(progress, 0.1, 0.2, "user part"))
    positions = None
    if owner is not None:
        positions = torch.from_numpy(Request.of(owner=owner).positions(records.user))
    scene = Scene.of(model, np.zeros(0, dtype=np.int64), records.test)
    identity = identity_of(core.digest, config.model_dump_json(), records.digests)
    study = Study(scene, settings, request=positions, cache=out / "cache", identity=identity)
    values = {"data": config.data.spec, "owner": owner, **study.run(part(progress, 0.2, 1.0))}
    values["report"] = str(out / "report.html")
    files.write_json(out / "compare.json", {"schema": SCHEMA, **values})
    title = f"Forgetting methods compared on {config.data.spec}"
    command = f"efface compare {config.data.spec} --user {config.user.kind}"
    audit_report(values, title, command).write(out / "report.html")
    return values


def render(console: Console, values: dict[str, Any]) -> None:
    head = (
        "method",
        "test",
        "forgot",
        "dist.",
        "relearn",
        "nats",
        "strongest attack",
        "ε ≥",
        "ε ≤",
    )
    rows = table(*head, right=tuple(range(1, 9)))
    rows.columns[0].no_wrap = True
    rows.padding = (0, 1, 0, 0)  # nine columns, and often only 80 characters
    for name, method in values["methods"].items():
        r, games = method["readouts"], (method["canary"], method["attacks"])
        found = [v for game in games for v in game.values() if v["covered"]]
        bound = f"{max(v['epsilon_bound'] for v in found):.2f}" if found else "–"
        claimed = method["claimed_epsilon"]
        rows.add_row(
            name,
            percent(r["error_test"]["mean"]),
            percent(r["error_forgotten"]["mean"]),
            f"{r['distance_forgotten']['mean']:.3f}",
            f"{r['relearn']['mean']:.0f}",
            f"{r['information_nats_estimate']['mean']:.2g}",
            _attack(values["strongest"][name]),
            bound,
            "–" if claimed is None else f"{claimed:.2f}",
        )
    console.print(rows)
    console.print(
        "test, forgot: errors · dist.: softmax distance to the retrained model on the forgotten · "
        "relearn: steps · nats: information left · strongest attack: AUC, 0.5 is chance, * is not · "
        "ε ≥: proved by an attack · ε ≤: claimed",
        style="dim",
    )
    for c in values["contradictions"]:
        console.print(
            f"{c['method']}: the {c['attack']} attack proves epsilon ≥ "
            f"{c['refuted_epsilon_bound']:.2f}, claimed {c['claimed_epsilon']:.2f}",
            style="bold red",
            soft_wrap=True,
        )
    console.print(f"report: {plain(values['report'])}", style="bold", markup=False, soft_wrap=True)


def _attack(best: dict[str, Any] | None) -> str:
    if best is None:
        return "–"
    return f"{best['attack']} {best['auc']:.3f}" + ("" if best["at_chance"] else "*")
