"""What is kept of forgotten images: a keyed digest each, to refuse them when they come again.

HMAC-SHA-256 of the content digest, under a key that lies in ``private/`` and nowhere else. Sorted, one a
line, in a file that is written anew with every release: neither which of them came in one request nor when
can be read from it. Whoever has an image *and* the key can tell that it was forgotten here; nobody else can.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efface import files
from efface.errors import FormatError
from efface.network.saved import is_digest

SCHEMA = "efface.forgotten/1"
KEY_SCHEMA = "efface.key/1"
NAME, KEY = "forgotten.json", "key.json"


def new_key() -> bytes:
    return secrets.token_bytes(32)


def keyed(key: bytes, text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return hmac.new(key, data, "sha256").hexdigest()


def save_key(path: Path, key: bytes) -> None:
    files.write_json(path, {"schema": KEY_SCHEMA, "key": key.hex()}, mode=files.PRIVATE)


def load_key(path: Path) -> bytes:
    value: Any = files.read_json(path, KEY_SCHEMA).get("key")
    if not is_digest(value):
        raise FormatError(f"{path} holds no key.", "restore it from a copy.")
    return bytes.fromhex(value)


@dataclass(frozen=True)
class Forgotten:
    """A set of content digests that answers ``digest in forgotten`` but cannot be listed."""

    key: bytes
    names: frozenset[str] = frozenset()

    def __contains__(self, digest: str) -> bool:
        return bool(self.names) and keyed(self.key, digest) in self.names

    def __len__(self) -> int:
        return len(self.names)

    def changed(self, forgotten: Iterable[str] = (), restored: Iterable[str] = ()) -> Forgotten:
        """With these content digests, and without those that were taken in again."""
        more, less = ({keyed(self.key, d) for d in digests} for digests in (forgotten, restored))
        return Forgotten(self.key, (self.names | more) - less)

    def save(self, folder: Path) -> None:
        values = {"schema": SCHEMA, "hmac_sha256": sorted(self.names)}
        files.write_json(folder / NAME, values, mode=files.PRIVATE)

    @classmethod
    def load(cls, folder: Path, key: bytes) -> Forgotten:
        names = files.read_json(folder / NAME, SCHEMA).get("hmac_sha256")
        if not isinstance(names, list) or not all(map(is_digest, names)):
            raise FormatError(f"{folder / NAME} is not as it was saved.", "restore it from a copy.")
        return cls(key, frozenset(names))
