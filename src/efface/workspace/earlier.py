"""Was this asked before? The ledger has a keyed hash of every request, and no name.

HMAC-SHA-256 of the request under the workspace's key: with the request at hand it can be looked up, without
it nothing can be read. Requests that were carried out together (a file of them, those that waited in a
service) have a hash each, in rows of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from efface.errors import RequestError
from efface.ledger import LedgerRow
from efface.model.request import Request, RequestKind, meant
from efface.workspace.forgotten import keyed
from efface.workspace.inventory import Inventory
from efface.workspace.receipt_files import FOLDER
from efface.workspace.steps import STEP, Action, Milestone

ROW = "requests"  # the kind of a row that has the hashes of several
AT_ONCE = 5_000  # hashes a row


@dataclass(frozen=True)
class Earlier:
    """When a request was carried out, and its number: that of the release it made, and of its receipt."""

    number: int
    when: str
    has_receipt: bool

    @property
    def day(self) -> str:
        return self.when[:10]

    def __str__(self) -> str:
        signed = f"receipt {FOLDER}/{self.number}.json" if self.has_receipt else "not signed"
        return f"forgotten on {self.day} by request {self.number} ({signed})"


class ForgottenError(RequestError):
    """Somebody, or something, that was forgotten before; ``earlier`` says when."""

    def __init__(self, message: str, fix: str, earlier: Earlier) -> None:
        self.earlier = earlier
        super().__init__(message, fix)

    @property
    def details(self) -> dict[str, Any]:
        known = self.earlier
        receipt = f"{FOLDER}/{known.number}.json" if known.has_receipt else None
        return {"forgotten": {"request": known.number, "time": known.when, "receipt": receipt}}


def hash_of(request: Request, key: bytes) -> str:
    """What is kept of a request for ever."""
    return keyed(key, json.dumps(request.to_dict(), sort_keys=True))


def rows_of_several(requests: Iterable[Request], key: bytes) -> Iterator[dict[str, Any]]:
    """The rows that know them later; sorted, so that they tell no order."""
    hashes = sorted({hash_of(request, key) for request in requests})
    for first in range(0, len(hashes), AT_ONCE):
        yield {"hmac_sha256": hashes[first : first + AT_ONCE]}


def find(inventory: Inventory, request: Request) -> Earlier | None:
    """The last time that it was carried out."""
    if inventory.ledger.is_earlier():
        return None  # a journal, which nobody has taken over yet
    wanted = hash_of(request, inventory.key)
    done = [row for row, hashes in _carried_out(inventory.ledger.rows()) if wanted in hashes]
    if not done:
        return None
    number = done[-1].values["number"]
    signed = (inventory.path / FOLDER / f"{number}.json").is_file()
    return Earlier(number, done[-1].time, signed)


def _carried_out(rows: Iterable[LedgerRow]) -> Iterator[tuple[LedgerRow, set[str]]]:
    """The last row of every request to forget that was carried out, and the hashes it is known by."""
    hashes: set[str] = set()
    for row in rows:
        values = row.values
        if row.kind == ROW:
            hashes |= set(values["hmac_sha256"])
        elif row.kind == STEP and values["action"] == Action.FORGET:
            if values["step"] == Milestone.ACCEPTED:
                hashes = {values.get("request", "")}
            elif values["step"] == Milestone.DONE:
                yield row, hashes


def explained(
    error: RequestError, request: Request, inventory: Inventory, owners: Iterable[str]
) -> RequestError:
    """Why nothing is named by the request: it was forgotten before, or is spelt otherwise."""
    before = next((e for r in _forms(request) if (e := find(inventory, r)) is not None), None)
    if before is not None:
        page = (
            f"`efface evidence {inventory.path} --request {before.number}` has the page about it."
        )
        fix = f"nothing is left to do; {page}"
        return ForgottenError(f"{error.message} It was {before}.", fix, before)
    _, notes = meant(request, owners)
    if notes:
        return RequestError(error.message, _either(error.fix, *notes))
    if not inventory.forgotten:
        return error
    hint = "if it was forgotten, nothing is left to do: names of forgotten records are not kept"
    return RequestError(error.message, _either(error.fix, hint))


def _either(*fixes: str) -> str:
    """Several things to try, as one sentence."""
    return "; ".join(fix.removesuffix(".") for fix in fixes) + "."


def _forms(request: Request) -> Iterator[Request]:
    """The request, and where it names several records, each of them alone."""
    yield request
    if request.kind is RequestKind.IDS and len(request.values) > 1:
        yield from (Request(request.kind, (value,)) for value in request.values)
