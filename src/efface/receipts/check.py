"""Is a receipt genuine? Signature, key, the rows of the ledger it quotes, and a whole ledger if there is one.

Needs Python, ``cryptography`` and this package: no torch, no numpy, no network. What it says about a model is
checked with the model or the images (``efface verify RECEIPT --workspace MODEL --from-images …``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from efface.errors import EffaceError, LedgerError
from efface.guarantee.check import Check
from efface.ledger import Ledger, LedgerRow
from efface.ledger.row import chained, stored
from efface.receipts.encoding import LARGEST
from efface.receipts.keys import PublicKeys
from efface.receipts.receipt import Receipt, digest, opened

CLOCKS = timedelta(minutes=5)  # by which two may differ
COLUMNS = ("seq", "time", "kind", "body", "previous", "digest")


@dataclass(frozen=True)
class Stamped:
    """The files of a time stamp: the authority's answer, and certificates that are trusted, PEM."""

    answer: Path
    trusted: Path


def load(path: Path, key: Path) -> Receipt:
    """LedgerError if no valid key of the ring in ``key`` has signed it as it is."""
    return opened(read(path), PublicKeys.load(key))


def checks(
    path: Path, key: Path, ledger: Path | None = None, stamp: Stamped | None = None
) -> Iterator[Check]:
    """One after the other; a receipt that is not genuine raises LedgerError."""
    receipt = load(path, key)
    yield Check("signature", True, f"by a key of {key.name}, valid at {receipt.time}")
    rows = f"rows {receipt.rows[0].seq} to {receipt.head.seq} follow from each other"
    yield Check("rows of the request", True, rows)
    met = receipt.certificate is None or receipt.certificate.get("passed") is True
    kind = "none" if receipt.certificate is None else str(receipt.certificate.get("kind"))
    yield Check("certificate", met, f"{kind}, {'met' if met else 'not met'}")
    if ledger is not None:
        yield _in_ledger(receipt, digest(read(path)), rows_of(ledger))
    if stamp is not None:
        yield _in_time(receipt, read(path), stamp)


def _in_time(receipt: Receipt, data: bytes, stamp: Stamped) -> Check:
    """Somebody else has seen it, and not before it says that it was signed; clocks may differ a bit."""
    from efface.receipts.timestamp import check

    found = check(read(stamp.answer), data, read(stamp.trusted))
    name = found.signer.subject.rfc4514_string()
    if datetime.fromisoformat(receipt.time) > found.time + CLOCKS:
        text = f"{name} saw it at {found.time:%Y-%m-%d %H:%M:%S} UTC, before it says it was signed"
        return Check("time stamp", False, text)
    return Check("time stamp", True, f"seen by {name} at {found.time:%Y-%m-%d %H:%M:%S} UTC")


def _in_ledger(receipt: Receipt, named: str, rows: list[LedgerRow]) -> Check:
    """Its head is on the chain, and a later row knows the receipt."""
    known = {row.seq: row.digest for row in rows}
    if known.get(receipt.head.seq) != receipt.head.digest:
        return Check("ledger", False, "the receipt's head is not on its chain")
    told = [row.values for row in rows if row.kind == "receipt"]
    if not any(named in (values.get("whole"), values.get("kept")) for values in told):
        return Check("ledger", False, "no row knows this receipt")
    return Check("ledger", True, f"{len(rows)} rows; it knows this receipt")


def rows_of(path: Path) -> list[LedgerRow]:
    """Of a ledger's file, or of its rows as lines of JSON (``efface ledger show --lines``); checked."""
    if path.suffix != ".jsonl":
        with Ledger.look(path) as ledger:
            return ledger.checked()
    return list(chained(_lines(path)))


def _lines(path: Path) -> Iterator[LedgerRow]:
    for number, line in enumerate(read(path).splitlines(), 1):
        try:
            values = json.loads(line)
            cells = [values[name] for name in COLUMNS]
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            message = f"line {number} of {path.name} is no row of a ledger."
            raise LedgerError(message, "ask for the file again.") from problem
        yield stored(cells, number)


def read(path: Path) -> bytes:
    """A file that somebody has sent; not more of it than any receipt has."""
    if not path.is_file():
        raise EffaceError(f"there is no file {path}.", "check the path.")
    with path.open("rb") as file:
        return file.read(LARGEST + 1)
