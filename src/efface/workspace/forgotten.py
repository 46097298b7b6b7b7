"""What is kept of forgotten images: a keyed digest each, to refuse them when they come again.

HMAC-SHA-256 of the content digest, under a key that lies in ``private/`` and nowhere else. Sorted, one a
line, in a file that is written anew with every release: neither which of them came in one request nor when
can be read from it. Whoever has an image *and* the key can tell that it was forgotten here; nobody else can.

Partners know images by tags under a key that is derived from that one (``tag``), and which they have: so that
an image that was forgotten here does not come again in a partner's sums, its tag is kept, too.
"""

from __future__ import annotations

import hmac
import re
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
TAG = re.compile(r"[0-9a-f]{32}")


def new_key() -> bytes:
    return secrets.token_bytes(32)


def keyed(key: bytes, text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return hmac.new(key, data, "sha256").hexdigest()


def tag_key(key: bytes) -> bytes:
    """Under which partners tag their images; it tells nothing of the key that it comes from."""
    return hmac.digest(key, b"efface partners' tags", "sha256")


def tag(key: bytes, digest: str) -> str:
    """Of the image with this content digest, under a :func:`tag_key`: 32 hexadecimal digits."""
    return keyed(key, digest)[:32]


def is_tag(text: Any) -> bool:
    return isinstance(text, str) and TAG.fullmatch(text) is not None


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
    tags: frozenset[str] = frozenset()  # as partners have them; theirs, too

    def __contains__(self, digest: str) -> bool:
        if self.names and keyed(self.key, digest) in self.names:
            return True
        return bool(self.tags) and tag(tag_key(self.key), digest) in self.tags

    def __len__(self) -> int:
        return len(self.names)

    def changed(self, forgotten: Iterable[str] = (), restored: Iterable[str] = ()) -> Forgotten:
        """With these content digests, and without those that were taken in again."""
        gone, back, theirs = tuple(forgotten), tuple(restored), tag_key(self.key)
        more, less = ({keyed(self.key, digest) for digest in some} for some in (gone, back))
        tagged = self.retagged(*([tag(theirs, digest) for digest in some] for some in (gone, back)))
        return Forgotten(self.key, (self.names | more) - less, tagged.tags)

    def retagged(self, forgotten: Iterable[str], restored: Iterable[str]) -> Forgotten:
        """:meth:`changed` by partners' tags."""
        tags = (self.tags | frozenset(forgotten)) - frozenset(restored)
        return Forgotten(self.key, self.names, tags)

    def save(self, folder: Path) -> None:
        values = {"schema": SCHEMA, "hmac_sha256": sorted(self.names), "tags": sorted(self.tags)}
        files.write_json(folder / NAME, values, mode=files.PRIVATE)

    @classmethod
    def load(cls, folder: Path, key: bytes) -> Forgotten:
        values = files.read_json(folder / NAME, SCHEMA)
        names: Any = values.get("hmac_sha256")
        tags: Any = values.get("tags", [])
        listed = isinstance(names, list) and isinstance(tags, list)
        if not listed or not all(map(is_digest, names)) or not all(map(is_tag, tags)):
            raise FormatError(f"{folder / NAME} is not as it was saved.", "restore it from a copy.")
        return cls(key, frozenset(names), frozenset(tags))
