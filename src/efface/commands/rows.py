"""``efface rows``: rows and sums of a shard of the data, for one model, to be merged later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import DeviceName, JsonFlag, TrustModule, finish, warn
from efface.errors import EffaceError

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface rows photos/ --model model --shard 3/16 --out part3[/bold], after
[bold]efface train photos/ --core-only --out model[/bold] and before
[bold]efface merge part* --into model[/bold]"""


def rows(
    data: Annotated[str, typer.Argument(help="Labelled data, as for train; its user records.")],
    model: Annotated[Path, typer.Option(help="The model that the rows are for.")],
    out: Annotated[Path, typer.Option(help="A new folder for the rows and their sums.")],
    shard: Annotated[str, typer.Option(help="Which part of the data: 3/16.")] = "1/1",
    device: DeviceName = "cpu",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Compute the rows of some user records, and their exact sums, for one model.

    Shards do not overlap. Whoever makes them, on whatever machine and in whatever order, merging them gives
    the model that training on all of the data at once gives. The folder holds rows of people: delete it
    once it is merged.
    """
    from efface.pipeline.inputs import split_as_trained
    from efface.pipeline.sharded import ShardJob, make_rows

    if out.exists():
        raise EffaceError(f"{out} is there already.", "choose another --out, or delete it.")
    config = split_as_trained(model, data)
    reading = config.model_dump(mode="json")
    job = ShardJob(str(model), reading, shard, str(out), trust_module, device)
    with show("rows", mode_for(as_json=json)) as progress:
        made = make_rows(job, progress, warn)
    if made is None:
        warn(f"shard {shard} has no records; nothing was written")
    sums = None if made is None else made.data.sums
    values: dict[str, Any] = {
        "out": None if made is None else str(out),
        "shard": shard,
        "records": 0 if made is None else len(made.data),
        "statistics_digest": None if sums is None else sums.digest(),
    }
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _render(console: Console, values: dict[str, Any]) -> None:
    if values["out"]:
        text = f"{values['records']:,} records of shard {values['shard']} in {values['out']}"
        console.print(text, markup=False, soft_wrap=True)
        console.print(f"sums {values['statistics_digest'][:16]}…", style="dim")
