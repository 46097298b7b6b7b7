"""``efface keys``: the keys that receipts are signed with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.output import JsonFlag, finish, plain, table

if TYPE_CHECKING:
    from rich.console import Console

    from efface.receipts.keys import PublicKeys

EXAMPLES = """\
Example: [bold]efface keys new ~/.config/efface/signing.key[/bold]

Example: [bold]efface keys rotate ~/.config/efface/signing.key[/bold]

Example: [bold]efface keys show signing.key.pub[/bold]"""

KeyFile = Annotated[Path, typer.Argument(help="The key file; public keys are beside it, FILE.pub.")]


def new(file: KeyFile, json: JsonFlag = False) -> None:
    """Make a key to sign receipts with: FILE, readable by you alone, and FILE.pub, for everybody."""
    from efface.receipts.keys import make

    _finish(file, make(file).ring, "made", as_json=json)


def rotate(file: KeyFile, json: JsonFlag = False) -> None:
    """Replace a key by another one, which the old one vouches for; what it signed can still be checked."""
    from efface.receipts.keys import rotate as run

    _finish(file, run(file).ring, "rotated", as_json=json)


def show(
    file: Annotated[Path, typer.Argument(help="A key file, or a file FILE.pub.")],
    pem: Annotated[
        bool, typer.Option("--pem", help="Print the current public key as PEM, for other programs.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Show public keys: their ids, and from when until when each of them signs."""
    from efface.receipts.keys import PublicKeys, mended

    ring = PublicKeys.load(file) if file.suffix == ".pub" else mended(file).ring
    if pem:
        print(ring.current.pem(), end="")
        return
    _finish(file, ring, "", as_json=json)


def _finish(file: Path, ring: PublicKeys, done: str, *, as_json: bool) -> None:
    keys = [
        {"keyid": key.keyid, "since": key.since, "until": ring.until(i)}
        for i, key in enumerate(ring.keys)
    ]
    values: dict[str, Any] = {"file": str(file), "keyid": ring.current.keyid, "keys": keys}
    finish(values, as_json=as_json, render=lambda console: _render(console, values, done))


def _render(console: Console, values: dict[str, Any], done: str) -> None:
    rows = table("key id", "from", "until")
    for key in values["keys"]:
        rows.add_row(key["keyid"], key["since"], key["until"] or "now")
    console.print(rows)
    if done:
        file = plain(values["file"])
        text = f"{done}: {file} (keep it secret, keep a copy) and {file}.pub (give it away)"
        console.print(text, markup=False, soft_wrap=True)


MEMBERS = {"new": new, "rotate": rotate, "show": show}
