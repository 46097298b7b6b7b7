"""A row of the ledger: what happened, when, and the digest that ties it to the row before."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from efface.errors import LedgerError

LONGEST = 1 << 20  # characters of a body


@dataclass(frozen=True)
class Head:
    """The last row of a chain: its number and its digest. Of an empty chain: 0, and no digest."""

    seq: int
    digest: str

    def signed(self, key: bytes) -> str:
        """HMAC-SHA-256: who has not the key cannot name another head."""
        return hmac.new(key, f"{self.seq}\n{self.digest}".encode(), "sha256").hexdigest()


EMPTY = Head(0, "")


@dataclass(frozen=True)
class LedgerRow:
    """``body`` is JSON text in one spelling; ``digest`` is SHA-256 of the five fields before it."""

    seq: int
    time: str
    kind: str
    body: str
    previous: str
    digest: str

    @classmethod
    def after(cls, head: Head, time: str, kind: str, body: Mapping[str, Any]) -> LedgerRow:
        """The row that follows ``head``."""
        text = canonical(body)
        if not kind or "\n" in kind or len(text) > LONGEST:
            raise ValueError(f"not a row: kind {kind!r:.80}, a body of {len(text)} characters")
        seq = head.seq + 1
        return cls(seq, time, kind, text, head.digest, digest(seq, time, kind, text, head.digest))

    @property
    def head(self) -> Head:
        return Head(self.seq, self.digest)

    @property
    def values(self) -> dict[str, Any]:
        """The body, read."""
        found: dict[str, Any] = json.loads(self.body)
        return found


def canonical(body: Mapping[str, Any]) -> str:
    """JSON in one spelling: sorted keys, no spaces, no NaN."""
    return json.dumps(dict(body), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(seq: int, time: str, kind: str, body: str, previous: str) -> str:
    """SHA-256 of the fields, one a line; none of them can hold a line break."""
    return hashlib.sha256(f"{seq}\n{time}\n{kind}\n{body}\n{previous}".encode()).hexdigest()


def stored(cells: Sequence[Any], number: int) -> LedgerRow:
    """A row as a database gave it; LedgerError if its cells are not of the right kind."""
    seq, *texts = cells
    if type(seq) is not int or len(texts) != 5 or not all(type(text) is str for text in texts):
        raise LedgerError(f"row {number} of the ledger was changed.", RESTORE)
    return LedgerRow(seq, *texts)


def chained(rows: Iterable[LedgerRow], after: Head = EMPTY) -> Iterator[LedgerRow]:
    """The same rows; LedgerError at the first that was edited, removed or put elsewhere."""
    for row in rows:
        wanted = after.seq + 1
        if row.seq != wanted:
            raise LedgerError(f"row {wanted} of the ledger is missing.", RESTORE)
        if row.digest != digest(row.seq, row.time, row.kind, row.body, row.previous):
            raise LedgerError(f"row {wanted} of the ledger was changed.", RESTORE)
        if row.previous != after.digest:
            message = f"row {wanted} of the ledger does not follow from the row before it."
            raise LedgerError(message, RESTORE)
        _check_body(row)
        after = row.head
        yield row


def _check_body(row: LedgerRow) -> None:
    try:
        fine = isinstance(json.loads(row.body), dict)
    except (ValueError, RecursionError):
        fine = False
    if not fine:
        raise LedgerError(f"row {row.seq} of the ledger is not JSON.", RESTORE)


RESTORE = "it was changed after it was written: restore the ledger from a copy."
