"""A partner's statement: what its sums are of, and which of its statements came before.

An in-toto Statement whose subjects are the digests of sums and tags. A statement lists the digests of all
that its partner made before it. Whoever has taken one in takes a later one only if that lists it: none can
come twice, none from before can come back, and one that was lost on the way is no harm, since each is about
all of the partner's records as they are then. It names nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from efface.errors import LedgerError
from efface.guarantee.certificates import Given
from efface.network.saved import is_digest
from efface.receipts.encoding import canonical, read
from efface.receipts.envelope import Envelope
from efface.receipts.keys import PublicKeys, SigningKey, time_of
from efface.receipts.receipt import STATEMENT
from efface.version import VERSION

PREDICATE = "urn:efface:share:1"
FIX = "ask the partner for it again."


@dataclass(frozen=True)
class Statement:
    """``sums`` and ``tags`` are SHA-256 digests, ``history`` those of the statements before, oldest first."""

    partner: str
    admission: str
    history: tuple[str, ...]
    given: Given
    num_rows: int
    num_people: int
    sums: str
    tags: str
    time: str
    version: str = VERSION

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        said = asdict(self)
        subjects = {name: said.pop(name) for name in ("sums", "tags")}
        subject = [{"name": n, "digest": {"sha256": d}} for n, d in subjects.items()]
        kinds = {"_type": STATEMENT, "predicateType": PREDICATE}
        return canonical({**kinds, "subject": subject, "predicate": said})

    @classmethod
    def parse(cls, data: bytes) -> Statement:
        """LedgerError for anything that :meth:`to_bytes` would not write."""
        try:
            values = read(data)
            said, subject = values["predicate"], values["subject"]
            found = cls(
                **{**said, "given": Given(**said["given"]), "history": tuple(said["history"])},
                **{entry["name"]: entry["digest"]["sha256"] for entry in subject},
            )
            _check(found)
            if found.to_bytes() != data.removesuffix(b"\n"):
                raise ValueError("it is not as it was written")
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            message = f"this is no partner's statement: {problem!r:.120}."
            raise LedgerError(message, FIX) from problem
        return found


def _check(found: Statement) -> None:
    texts = (found.partner, found.admission, found.version)
    numbers = (found.num_rows, found.num_people)
    digests = (found.sums, found.tags, *found.history)
    if not all(isinstance(text, str) for text in texts) or not all(map(is_digest, digests)):
        raise ValueError("a name or digest is none")
    if not all(type(n) is int and n >= 0 for n in numbers) or found.num_people > found.num_rows:
        raise ValueError("a number is none")
    time_of(found.time)


def sealed(statement: Statement, key: SigningKey | None) -> bytes:
    """The file of a statement: signed, if there is a key."""
    if key is None:
        return statement.to_bytes() + b"\n"
    return Envelope.sign(statement.to_bytes(), key).to_bytes()


def unsealed(data: bytes, ring: PublicKeys | None) -> tuple[Statement, str | None]:
    """The statement, and the id of the key that signed it, if one of the ``ring`` had to."""
    if not _is_envelope(data):
        if ring is not None:
            message = "the statement is not signed, and this partner has given its public keys."
            raise LedgerError(message, "ask for one that is signed: `efface partner … --key`.")
        return Statement.parse(data), None
    envelope = Envelope.parse(data)
    found = Statement.parse(envelope.payload)
    if ring is None:
        return found, None
    envelope.statement(ring, found.time)
    return found, envelope.keyid


def _is_envelope(data: bytes) -> bool:
    try:
        values: Mapping[str, Any] = read(data)
    except ValueError as problem:
        raise LedgerError(f"this is no partner's statement: {problem}.", FIX) from problem
    return "payload" in values
