"""The manifest of a release: the SHA-256 of everything that a workspace owns, signed with its key.

Only what may be missing or longer without harm is not in it: the lock, the request in flight, and the
journal, which has a chain and a head of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efface import files
from efface.errors import LedgerError
from efface.workspace.disk import file_digest
from efface.workspace.forgotten import keyed

SCHEMA = "efface.manifest/2"
NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """``files`` by their path below the workspace; ``activations`` is the digest of the retained rows."""

    files: Mapping[str, str]
    activations: str | None = None

    def _values(self) -> dict[str, Any]:
        return {"files": dict(self.files), "activations": self.activations}

    def _signature(self, key: bytes) -> str:
        return keyed(key, json.dumps(self._values(), sort_keys=True))

    def save(self, folder: Path, key: bytes) -> None:
        values = {"schema": SCHEMA, **self._values(), "hmac": self._signature(key)}
        files.write_json(folder / NAME, values, mode=files.PRIVATE)

    @classmethod
    def load(cls, folder: Path, key: bytes) -> Manifest:
        """LedgerError if it is not the one that was signed."""
        values = files.read_json(folder / NAME, SCHEMA)
        try:
            found = cls({str(k): str(v) for k, v in values["files"].items()}, values["activations"])
            same = hmac.compare_digest(found._signature(key), str(values["hmac"]))
        except (KeyError, TypeError, AttributeError) as problem:
            raise _changed(folder) from problem
        if not same:
            raise _changed(folder)
        return found

    def wrong(self, root: Path) -> Iterator[str]:
        """Files that are missing, or not what they were."""
        for name, digest in self.files.items():
            path = root / name
            if path.is_symlink() or not path.is_file() or file_digest(path) != digest:
                yield name


def _changed(folder: Path) -> LedgerError:
    message = f"the manifest in {folder.parent.name}/{folder.name} is not the one that was signed."
    return LedgerError(message, "restore the workspace from a copy.")


def digests_of(root: Path, paths: list[Path]) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): file_digest(path) for path in sorted(paths)}


def bytes_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
