"""Copies in a folder or in an object store: put the new files, then CURRENT, delete the older ones, look."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from efface import files
from efface.service.hooks.hook import Hook, HookError, PublicModel
from efface.workspace.published import CURRENT

OURS = re.compile(r"(core|releases|certificates)/\d+[./].+|CURRENT")  # others' files are left alone


class Shelf(ABC):
    """Somewhere files lie under names."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """The file is the old one or the new one, never half."""

    @abstractmethod
    def names(self) -> set[str]:
        """Of all files there, looked up anew."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """It may be gone already."""


class FolderShelf(Shelf):
    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, name: str, data: bytes) -> None:
        target = self.path / name
        if not (target.is_file() and target.read_bytes() == data):
            files.write_bytes(target, data, files.PUBLIC)

    def names(self) -> set[str]:
        found = (path for path in self.path.rglob("*") if path.is_file() or path.is_symlink())
        return {path.relative_to(self.path).as_posix() for path in found}

    def delete(self, name: str) -> None:
        target = self.path / name
        target.unlink(missing_ok=True)
        if not any(target.parent.iterdir()):
            target.parent.rmdir()


class StoreShelf(Shelf):
    """Anything that fsspec knows by URL."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as problem:
            raise HookError(
                "object stores need fsspec.", 'pip install "efface[service]".'
            ) from problem
        self._files, root = url_to_fs(url)
        self._root = str(root).rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        self._made(name)
        self._files.pipe_file(f"{self._root}/{name}", data)

    def _made(self, name: str) -> None:
        """Where there are folders they have to be there first."""
        self._files.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)

    def names(self) -> set[str]:
        self._files.invalidate_cache()
        found: Any = self._files.find(self._root) if self._files.exists(self._root) else []
        return {str(path)[len(self._root) :].lstrip("/") for path in found}

    def delete(self, name: str) -> None:
        if self._files.exists(f"{self._root}/{name}"):
            self._files.rm_file(f"{self._root}/{name}")


class ShelfHook(Hook):
    """Keeps a copy of the served release, and of nothing older, on a shelf."""

    def __init__(self, name: str, shelf: Shelf) -> None:
        self.name, self.shelf = name, shelf

    def run(self, model: PublicModel) -> None:
        wanted = model.files()
        for name, path in wanted.items():
            self.shelf.put(name, path.read_bytes())
        for name in self._older(set(wanted)):
            self.shelf.delete(name)
        left = self._older(set(wanted))
        if left:
            message = f"{len(left)} files of older releases are still there, {left[0]} for one."
            raise HookError(message, "look who may delete there.")
        missing = set(wanted) - self.shelf.names()
        if missing or CURRENT not in wanted:
            raise HookError(f"{len(missing)} files did not arrive.", "look at the space there.")

    def _older(self, wanted: set[str]) -> list[str]:
        return sorted(n for n in self.shelf.names() if OURS.fullmatch(n) and n not in wanted)
