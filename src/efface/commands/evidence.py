"""``efface evidence``: all that somebody needs who checks a model's requests, as an archive or a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.forget import open_workspace
from efface.commands.output import JsonFlag, ModelPath, TrustModule, finish, plain
from efface.commands.spoken import Spoken, spoken

if TYPE_CHECKING:
    from rich.console import Console

    from efface.report.language import Language

EXAMPLES = """\
Example: [bold]efface evidence model --out bundle.zip[/bold]

Example: [bold]efface evidence model --request 3 --language de[/bold]

Example: [bold]efface evidence model --out bundle.zip --key signing.key --audit audit.json[/bold]"""

KEY = "Sign the published release with this key, if it has no receipt yet, and later ones too."
AUDIT = "A result of efface audit, to be put in."
OUT = "The file to write: evidence.zip, or with --request the page, request-N.html."
REQUEST = "Only the page about this request, by the number of its release (receipts/N.json)."


def evidence(
    model: ModelPath,
    out: Annotated[Path | None, typer.Option(help=OUT)] = None,
    request: Annotated[int | None, typer.Option(min=1, help=REQUEST)] = None,
    language: Spoken = "en",
    key: Annotated[Path | None, typer.Option(help=KEY)] = None,
    audit: Annotated[list[Path] | None, typer.Option(help=AUDIT)] = None,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Pack receipts, certificate, ledger, public keys and a page for a privacy officer into one archive.

    None of it names anybody. START.html says in plain words what happened to the data, what is proved and
    what is not, and which command a stranger runs to check it; it prints on A4. With --request the page about
    that request alone is written; it needs no key, and says so if nobody has signed.
    """
    chosen = spoken(language)
    values: dict[str, Any] = {"model": str(model), "language": str(chosen)}
    if request is None:
        from efface.pipeline.evidence import pack

        out, opened = out or Path("evidence.zip"), open_workspace(model, trust_module)
        names = pack(opened, out, key=key, audits=tuple(audit or ()), language=chosen)
        values |= {"out": str(out), "release": opened.number, "files": names}
    else:
        out = out or Path(f"request-{request}.html")
        values |= {"out": str(out), **_one_page(model, trust_module, request, out, chosen)}
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _one_page(
    model: Path, trust_module: str | None, number: int, out: Path, language: Language
) -> dict[str, Any]:
    from efface.pipeline.evidence import write_page

    opened = open_workspace(model, trust_module, recover=False)
    receipt = write_page(opened, number, out, language)
    return {"release": receipt.release, "action": receipt.action, "files": []}


def _render(console: Console, values: dict[str, Any]) -> None:
    for name in values["files"]:
        console.print(f"  {plain(name)}", markup=False)
    begin = "; begin with START.html" if values["files"] else ""
    text = f"release {values['release']}: {plain(values['out'])}{begin}"
    console.print(text, style="bold", markup=False, soft_wrap=True)
