"""What lies in a workspace: which files are its own, which are left over, what they are called.

Nothing here writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efface import files
from efface.errors import FormatError, LedgerError
from efface.network.saved import is_digest
from efface.parts.compact.kept_factor import NAME as FACTOR
from efface.parts.compact.stored_rows import bucket_names as listed_buckets
from efface.parts.training_set import ROWS as ROWS_INDEX
from efface.workspace import receipt_files, superseded
from efface.workspace.forgotten import KEY, Forgotten, load_key
from efface.workspace.manifest import NAME as MANIFEST
from efface.workspace.manifest import Manifest
from efface.workspace.paths import PARTNERS, Paths
from efface.workspace.published import CURRENT, Current, current
from efface.workspace.steps import Entry, Milestone
from efface.workspace.told import WorkspaceLedger

if TYPE_CHECKING:
    from torch import nn

    from efface.network.activations import ActivationCache

SCHEMA = "efface.workspace/3"
FOLDERS = {  # whatever the umask; what is served or published can be read
    "core": files.PUBLIC_FOLDER,
    "releases": files.PUBLIC_FOLDER,
    "certificates": files.PUBLIC_FOLDER,
    "private": files.PRIVATE_FOLDER,
    "activations": files.PRIVATE_FOLDER,
}
BUCKET = re.compile(r"[0-9a-f]{64}\.safetensors(\.tmp)?")
CACHED = ("rows.bin", "index.json", "index.log")
CACHE = re.compile(r"[0-9a-f]{24}-float(16|32)")


class Inventory:
    """The directory of one model, as far as it can be told without opening the model."""

    def __init__(self, path: Path | str, module: nn.Module | None = None) -> None:
        self.path, self.module = Path(path), module
        self.paths = Paths(self.path)
        self.ledger = WorkspaceLedger(self.path, lambda: self.only_looks)
        self.only_looks = False  # then nothing is written, not even to finish what was cut short
        self._settings: tuple[int, dict[str, Any]] | None = None

    @property
    def number(self) -> int:
        """Of the published release."""
        return self.current.release

    @property
    def current(self) -> Current:
        found = current(self.path)
        if found is None:
            fix = "give a folder that `efface train` has written."
            there = self.path.exists()
            what = f"{self.path} is not a workspace." if there else f"there is no {self.path}."
            raise FormatError(what, fix)
        return found

    @property
    def base(self) -> Path:
        """The folder of the published release's core and settings."""
        return self.paths.core(self.current.core)

    @property
    def settings(self) -> dict[str, Any]:
        """Of the core that is published now: somebody may have trained anew in the meantime."""
        number = self.current.core
        if self._settings is None or self._settings[0] != number:
            self._settings = number, checked(files.read_json(self.base / "model.json", SCHEMA))
        return self._settings[1]

    @property
    def cache(self) -> ActivationCache | None:
        values = self.settings["activations"]
        if values is None:
            return None
        from efface.network.activations import ActivationCache

        folder, recover = self.paths.activations, not self.only_looks
        return ActivationCache(folder, values["prefix_digest"], values["shape"], recover=recover)

    @property
    def key(self) -> bytes:
        return load_key(self.path / "private" / KEY)

    @property
    def forgotten(self) -> Forgotten:
        """What was forgotten, as a set that can be asked for a content digest but not listed."""
        return Forgotten.load(self.paths.private(self.number), self.key)

    @property
    def manifest(self) -> Manifest:
        return Manifest.load(self.paths.private(self.number), self.key)

    def strays(self) -> list[Path]:
        """What a finished request does not leave behind: half-made and old files."""
        now = self.current
        found = [self.paths.staging, self.path / f"{CURRENT}.tmp", *self.ledger.strays()]
        for folder, number in (
            ("releases", now.release),
            ("private", now.release),
            ("core", now.core),
        ):
            for path in _entries(self.path / folder):
                if path.name.isdigit() and path.name != str(number):
                    found.append(path)
                elif path.name == str(number):
                    found += path.glob("*.tmp")
        found += self.unused_buckets() + self.unused_activations()
        found += [
            path
            for number, path in superseded.numbered(self.paths.certificates)
            if superseded.is_left_over(number, path, now.release)
        ]
        found += receipt_files.left_over(self.path / receipt_files.FOLDER, now.release)
        return sorted(path for path in found if path.exists() or path.is_symlink())

    def owned(self) -> set[str]:
        """The files of a settled workspace, by their paths below it; any other file is not its own."""
        found = {CURRENT, "lock", *self.ledger.owned(), *self.manifest.files}
        found |= receipt_files.owned(self.path / receipt_files.FOLDER)
        found |= {f"private/{self.number}/{MANIFEST}", f"private/{PARTNERS}"}
        if self.paths.warm.exists():
            found |= {"private/warm.json", f"private/{self.number}/{FACTOR}"}
        cache = self.cache
        if cache is not None:
            found |= {f"activations/{cache.path.name}/{n}" for n in CACHED}
        return found

    def settled(self) -> bool:
        """Whether no request is running or was cut short, and nothing is to be taken over."""
        if self.ledger.is_earlier():
            return False
        entries = self.ledger.entries()
        ended = bool(entries) and entries[-1].ended and self.ledger.pending() is None
        return ended and self._is_told(entries) and not self.strays()

    def _is_told(self, entries: Sequence[Entry]) -> bool:
        """Whether the published release is in the ledger, and no later one is finished."""
        told = {
            entry.number for entry in entries if entry.step in (Milestone.PREPARED, Milestone.DONE)
        }
        done = [entry.number for entry in entries if entry.step is Milestone.DONE]
        return self.number in told and max(done, default=0) <= self.number

    def check_ledger(self) -> None:
        """LedgerError if ledger, manifest and CURRENT do not belong together. Hold the lock."""
        noted = self.manifest.ledger
        kept = () if noted is None or self.ledger.is_earlier() else (noted,)
        if not self._is_told(self.ledger.entries(*kept)):
            raise LedgerError(
                f"the ledger says nothing of release {self.number}, which is published.",
                "ledger or CURRENT were changed: restore them from a copy.",
            )

    # --- rows and activations ---------------------------------------------------------------------

    def bucket_names(self, number: int) -> list[str]:
        index = self.paths.private(number) / ROWS_INDEX
        return listed_buckets(index) if index.is_file() else []

    def unused_buckets(self) -> list[Path]:
        """Rows that are not the published release's."""
        if not self.paths.buckets.is_dir():
            return []
        used = set(self.bucket_names(self.number))
        ours = [path for path in self.paths.buckets.iterdir() if BUCKET.fullmatch(path.name)]
        return [path for path in ours if path.name not in used]

    def unused_activations(self) -> list[Path]:
        """Of cores before this one."""
        cache = self.cache
        used = None if cache is None else cache.path.name
        ours = [p for p in _entries(self.paths.activations) if CACHE.fullmatch(p.name)]
        return [path for path in ours if path.name != used]


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a workspace, if they are what they should be."""
    classes, activations = values.get("classes"), values.get("activations")
    named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    shaped = activations is None or (
        isinstance(activations, dict)
        and is_digest(activations.get("prefix_digest"))
        and isinstance(activations.get("shape"), list)
        and all(type(n) is int and 0 < n < 1 << 24 for n in activations["shape"])
    )
    known = {"user", "core_digest", "num_weights", "sigma", "activations"} <= set(values)
    if not (named and shaped and known):
        raise FormatError("the workspace's model.json is not as it was saved.", "restore it.")
    return values


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
