"""``efface ledger``: the rows of what happened to a model, and whether any of them was changed."""

from __future__ import annotations

import json as json_lines
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.output import JsonFlag, ModelPath, cell, finish, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from efface.ledger import LedgerRow

EXAMPLES = """\
Example: [bold]efface ledger verify model[/bold]

Example: [bold]efface ledger show model[/bold]

Example: [bold]efface ledger show model --lines > ledger.jsonl[/bold]"""

LINES = "One row a line, as JSON, for somebody who checks the chain without the database."


def verify(model: ModelPath, json: JsonFlag = False) -> None:
    """Check every row of a model's ledger; exit code 4 names the first that was edited, removed or moved.

    The chain, its signed head, and the head that the manifest of the published release holds.
    """
    from efface.workspace.history import checked_rows

    rows, number = checked_rows(model)
    head = asdict(rows[-1].head)
    values: dict[str, Any] = {
        "model": str(model),
        "release": number,
        "rows": len(rows),
        "head": head,
    }
    text = f"{len(rows)} rows, each as it was written; head {head['digest']}"
    finish(values, as_json=json, render=lambda console: console.print(text, soft_wrap=True))


def show(
    model: ModelPath,
    lines: Annotated[bool, typer.Option("--lines", help=LINES)] = False,
    json: JsonFlag = False,
) -> None:
    """Show the rows of a model's ledger: what happened when. It names nobody."""
    from efface.workspace.history import checked_rows

    rows, number = checked_rows(model)
    if lines:
        for row in rows:
            print(json_lines.dumps(asdict(row), sort_keys=True))
        return
    values = {
        "model": str(model),
        "release": number,
        "rows": [{**asdict(row), "body": row.values} for row in rows],
    }
    finish(values, as_json=json, render=lambda console: _render(console, rows))


def _render(console: Console, rows: Sequence[LedgerRow]) -> None:
    shown = table("row", "time", "release", "what", "digest", right=(0, 2))
    for row in rows:
        body = row.values
        what = " ".join(str(body[name]) for name in ("action", "step") if name in body) or row.kind
        number = str(body.get("number", ""))
        shown.add_row(str(row.seq), cell(row.time), cell(number), cell(what), row.digest[:16])
    console.print(shown)


MEMBERS = {"verify": verify, "show": show}
