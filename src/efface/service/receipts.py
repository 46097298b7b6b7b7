"""The receipt of a request: what was proved about the release that no longer has the person.

With a signing key it is the signed receipt of the release that carried the request out. Without one
it is the certificate of the release that is served now, which is without the person as well: of older
releases no certificate is kept in full, since it would tell about people who were forgotten since.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from efface.errors import EffaceError
from efface.service.settings import ServiceSettings
from efface.service.tickets import Ticket
from efface.workspace.published import current


def reference(ticket: Ticket) -> str:
    """SHA-256 of a request's number: the receipt has it, and whoever has the number can compare."""
    return hashlib.sha256(ticket.id.encode()).hexdigest()


def public_keys(settings: ServiceSettings) -> bytes | None:
    """The file that receipts are checked with, if they are signed."""
    if settings.signing_key is None:
        return None
    path = settings.signing_key.with_name(f"{settings.signing_key.name}.pub")
    return path.read_bytes() if path.is_file() else None


def receipt_of(workspace: Path, ticket: Ticket) -> tuple[str, bytes]:
    """A file name and its content."""
    published = current(workspace)
    if ticket.release is None or published is None:
        raise EffaceError("the request is not carried out yet.", "ask again when it is done.")
    signed = workspace / "receipts" / f"{ticket.release}.json"
    if signed.is_file():
        return f"efface-receipt-{ticket.release}.json", signed.read_bytes()
    path = workspace / "certificates" / f"{published.release}.public.json"
    if not path.is_file():
        raise EffaceError("there is no certificate of the release.", "run `efface verify`.")
    return f"efface-certificate-{published.release}.json", path.read_bytes()
