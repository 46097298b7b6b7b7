"""``efface find``: which records show this picture, or a near copy of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.forget import WorkspacePath
from efface.commands.output import JsonFlag, finish, table

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface find model holiday.jpg[/bold]

Example: [bold]efface find model holiday.jpg --near 4 --json[/bold]"""


def find(
    workspace: WorkspacePath,
    image: Annotated[Path, typer.Argument(help="An image file.")],
    near: Annotated[
        int, typer.Option(min=0, max=32, help="How many of a look's 64 bits may differ.")
    ] = 10,
    json: JsonFlag = False,
) -> None:
    """Find a person's records by a picture: the same file, or one re-encoded, resized or mirrored.

    Core and calibration images are looked at, too; their owners are not known by name. What was forgotten is
    not found: nothing is kept of it that could be.
    """
    from efface.workspace import Workspace
    from efface.workspace.finding import find as look

    with show("find", mode_for(as_json=json)) as progress:
        matches = look(Workspace.open(workspace), image, near, progress=progress)
    values = {
        "workspace": str(workspace),
        "image": str(image),
        "matches": [asdict(match) for match in matches],
    }
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _render(console: Console, values: dict[str, Any]) -> None:
    from rich.markup import escape

    if not values["matches"]:
        console.print("no record is this picture or looks like it")
        return
    rows = table("record", "owner", "class", "part", "how", right=())
    for match in values["matches"]:
        how = "the same file" if match["same"] else f"{match['distance']} bits apart"
        how += ", mirrored" if match["mirrored"] and not match["same"] else ""
        names = (match["id"], match["owner"] or "–", match["label"])
        rows.add_row(*map(escape, names), match["part"], how)
    console.print(rows)
    users = sum(match["part"] == "user" for match in values["matches"])
    console.print(f"{users} user records, {len(values['matches']) - users} in core or calibration")
