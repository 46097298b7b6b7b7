"""``efface demo``: the whole story on scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import JsonFlag, finish, percent, plain, table

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = "Example: [bold]efface demo --out efface-demo[/bold], then open efface-demo/report.html"

NAMES = {
    "core": "core model (core data only)",
    "last_layer": "last layer refitted",
    "tangent": "mixed-linear, tangent (the paper)",
    "user": "mixed-linear, compact (exact)",
    "after": "compact after forgetting one person",
    "retrained": "compact trained without that person",
}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model and report.html.")] = Path(
        "efface-demo"
    ),
    json: JsonFlag = False,
) -> None:
    """Train, measure and report on 1,797 small digits. No download, under a minute."""
    from efface.pipeline import demo as story

    with show("demo", mode_for(as_json=json)) as progress:
        values = story.run(out, progress)
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _render(console: Console, values: dict[str, Any]) -> None:
    rows = table("model", "test accuracy", right=(1,))
    for key, name in NAMES.items():
        rows.add_row(name, percent(values["accuracy"][key]))
    console.print(rows)
    requests = table("request", "method", "time", "certificate", right=(2,))
    for entry in values["requests"]:
        milliseconds = f"{1000 * entry['seconds']:.0f} ms"
        requests.add_row(entry["title"], entry["method"], milliseconds, entry["verdict"])
    console.print(requests)
    digests = values["digests"]
    console.print(f"statistics after forgetting:       {digests['forgotten']}", soft_wrap=True)
    console.print(f"of a model never given the images: {digests['retrained']}", soft_wrap=True)
    console.print(f"report: {plain(values['report'])}", style="bold", markup=False, soft_wrap=True)
