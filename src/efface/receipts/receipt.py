"""A receipt: an in-toto Statement about one request, and how it is made, signed and read.

Its subjects are digests: of the release's files, of core, class list, sums and weights. The predicate says
what was asked (a digest), what is proved (the public certificate), in which arithmetic, by which version,
what is *not* covered, and where in the ledger it stands, with the rows of the request. It names nobody.

Digests of sums and weights let whoever has a record try out what was forgotten later
(``workspace/superseded.py``), so a receipt is signed twice: *whole*, for as long as its release is published
and for whoever asked, and in the form that is *kept* afterwards, without them. A random number in the whole
one keeps its digest from telling anything.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from efface.errors import LedgerError
from efface.ledger import Head, LedgerRow
from efface.ledger.row import chained
from efface.receipts.encoding import canonical, read
from efface.receipts.envelope import FIX, Envelope
from efface.receipts.keys import PublicKeys, SigningKey, time_of

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:efface:receipt:1"
WHOLE = "receipt"  # the subject of the kept form: the whole one's digest
FIELDS = frozenset(
    {
        *("action", "arithmetic", "certificate", "environment", "ledger", "nonce", "not_covered"),
        *("release", "request", "time", "version"),
    }
)


@dataclass(frozen=True)
class Receipt:
    """What it says. ``subjects`` are SHA-256 digests by name; ``nonce`` is None in the kept form."""

    subjects: Mapping[str, str]
    action: str
    release: int
    request: Sequence[str]
    certificate: Mapping[str, Any] | None
    arithmetic: str
    environment: Mapping[str, str]
    version: str
    not_covered: Sequence[str]
    rows: tuple[LedgerRow, ...]
    time: str
    nonce: str | None = None

    @property
    def head(self) -> Head:
        """The ledger's last row when it was signed."""
        return self.rows[-1].head

    @property
    def is_whole(self) -> bool:
        return self.nonce is not None

    def statement(self) -> dict[str, Any]:
        subject = [{"name": n, "digest": {"sha256": d}} for n, d in sorted(self.subjects.items())]
        predicate = {
            "action": self.action,
            "arithmetic": self.arithmetic,
            "certificate": None if self.certificate is None else dict(self.certificate),
            "environment": dict(self.environment),
            "ledger": {"head": asdict(self.head), "rows": [asdict(row) for row in self.rows]},
            "nonce": self.nonce,
            "not_covered": list(self.not_covered),
            "release": self.release,
            "request": list(self.request),
            "time": self.time,
            "version": self.version,
        }
        kinds = {"_type": STATEMENT, "predicateType": PREDICATE}
        return {**kinds, "subject": subject, "predicate": predicate}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Receipt:
        """From :meth:`statement`; LedgerError if it is none, or its rows do not follow from each other."""
        try:
            return _read(cls, values)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            message = f"the signed statement is no receipt of efface: {problem!r:.120}."
            raise LedgerError(message, FIX) from problem


def _read(kind: type[Receipt], values: Mapping[str, Any]) -> Receipt:
    said = values["predicate"]
    named = (values["_type"], values["predicateType"]) == (STATEMENT, PREDICATE)
    if not named or set(said) != FIELDS or type(said["release"]) is not int:
        raise ValueError("it has other fields")
    rows = tuple(LedgerRow(**row) for row in said["ledger"]["rows"])
    if not rows:
        raise ValueError("it quotes no rows")
    before = Head(rows[0].seq - 1, rows[0].previous)
    found = kind(
        subjects={entry["name"]: entry["digest"]["sha256"] for entry in values["subject"]},
        rows=tuple(chained(rows, before)),
        **{name: said[name] for name in FIELDS - {"ledger"}},
    )
    if said["ledger"]["head"] != asdict(found.head) or canonical(found.statement()) != canonical(
        values
    ):
        raise ValueError("it is not as it was written")
    return found


def digest(receipt: bytes) -> str:
    """By which a ledger knows a receipt."""
    return hashlib.sha256(receipt).hexdigest()


@dataclass(frozen=True)
class Signed:
    """Both forms of a receipt, as files."""

    whole: bytes
    kept: bytes


def sign(receipt: Receipt, kept: Receipt, key: SigningKey) -> Signed:
    """``kept`` says the same without what must not stay."""
    whole = replace(receipt, nonce=secrets.token_hex(32))
    first = Envelope.sign(canonical(whole.statement()), key).to_bytes()
    subjects = {**kept.subjects, WHOLE: digest(first)}
    later = replace(kept, subjects=subjects, nonce=None)
    return Signed(first, Envelope.sign(canonical(later.statement()), key).to_bytes())


def opened(data: bytes, ring: PublicKeys) -> Receipt:
    """The receipt in a file, if a valid key has signed it; else LedgerError."""
    envelope = Envelope.parse(data)
    try:
        claimed = time_of(read(envelope.payload)["predicate"]["time"])
    except (KeyError, TypeError, ValueError) as problem:
        raise LedgerError("what is signed is no receipt of efface.", FIX) from problem
    return Receipt.read(envelope.statement(ring, claimed))
