"""The files of receipts in a workspace: which are its own, and which are left over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FOLDER, SETTINGS = "receipts", "signing.json"
FILE = re.compile(r"(\d+)(\.kept)?\.json(\.tmp)?")


def numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    """The receipts and the numbers of their releases; other files are not ours."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = FILE.fullmatch(path.name)
        if found is not None:
            yield int(found[1]), path


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
