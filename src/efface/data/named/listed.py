"""Data sets that come with text lists: their lines, their pairs, and rows for the files they name."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from efface.data.found import Row
from efface.data.images import FileImage
from efface.data.record import Split
from efface.errors import FormatError, RecordError

AGAIN = "unpack the official archive again."


def lines(path: Path) -> list[str]:
    """The lines that are not empty, without the spaces around them (some lists have CRLF ends)."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as problem:
        raise FormatError(f"{path.name} is missing in {path.parent}.", AGAIN) from problem
    except UnicodeDecodeError as problem:
        raise FormatError(f"{path.name} is not text ({problem}).", AGAIN) from problem
    stripped = [line.strip() for line in text.splitlines()]
    if not any(stripped):
        raise FormatError(f"{path} is empty.", AGAIN)
    return [line for line in stripped if line]


def pairs(path: Path) -> dict[str, str]:
    """Lines of ``key value``; the value may hold spaces, and a key occurs once."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines(path), start=1):
        key, _, value = line.partition(" ")
        if not value.strip() or key in found:
            reason = "repeats a key" if key in found else "is not a key and a value"
            raise FormatError(f"line {number} of {path.name} {reason}: {line!r}.", AGAIN)
        found[key] = value.strip()
    return found


def image_row(
    folder: Path, name: str, label: str, split: Split, *, hidden_rows: int = 0, suffix: str = ""
) -> Row:
    """The image ``folder/name`` + ``suffix``, its own owner; its id is its path below ``folder``."""
    relative = PurePosixPath(name + suffix)
    record_id = relative.as_posix()
    if relative.is_absolute() or ".." in relative.parts or "\0" in name:
        raise RecordError(record_id, f"the list names a file outside of {folder}.", AGAIN)
    source = FileImage(folder / relative, hidden_rows)
    return Row(record_id, label, source, split, owner=record_id)


def check_one_split(train: list[str], test: list[str]) -> None:
    """A test image among the training images makes every accuracy a lie."""
    both = sorted(set(train) & set(test))
    if both:
        raise RecordError(both[0], f"{len(both)} images are in the train and the test list.", AGAIN)
