"""``efface timestamp``: ask somebody else for the time, since a receipt's is by the operator's clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.output import JsonFlag, finish, plain

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface timestamp model/receipts/3.json[/bold]"""

OUT = "The file to write; by default the receipt's name with .tsq."


def timestamp(
    receipt: Annotated[Path, typer.Argument(help="A receipt, as a file.")],
    out: Annotated[Path | None, typer.Option(help=OUT)] = None,
    json: JsonFlag = False,
) -> None:
    """Write a request for a time stamp (RFC 3161) of a receipt: its SHA-256, and nothing else of it.

    Nothing is sent. Any time-stamping authority answers it; the answer is checked by efface verify
    --timestamp. Keep receipt and answer together: an earlier receipt loses digests when the next release is
    published, and is another file then.
    """
    from efface.errors import EffaceError
    from efface.receipts.check import read
    from efface.receipts.envelope import Envelope
    from efface.receipts.timestamp import request

    data, out = read(receipt), out or receipt.with_suffix(".tsq")
    Envelope.parse(data)  # an error if it is no receipt
    if out.exists():
        raise EffaceError(f"{out} is there already.", "choose another --out.")
    out.write_bytes(request(data))
    values: dict[str, Any] = {"receipt": str(receipt), "out": str(out)}
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _render(console: Console, values: dict[str, Any]) -> None:
    name = plain(values["out"])
    lines = [
        f"wrote {name}; to send it to an authority of your choice:",
        f"  curl -H 'Content-Type: application/timestamp-query' --data-binary @{name} URL -o FILE.tsr",
    ]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
