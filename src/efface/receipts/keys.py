"""Keys: Ed25519, in a file that is its owner's alone, and a ring of public ones for everybody else.

The ring has every key that ever signed here, with the time from which it did; a key is valid until the next
one is. The first entry is signed by its own key, each later one by the key before it: who trusts the first
can trust all of them. A key's id is the SHA-256 of its 32 public bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from efface.errors import EffaceError, FormatError, LedgerError
from efface.receipts.encoding import LARGEST, canonical, from_base64, read, to_base64

SCHEMA = "efface.signing-key/1"
RING_SCHEMA = "efface.public-keys/1"
CONTEXT = b"efface key ring entry\n"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class PublicKey:
    """A key of the ring: its 32 bytes, and since when it signs. ``signature`` is by the key before it."""

    public: bytes
    since: str
    signature: bytes

    @property
    def keyid(self) -> str:
        return hashlib.sha256(self.public).hexdigest()

    def verifies(self, signature: bytes, data: bytes) -> bool:
        from efface.receipts import ed25519

        return ed25519.verifies(self.public, signature, data)

    @property
    def said(self) -> bytes:
        """What the key before it has signed."""
        return CONTEXT + canonical({"public": to_base64(self.public), "since": self.since})

    def pem(self) -> str:
        from efface.receipts import ed25519

        return ed25519.pem(self.public)


@dataclass(frozen=True)
class PublicKeys:
    """All public keys, oldest first."""

    keys: tuple[PublicKey, ...]

    @property
    def current(self) -> PublicKey:
        return self.keys[-1]

    def find(self, keyid: str, when: str) -> PublicKey | None:
        """The key of this id, if it was the valid one at that time."""
        for i, key in enumerate(self.keys):
            until = self.keys[i + 1].since if i + 1 < len(self.keys) else None
            if key.keyid == keyid and key.since <= when and (until is None or when <= until):
                return key
        return None

    def until(self, number: int) -> str | None:
        """Until when a key signs; None: it still does."""
        return self.keys[number + 1].since if number + 1 < len(self.keys) else None

    def to_list(self) -> list[dict[str, str]]:
        return [
            {
                "keyid": key.keyid,
                "public": to_base64(key.public),
                "since": key.since,
                "signature": to_base64(key.signature),
            }
            for key in self.keys
        ]

    def to_bytes(self) -> bytes:
        return canonical({"schema": RING_SCHEMA, "keys": self.to_list()}) + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> PublicKeys:
        """From :meth:`to_bytes`; else ValueError."""
        values = read(data)
        if values.get("schema") != RING_SCHEMA or set(values) != {"schema", "keys"}:
            raise ValueError("it is not a file of public keys")
        return cls.of(values["keys"])

    @classmethod
    def of(cls, entries: Any) -> PublicKeys:
        """From :meth:`to_list`; ValueError if an entry is not signed by the key before it."""
        if not isinstance(entries, list) or not entries:
            raise ValueError("it has no keys")
        found: list[PublicKey] = []
        for entry in entries:
            if not isinstance(entry, dict) or set(entry) != {
                "keyid",
                "public",
                "since",
                "signature",
            }:
                raise ValueError("an entry is none")
            public, signature = from_base64(entry["public"]), from_base64(entry["signature"])
            key = PublicKey(public, time_of(entry["since"]), signature)
            before = found[-1] if found else key
            in_order = before.since <= key.since
            if (
                key.keyid != entry["keyid"]
                or not in_order
                or not before.verifies(signature, key.said)
            ):
                raise ValueError("an entry is not signed by the key before it")
            found.append(key)
        return cls(tuple(found))

    @classmethod
    def load(cls, path: Path) -> PublicKeys:
        """A file ``*.pub``; LedgerError if it is damaged."""
        try:
            return cls.parse(_bytes(path))
        except ValueError as problem:
            message = f"{path} holds no public keys: {problem}."
            raise LedgerError(message, "ask for the .pub file of `efface keys new`.") from problem


@dataclass(frozen=True)
class SigningKey:
    """A private key, and the ring that it is the last of."""

    private: bytes
    ring: PublicKeys

    @property
    def keyid(self) -> str:
        return self.ring.current.keyid

    def sign(self, data: bytes) -> bytes:
        from efface.receipts import ed25519

        return ed25519.sign(self.private, data)

    @classmethod
    def new(cls, since: str | None = None) -> SigningKey:
        """A ring of one, signed by itself."""
        from efface.receipts import ed25519

        seed = ed25519.new_seed()
        entry = _entry(seed, lambda data: ed25519.sign(seed, data), since or now())
        return cls(seed, PublicKeys((entry,)))

    def rotated(self, since: str | None = None) -> SigningKey:
        """Another key, which this one vouches for."""
        from efface.receipts import ed25519

        seed = ed25519.new_seed()
        entry = _entry(seed, self.sign, max(since or now(), self.ring.current.since))
        return SigningKey(seed, PublicKeys((*self.ring.keys, entry)))

    def to_bytes(self) -> bytes:
        values = {"schema": SCHEMA, "private": to_base64(self.private), "keys": self.ring.to_list()}
        return canonical(values) + b"\n"

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """FormatError if it is none; a file that others may read is refused."""
        if os.name == "posix" and path.is_file() and path.stat().st_mode & 0o077:
            message = f"{path} can be read by others: it may not be secret any more."
            raise EffaceError(message, f"`chmod 600 {path}`, then `efface keys rotate {path}`.")
        from efface.receipts import ed25519

        try:
            values = read(_bytes(path))
            if values.get("schema") != SCHEMA or set(values) != {"schema", "private", "keys"}:
                raise ValueError("it is not a signing key")
            found = cls(from_base64(values["private"]), PublicKeys.of(values["keys"]))
            if ed25519.public_of(found.private) != found.ring.current.public:
                raise ValueError("its public key is another's")
        except ValueError as problem:
            fix = "make one with `efface keys new`, or restore it from a copy."
            raise FormatError(f"{path} holds no signing key: {problem}.", fix) from problem
        return found


def _entry(seed: bytes, sign: Callable[[bytes], bytes], since: str) -> PublicKey:
    from efface.receipts import ed25519

    public = ed25519.public_of(seed)
    return PublicKey(public, since, sign(PublicKey(public, since, b"").said))


def time_of(value: Any) -> str:
    """ISO 8601 in UTC, to the second: texts that sort as times do."""
    if not isinstance(value, str) or datetime.fromisoformat(value).isoformat() != value:
        raise ValueError("a time is none")
    if not value.endswith("+00:00") or len(value) != 25:
        raise ValueError("a time is not in UTC")
    return value


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FormatError(f"there is no file {path}.", "check the path.")
    with path.open("rb") as file:
        return file.read(LARGEST + 1)


# --- files ----------------------------------------------------------------------------------------


def public_path(path: Path) -> Path:
    """Where the ring of a key file lies."""
    return path.with_name(f"{path.name}.pub")


def make(path: Path) -> SigningKey:
    """A new key file, and its ring beside it; nothing is overwritten."""
    for place in (path, public_path(path)):
        if place.exists() or place.is_symlink():
            fix = "choose another name, or `efface keys rotate` it."
            raise EffaceError(f"there already is a file {place}.", fix)
    for folder in path.absolute().parents:
        if (folder / "CURRENT").is_file():
            message = f"{folder} is a model: whoever copies it would have the key."
            raise EffaceError(message, "keep the key elsewhere.")
    return _save(path, SigningKey.new())


def rotate(path: Path) -> SigningKey:
    """Another key in the same file. The old one is gone; what it signed can still be checked."""
    return _save(path, SigningKey.load(path).rotated())


def mended(path: Path) -> SigningKey:
    """The key, and its ring beside it as it should be, whatever happened when it was written."""
    key = SigningKey.load(path)
    beside = public_path(path)
    if not beside.is_file() or beside.read_bytes() != key.ring.to_bytes():
        _write(beside, key.ring.to_bytes(), 0o644)
    return key


def _save(path: Path, key: SigningKey) -> SigningKey:
    """The key file has the ring, too, and is replaced by one rename: it is the old one or the new."""
    _write(path, key.to_bytes(), 0o600)
    _write(public_path(path), key.ring.to_bytes(), 0o644)
    return key


def _write(path: Path, data: bytes, mode: int) -> None:
    from efface.files import write_bytes

    write_bytes(path, data, mode)
