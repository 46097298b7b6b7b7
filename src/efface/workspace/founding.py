"""Where a workspace may be made: in an empty folder, or over a workspace of ours. Nothing else is deleted."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from efface.errors import EffaceError, FormatError
from efface.workspace import superseded
from efface.workspace.disk import remove
from efface.workspace.forgotten import KEY
from efface.workspace.inventory import BUCKET, CACHE
from efface.workspace.paths import ROWS
from efface.workspace.published import CURRENT, current
from efface.workspace.told import BESIDE, WorkspaceLedger
from efface.workspace.told import NAME as LEDGER

PROBE = 1 << 16  # bytes
EMPTY = frozenset({"lock"})  # made by whoever was about to work here


def check_folder(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder with somebody else's files, and a workspace that is not to be replaced."""
    if path.is_symlink() and not path.exists():
        raise EffaceError(f"{path} is a link to nothing.", "choose another folder.")
    if path.exists() and not path.is_dir():
        raise EffaceError(f"{path} is not a folder.", "choose another one.")
    if not path.exists() or {entry.name for entry in path.iterdir()} <= EMPTY:
        return
    if (path / CURRENT).exists():
        try:
            current(path)
        except FormatError as problem:
            raise EffaceError(problem.message, "choose another folder.") from problem
        if not overwrite:
            fix = "choose another folder (--out), or overwrite it (--overwrite)."
            raise EffaceError(f"there already is a model in {path}.", fix)
    elif not _is_half_made(path):
        raise EffaceError(
            f"{path} is not empty, and no workspace of efface.",
            "choose another folder: what is in this one stays as it is.",
        )


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def check_room(path: Path, num_bytes: int) -> None:
    """Whether the model will fit, as far as that can be told before training."""
    there = _existing(path)
    free = shutil.disk_usage(there).free
    if free < num_bytes:
        message = f"the model needs {num_bytes / 1e9:.2f} GB, {there} has {free / 1e9:.2f} GB free."
        raise EffaceError(message, "make room, or choose another --out.")


def check_writable(path: Path) -> None:
    """Try it now: after hours of training it would be too late. Nothing is left behind."""
    there = _existing(path)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        message = f"nothing can be written to {there} ({problem.strerror or problem})."
        raise EffaceError(
            message, "make room and give permission, or choose another --out."
        ) from None


def _is_half_made(path: Path) -> bool:
    """A training that was cut short before anything was published: the ledger comes first, and says so."""
    ledger = WorkspaceLedger(path, looks=lambda: True)
    if not (ledger.path.is_file() or ledger.journal.exists()):
        return False
    try:
        begun, told = ledger.is_of_training(), bool(ledger.entries())
    except (EffaceError, OSError):
        return False
    names = {entry.name for entry in path.iterdir()}  # before the first row there is nothing else
    return begun and (told or names <= {*EMPTY, LEDGER, *BESIDE})


def clear_folder(path: Path) -> None:
    """Delete what a training that was cut short has left; the ledger stays, as do all other files."""
    for found in list(_made(path)):
        remove(found)


def _made(path: Path) -> Iterator[Path]:
    for folder in ("core", "releases", "private"):
        if (path / folder).is_dir():
            yield from (entry for entry in (path / folder).iterdir() if entry.name.isdigit())
    yield from (path / "private" / name for name in (KEY, f"{KEY}.tmp"))
    yield path / f"{CURRENT}.tmp"
    yield from (found for _, found in superseded.numbered(path / "certificates"))
    for place, ours in ((path / "private" / ROWS, BUCKET), (path / "activations", CACHE)):
        if place.is_dir():
            yield from (entry for entry in place.iterdir() if ours.fullmatch(entry.name))
