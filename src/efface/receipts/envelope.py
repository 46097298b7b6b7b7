"""The envelope: DSSE, a payload with its type and signatures over both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from efface.errors import LedgerError
from efface.receipts.encoding import canonical, from_base64, read, to_base64
from efface.receipts.keys import PublicKeys, SigningKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
FIX = "ask for the receipt again, or for the right .pub file."


def encoded(payload: bytes, kind: str = PAYLOAD_TYPE) -> bytes:
    """What is signed: DSSE's pre-authentication encoding of type and payload."""
    name = kind.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)


@dataclass(frozen=True)
class Envelope:
    """A payload and one signature of it."""

    payload: bytes
    keyid: str
    signature: bytes

    @classmethod
    def sign(cls, payload: bytes, key: SigningKey) -> Envelope:
        return cls(payload, key.keyid, key.sign(encoded(payload)))

    def to_bytes(self) -> bytes:
        values = {
            "payloadType": PAYLOAD_TYPE,
            "payload": to_base64(self.payload),
            "signatures": [{"keyid": self.keyid, "sig": to_base64(self.signature)}],
        }
        return canonical(values) + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Envelope:
        """LedgerError for anything that :meth:`to_bytes` would not write."""
        try:
            values = read(data)
            if set(values) != {"payload", "payloadType", "signatures"}:
                raise ValueError("it is not a DSSE envelope")
            if values["payloadType"] != PAYLOAD_TYPE:
                raise ValueError("it holds something else")
            signature = _one(values["signatures"])
            found = cls(
                from_base64(values["payload"]), signature["keyid"], from_base64(signature["sig"])
            )
            if found.to_bytes() != data:
                raise ValueError("it is not as it was written")
        except ValueError as problem:
            raise LedgerError(f"this is no receipt: {problem}.", FIX) from problem
        return found

    def statement(self, ring: PublicKeys, when: str) -> dict[str, Any]:
        """The payload, if a key of the ring that was valid at ``when`` has signed it."""
        key = ring.find(self.keyid, when)
        if key is None:
            message = (
                f"it is signed by key {self.keyid:.16}, which was not valid then, or is unknown."
            )
            raise LedgerError(message, FIX)
        if not key.verifies(self.signature, encoded(self.payload)):
            raise LedgerError("the signature is not that of this receipt.", FIX)
        return read(self.payload)


def _one(signatures: Any) -> dict[str, str]:
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise ValueError("it has not one signature")
    found = signatures[0]
    if not isinstance(found, dict) or set(found) != {"keyid", "sig"}:
        raise ValueError("its signature is none")
    if not isinstance(found["keyid"], str):
        raise ValueError("its key has no name")
    return found
