"""``efface add``: take new records into a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from efface.commands.display import mode_for, show
from efface.commands.forget import WorkspacePath
from efface.commands.outcome import report
from efface.commands.output import (
    AbsolutePaths,
    DeviceName,
    EngineName,
    JsonFlag,
    ShardCount,
    TrustModule,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efface.pipeline.adding import ShardedAdd
    from efface.workspace import Workspace

EXAMPLES = """\
Example: [bold]efface add model new-photos/[/bold]

Example: [bold]efface add model photos/ --cohort march[/bold]

Example: [bold]efface add model new-photos/ --engine processes:4[/bold]"""


def add(
    workspace: WorkspacePath,
    data: Annotated[str, typer.Argument(help="Labelled data, as for train; its user records.")],
    cohort: Annotated[str | None, typer.Option(help="Only the records of this cohort.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only the records of this person.")] = None,
    allow_reingest: Annotated[
        bool,
        typer.Option("--allow-reingest", help="Take in images that were forgotten here before."),
    ] = False,
    absolute_paths: AbsolutePaths = False,
    engine: EngineName = None,
    shards: ShardCount = None,
    device: DeviceName = "cpu",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Add user records and publish the new model; all of them, or on any error none.

    An image that was forgotten in this workspace is refused, whatever its name is now.
    """
    from efface.network.backbone import trusted_module
    from efface.pipeline.inputs import load_model, read_labelled
    from efface.workspace import Workspace

    opened = Workspace.open(workspace, module=trusted_module(trust_module))
    model = load_model(workspace, trust_module)
    if engine is not None:
        from efface.pipeline.adding import ShardedAdd
        from efface.shards import engine_named

        work = ShardedAdd(
            opened,
            model,
            engine_named(engine, device),
            data,
            owner,
            cohort,
            absolute_paths=absolute_paths,
            num_shards=shards,
            trusted=trust_module,
            device=device,
            note=warn,
        )
        _by_engine(work, allow_reingest=allow_reingest, as_json=json)
        return
    records = read_labelled(
        model, workspace, data, "user", note=warn, absolute_paths=absolute_paths
    )
    chosen = records.select(cohort=cohort, owner=owner)
    _warn_of(opened, chosen.owners)
    with show("add", mode_for(as_json=json)) as progress:
        result = opened.add(chosen, allow_reingest=allow_reingest, device=device, progress=progress)
    report(result, opened, as_json=json)


def _by_engine(work: ShardedAdd, *, allow_reingest: bool, as_json: bool) -> None:
    listing = work.how.listing()
    rows = work.chosen(listing)
    _warn_of(work.opened, [row.owner for row in rows])
    with show("add", mode_for(as_json=as_json)) as progress:
        result = work.add(listing, rows, allow_reingest=allow_reingest, progress=progress)
    report(result, work.opened, as_json=as_json)


def _warn_of(workspace: Workspace, names: Sequence[str]) -> None:
    """New owners who look like others, and those who are in core, too."""
    from efface.data.names import newcomers

    for text in newcomers(names, workspace.records.owners):
        warn(text)
    owners = workspace.core_index.owners_among(names)
    if owners:
        warn(
            f"{len(owners)} owners have core records too, the first {owners[0]!r}: core is never forgotten, "
            "so a request of theirs will need --user-part-only"
        )
