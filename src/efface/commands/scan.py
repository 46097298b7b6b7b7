"""``efface scan``: look for remains of records in every file of a workspace."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.forget import WorkspacePath
from efface.commands.output import (
    AbsolutePaths,
    DeviceName,
    JsonFlag,
    TrustModule,
    cell,
    finish,
    plain,
    table,
    warn,
)

if TYPE_CHECKING:
    from rich.console import Console

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
    absolute_paths: AbsolutePaths = False,
    device: DeviceName = "cpu",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Search every file of a workspace for records: features, pixels, names, digests, old releases.

    With the images (DATA or --image) what the model would store of them is computed and searched for,
    byte by byte; without, only names and digests are. A file that the workspace does not own is a finding.
    Exit code 0 if nothing is left, 3 if something is, 2 for an owner or id that the data does not know.
    """
    from efface.network.backbone import trusted_module
    from efface.pipeline.inputs import load_model, read_meant
    from efface.workspace.scan import scan as look

    wanted = (owner or [], id_ or [], digest or [], image or [])
    model = load_model(workspace, trust_module)
    records = read_meant(model, workspace, data, *wanted, note=warn, absolute_paths=absolute_paths)
    with show("scan", mode_for(as_json=json)) as progress:
        found = look(
            workspace,
            records=records,
            ids=id_ or [],
            owners=owner or [],
            digests=digest or [],
            module=trusted_module(trust_module),
            device=device,
            progress=progress,
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
