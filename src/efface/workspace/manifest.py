"""The manifest of a release: the SHA-256 of everything that a workspace owns, signed with its key.

Only what may be missing or longer without harm is not in it: the lock, and the ledger, which has a chain and
a head of its own. The head as it was when the release was made is here: nobody can write another chain.
Of exact sums, the largest of files, it has the digest that the certificate has: their file follows from them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from efface import files
from efface.errors import LedgerError
from efface.ledger import Head
from efface.parts.compact.sums_file import SUMS, holds
from efface.workspace.disk import file_digest
from efface.workspace.forgotten import keyed

SCHEMA = "efface.manifest/2"
NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """``files`` by their path below the workspace; ``activations`` is the digest of the retained rows;
    ``ledger`` the head of the ledger (before there was one: None)."""

    files: Mapping[str, str]
    activations: str | None = None
    ledger: Head | None = None

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {"files": dict(self.files), "activations": self.activations}
        return values if self.ledger is None else {**values, "ledger": asdict(self.ledger)}

    def signature(self, key: bytes) -> str:
        return keyed(key, json.dumps(self._values(), sort_keys=True))

    def save(self, folder: Path, key: bytes) -> None:
        values = {"schema": SCHEMA, **self._values(), "hmac": self.signature(key)}
        files.write_json(folder / NAME, values, mode=files.PRIVATE)

    @classmethod
    def load(cls, folder: Path, key: bytes) -> Manifest:
        """LedgerError if it is not the one that was signed."""
        values = files.read_json(folder / NAME, SCHEMA)
        try:
            listed = {str(k): str(v) for k, v in values["files"].items()}
            head = None if values.get("ledger") is None else Head(**values["ledger"])
            found = cls(listed, values["activations"], head)
            same = hmac.compare_digest(found.signature(key), str(values["hmac"]))
        except (KeyError, TypeError, AttributeError) as problem:
            raise _changed(folder) from problem
        if not same:
            raise _changed(folder)
        return found

    def wrong(self, root: Path) -> Iterator[str]:
        """Files that are missing, or not what they were."""
        for name, digest in self.files.items():
            path = root / name
            if path.is_symlink() or not path.is_file() or not _is(path, digest):
                yield name


def _is(path: Path, digest: str) -> bool:
    if digest.startswith(SUMS):
        return holds(path, digest.removeprefix(SUMS))
    return file_digest(path) == digest


def _changed(folder: Path) -> LedgerError:
    message = f"the manifest in {folder.parent.name}/{folder.name} is not the one that was signed."
    return LedgerError(message, "restore the workspace from a copy.")


def digests_of(
    root: Path, paths: list[Path], known: Mapping[Path, str] | None = None
) -> dict[str, str]:
    """By their names below ``root``; what is ``known`` (``files.hashing``) is not read."""
    had = known or {}
    return {p.relative_to(root).as_posix(): had.get(p) or file_digest(p) for p in sorted(paths)}


def bytes_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
