"""``efface releases``: two releases of a model side by side, on a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.output import JsonFlag, ModelPath, cell, finish, plain, table

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface releases model[/bold]

Example: [bold]efface releases model --from 3 --to 5 --out releases.html[/bold]

Example: [bold]efface releases model --evaluation before.json --evaluation after.json[/bold]

Example: [bold]efface releases model --from 3 --receipt anna.json --key signing.key.pub[/bold]"""

FIRST = "The earlier release. Default: the first."
LAST = "The later release. Default: the one that is served."
RECEIPT = "A whole receipt of an earlier release, as whoever asked was given it; repeatable."
KEY = "The public keys to check receipts with."
EVALUATION = "What `efface evaluate MODEL DATA --json` printed about a release; repeatable."


def releases(
    model: ModelPath,
    first: Annotated[int | None, typer.Option("--from", help=FIRST)] = None,
    last: Annotated[int | None, typer.Option("--to", help=LAST)] = None,
    receipt: Annotated[list[Path] | None, typer.Option(help=RECEIPT)] = None,
    key: Annotated[Path | None, typer.Option(help=KEY)] = None,
    evaluation: Annotated[list[Path] | None, typer.Option(help=EVALUATION)] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("releases.html"),
    json: JsonFlag = False,
) -> None:
    """Compare two releases of a model: what was asked in between, and what changed, on one page.

    Weights of earlier releases are deleted on purpose, and so are digests that would tell who was in them.
    What is left is the ledger, the certificates as they stay, and what you bring. It names nobody.
    """
    from efface.pipeline.releases import Brought, run

    brought = Brought(tuple(receipt or ()), key, tuple(evaluation or ()))
    values = run(model, first, last, out, brought)
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _render(console: Console, values: dict[str, Any]) -> None:
    start, end = values["from"]["number"], values["to"]["number"]
    shown = table("", f"release {start}", f"release {end}", "")
    for fact in values["facts"]:
        if fact["changed"] is not False:
            word = "changed" if fact["changed"] else ""
            sides = (_short(fact["before"]), _short(fact["after"]))
            if any(sides):
                shown.add_row(fact["name"], *sides, word)
    console.print(shown)
    actions = [release["action"] for release in values["between"]]
    counted = f"{len(actions)} request{'s' * (len(actions) > 1)} in between"
    console.print(f"{counted}: {', '.join(actions)}", soft_wrap=True)
    console.print(f"page: {plain(values['out'])}", markup=False, soft_wrap=True)


def _short(value: Any) -> str:
    text = "" if value is None else cell(round(value, 4) if isinstance(value, float) else value)
    return f"{text[:16]}…" if len(text) == 64 else text
