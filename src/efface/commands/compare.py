"""``efface compare``: every forgetting method on one data set, read out and attacked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import JsonFlag, finish, percent, plain, table, warn
from efface.commands.settings import Given, takes_settings

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface compare digits[/bold]

Example: [bold]efface compare digits --user tangent --worlds 0 --seeds 2[/bold]

Example: [bold]efface compare photos/ --backbone hf:models/resnet-50 --core-fraction 0.3[/bold]"""

FEATURES = (
    "Of the compact part. Default: as for train. Fewer make it faster: many models are fitted."
)
OUT = "Folder for report.html, compare.json and the cache of finished parts."


@takes_settings(
    {
        "data.spec": "Data, as for train.",
        "user.kind": "The user part: compact or tangent. Default: {default}.",
        "core.backbone": "As for train. Default: {default}.",
        "data.core_fraction": "As for train.",
        "data.classes": "The class list, as for train.",
        "user.features": FEATURES,
        "user.mu": "The ridge, as for train.",
        "output.cache": "Keep boundary activations in this folder, as for train.",
    }
)
def compare(
    given: Given,
    owner: Annotated[
        str | None, typer.Option(help="Whom to forget. Default: a random tenth, anew each seed.")
    ] = None,
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
    from efface.pipeline.compare import run
    from efface.pipeline.config import load_config

    settings = Settings(
        seeds=seeds,
        worlds=worlds,
        canaries=canaries,
        methods=None if methods is None else tuple(methods.split(",")),
        seed=seed,
    )
    with show("compare", mode_for(as_json=json)) as progress:
        config = load_config(None, given)
        values = run(config, settings, out, owner=owner, progress=progress, note=warn)
    finish(values, as_json=json, render=lambda console: render(console, values))
    if values["contradictions"]:
        raise typer.Exit(3)


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
