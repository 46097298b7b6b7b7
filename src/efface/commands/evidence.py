"""``efface evidence``: all that somebody needs who is to check a model's last request, in one archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.output import JsonFlag, ModelPath, TrustModule, finish, plain

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface evidence model --out bundle.zip[/bold]

Example: [bold]efface evidence model --out bundle.zip --key signing.key --audit audit.json[/bold]"""

KEY = "Sign the published release with this key, if it has no receipt yet, and later ones too."
AUDIT = "A result of efface audit, to be put in."


def evidence(
    model: ModelPath,
    out: Annotated[Path, typer.Option(help="The archive to write.")] = Path("evidence.zip"),
    key: Annotated[Path | None, typer.Option(help=KEY)] = None,
    audit: Annotated[list[Path] | None, typer.Option(help=AUDIT)] = None,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Pack receipts, certificate, ledger, public keys and a page for a privacy officer into one archive.

    None of it names anybody. START.html says in plain words what happened to the data, what is proved and
    what is not, and which command a stranger runs to check it.
    """
    from efface.network.backbone import trusted_module
    from efface.pipeline.evidence import pack
    from efface.workspace import Workspace

    opened = Workspace.open(model, module=trusted_module(trust_module))
    names = pack(opened, out, key=key, audits=tuple(audit or ()))
    values: dict[str, Any] = {"model": str(model), "out": str(out), "release": opened.number}
    values["files"] = names
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _render(console: Console, values: dict[str, Any]) -> None:
    for name in values["files"]:
        console.print(f"  {plain(name)}", markup=False)
    text = f"release {values['release']}: {plain(values['out'])}; begin with START.html"
    console.print(text, style="bold", markup=False, soft_wrap=True)
