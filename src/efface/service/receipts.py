"""The receipt of a request: what was proved about the release that no longer has the person.

A workspace keeps the proof of the release that is served, in full: an older one would tell about
people who have been forgotten since. So a request's receipt is that of the release that is served
now, which is without the person as well.
"""

from __future__ import annotations

from pathlib import Path

from efface.errors import EffaceError
from efface.service.tickets import Ticket
from efface.workspace.published import current


def receipt_of(workspace: Path, ticket: Ticket) -> tuple[str, bytes]:
    """A file name and its content."""
    published = current(workspace)
    if ticket.release is None or published is None:
        raise EffaceError("the request is not carried out yet.", "ask again when it is done.")
    path = workspace / "certificates" / f"{published.release}.public.json"
    if not path.is_file():
        raise EffaceError("there is no certificate of the release.", "run `efface verify`.")
    return f"efface-certificate-{published.release}.json", path.read_bytes()
