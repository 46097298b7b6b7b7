"""What a page about a request tells, from a workspace: its receipt, or else what the ledger knows."""

from __future__ import annotations

from efface.receipts.envelope import Envelope
from efface.receipts.receipt import Receipt, digest, opened
from efface.report.evidence import Account, Asked, Beside, SignedBy
from efface.workspace import Workspace


def account_of(
    workspace: Workspace,
    number: int,
    beside: Beside | None = None,
    asked: Asked | None = None,
    *,
    kept: bool = False,
) -> Account:
    """Of the request that made release ``number``; ledger and signature are checked, or it is an error.

    ``kept``: what is left to tell once another release is published.
    """
    receipt, signed = _receipt(workspace, number, kept)
    return Account(
        receipt,
        signed,
        asked,
        beside or Beside(),
        num_rows=len(workspace.inventory.ledger.rows()),
        is_newest=number == workspace.number and not kept,
    )


def _receipt(workspace: Workspace, number: int, kept: bool) -> tuple[Receipt, SignedBy | None]:
    signing = workspace.protocol.signing
    later = kept and number == workspace.number
    ring, path = signing.ring(), signing.folder / f"{number}{'.kept' if later else ''}.json"
    if ring is None or not path.is_file():
        return signing.unsigned(number, kept=kept), None
    data = path.read_bytes()
    return opened(data, ring), SignedBy(Envelope.parse(data).keyid, digest(data))
