"""``efface merge``: rows that were made in shards into a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from efface.commands.display import mode_for, show
from efface.commands.forget import open_workspace
from efface.commands.outcome import report
from efface.commands.output import JsonFlag, TrustModule, warn

EXAMPLES = """\
Example: [bold]efface merge part1 part2 part3 --into model[/bold]"""


def merge(
    partials: Annotated[list[Path], typer.Argument(help="Folders that `efface rows` made.")],
    into: Annotated[Path, typer.Option(help="The model that they were made for.")],
    allow_reingest: Annotated[
        bool,
        typer.Option("--allow-reingest", help="Take in images that were forgotten here before."),
    ] = False,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Take the records of all these folders into a model; all of them, or on any error none.

    A folder that was made for another model is refused, and so are one whose sums are not those of its rows,
    records that are in two of them, and images that were forgotten in this model.
    """
    from efface.pipeline.sharded import merge as run

    with show("merge", mode_for(as_json=json)) as progress:
        result = run(
            into,
            partials,
            trusted=trust_module,
            allow_reingest=allow_reingest,
            progress=progress,
        )
    warn("the folders still hold rows of people, and forgetting does not reach them: delete them")
    report(result, open_workspace(into, None, recover=False), as_json=json)
