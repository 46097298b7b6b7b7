"""``efface scan``: look for remains of records in every file of a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.forget import WorkspacePath
from efface.commands.output import JsonFlag, TrustModule, cell, finish, plain, table, warn
from efface.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from efface.data.records import Records
    from efface.model.mixed_linear import MixedLinear

EXAMPLES = """\
Example: [bold]efface scan model photos/ --owner u17[/bold]

Example: [bold]efface scan model --image cat.jpg[/bold]

Example: [bold]efface scan model --digest "$(sha256sum < cat.jpg | cut -c1-64)"[/bold]"""


def scan(
    workspace: WorkspacePath,
    data: Annotated[
        str | None, typer.Argument(help="Where the records still are, as for train: gives images.")
    ] = None,
    owner: Annotated[list[str] | None, typer.Option(help="A person; repeatable.")] = None,
    id_: Annotated[list[str] | None, typer.Option("--id", help="A record; repeatable.")] = None,
    digest: Annotated[
        list[str] | None, typer.Option(help="SHA-256 of an image's content; repeatable.")
    ] = None,
    image: Annotated[list[Path] | None, typer.Option(help="An image file; repeatable.")] = None,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Search every file of a workspace for records: features, pixels, names, digests, old releases.

    With the images (DATA or --image) what the model would store of them is computed and searched for,
    byte by byte; without, only names and digests are. A file that the workspace does not own is a finding.
    Exit code 0 if nothing is left, 3 if something is, 2 for an owner or id that the data does not know.
    """
    from efface.commands.inputs import load_model
    from efface.network.backbone import trusted_module
    from efface.workspace.scan import scan as look

    wanted = (owner or [], id_ or [], digest or [], image or [])
    records = _records(load_model(workspace, trust_module), workspace, data, *wanted)
    found = look(
        workspace,
        records=records,
        ids=id_ or [],
        owners=owner or [],
        digests=digest or [],
        module=trusted_module(trust_module),
    )
    for text in found.not_searched:
        warn(f"not searched for {text}")
    values = {
        "workspace": str(workspace),
        "clean": found.clean,
        "num_records": len(records),
        "num_patterns": found.num_patterns,
        "files": list(found.files),
        "findings": [asdict(finding) for finding in found.findings],
        "kept": [asdict(finding) for finding in found.kept],
        "not_searched": list(found.not_searched),
    }
    finish(values, as_json=json, render=lambda console: _render(console, values))
    if not found.clean:
        raise typer.Exit(3)


def _records(
    model: MixedLinear,
    folder: Path,
    data: str | None,
    owners: Sequence[str],
    ids: Sequence[str],
    digests: Sequence[str],
    images: Sequence[Path],
) -> Records:
    """The records that are meant, with their images, as far as these are at hand."""
    from efface.commands.inputs import read_labelled, read_unlabelled
    from efface.data.record import Split
    from efface.data.records import Records

    found = Records([], model.classes)
    if images:
        found = read_unlabelled(model, [str(path) for path in images], "all")
    if data is not None:
        known = read_labelled(model, folder, data, "all")
        for name in (*owners, *ids):
            if name not in {*known.owners, *known.ids}:
                fix = "check the spelling: what is not known cannot be looked for."
                raise RequestError(f"no record of {data} has owner or id {name!r}.", fix)
        # Core records are there for good: the scan says so of their owners, without their images.
        user = known.where(lambda r: r.split is Split.USER)
        meant = user.where(lambda r: r.owner in owners or r.id in ids or r.digest in digests)
        found = found + meant
    return found


def _render(console: Console, values: dict[str, Any]) -> None:
    console.print(f"{len(values['files'])} files searched for {values['num_patterns']} patterns:")
    for name in values["files"]:
        console.print(f"  {plain(name)}", style="dim", markup=False, soft_wrap=True)
    if values["findings"]:
        rows = table("found in", "what", "how")
        for finding in values["findings"]:
            rows.add_row(*(cell(finding[name]) for name in ("file", "what", "how")))
        console.print(rows)
    if values["kept"]:
        text = f"{len(values['kept'])} keyed digests are kept, to refuse the images later"
        console.print(text, soft_wrap=True)
    verdict = f"{len(values['findings'])} remains" if values["findings"] else "nothing is left"
    console.print(verdict, style="bold red" if values["findings"] else "bold green")
