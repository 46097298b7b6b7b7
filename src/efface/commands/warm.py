"""``efface warm``: keep what makes the next request faster."""

from __future__ import annotations

from typing import Annotated

import typer

from efface.commands.display import mode_for, show
from efface.commands.forget import WorkspacePath, open_workspace
from efface.commands.output import JsonFlag, finish

EXAMPLES = """\
Example: [bold]efface warm model[/bold]

Example: [bold]efface warm model --off[/bold]"""


def warm(
    workspace: WorkspacePath,
    off: Annotated[bool, typer.Option("--off", help="Keep it no longer.")] = False,
    json: JsonFlag = False,
) -> None:
    """Keep a factor of the sums, so that a request of a compact model is published sooner.

    Each request uses it once, deletes it, and makes that of the new sums before it is done: published sooner,
    done later. Results are the same bits, with it or without. It takes as much space as the sums.
    """
    with show("warm", mode_for(as_json=json)) as progress:
        progress(0.0, "deleting the factor" if off else "a factor of the sums")
        there = open_workspace(workspace, None).warm(on=not off)
        progress(1.0, "done")
    text = "a factor is kept: the next request is published sooner"
    if not there:
        text = "no factor is kept" if off else "there is nothing to keep for this model"
    values = {"workspace": str(workspace), "warm": there}
    finish(values, as_json=json, render=lambda console: console.print(text, soft_wrap=True))
