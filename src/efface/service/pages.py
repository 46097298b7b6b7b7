"""The page for a request's papers: what a privacy officer prints and signs (``report/evidence.py``)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from efface.errors import EffaceError
from efface.report.accounts import account_of
from efface.report.document import Document
from efface.report.evidence import Asked, Beside, page, refusal
from efface.report.language import Language
from efface.service.states import State
from efface.service.tickets import Ticket
from efface.workspace import Workspace


def page_of(workspace: Path, ticket: Ticket, language: Language) -> tuple[str, bytes]:
    """A file name and its content. An error if the request has not ended."""
    name = f"efface-request-{ticket.id}-{language}.html"
    return name, _document(workspace, ticket, language).render().encode()


def _document(path: Path, ticket: Ticket, language: Language) -> Document:
    if not ticket.has_ended:
        raise EffaceError("the request has not ended yet.", "ask again when it is done.")
    if ticket.state is not State.DONE:
        return refusal(_asked(ticket), language, cancelled=ticket.state is State.CANCELLED)
    assert ticket.release is not None  # it was published
    beside = Beside(f"efface-receipt-{ticket.release}.json", "receipts.pub")
    workspace = Workspace.open(path, recover=False)
    return page(account_of(workspace, ticket.release, beside, _asked(ticket)), language)


def _asked(ticket: Ticket) -> Asked:
    def time(seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    return Asked(
        number=ticket.id,
        source=ticket.source,
        law=str(ticket.regulation),
        received=time(ticket.received),
        due=time(ticket.due),
        ended=time(ticket.changed),
        images=ticket.num_records,
        reason=ticket.reason,
    )
