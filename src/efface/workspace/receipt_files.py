"""The files of receipts in a workspace, and of the pages beside them: which are its own, which left over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FOLDER, SETTINGS = "receipts", "signing.json"
FILE = re.compile(r"(\d+)(\.kept)?\.(json|html)(\.tmp)?")


def numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    """Receipts and pages with the numbers of their releases; other files are not ours."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = FILE.fullmatch(path.name)
        if found is not None:
            yield int(found[1]), path


def receipts(folder: Path) -> Iterator[tuple[int, Path]]:
    """The receipts alone, one a release: the form that is valid now."""
    return ((n, path) for n, path in numbered(folder) if path.name == f"{n}.json")


def left_over(folder: Path, current: int) -> list[Path]:
    """What a finished request does not leave."""
    return [
        path
        for number, path in numbered(folder)
        if path.suffix == ".tmp" or number > current or (number < current and ".kept" in path.name)
    ]


def owned(folder: Path) -> set[str]:
    """By their paths below the workspace."""
    return {f"{FOLDER}/{path.name}" for _, path in numbered(folder)} | {f"private/{SETTINGS}"}
