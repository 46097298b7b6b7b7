"""A guest: what a partner has put into a model, as exact sums. Its images, rows and names stay with it.

Of each of its records there is a keyed tag, so that one image is not taken in twice. Sums and tags are read
when they are asked for; a release that does not change them shares the files of the one before.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from efface import files
from efface.errors import FormatError
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.sums_file import read_sums, write_sums

SCHEMA = "efface.guests/1"
NAME = "guests.json"
TAG_BYTES = 16
ADMISSION = re.compile(r"[0-9a-f]{32}")
FACTS = ("name", "admission", "head", "num_rows", "num_people", "keyid")


@dataclass(frozen=True, eq=False)
class Guest:
    """One partner. ``admission`` is what it was admitted under, ``head`` the digest of its last statement.

    ``kept`` are its sums and the tags of its records, or the files that hold them; a guest without rows has
    left, and its head stays so that none of its earlier statements can come again. ``keyid``: who signed.
    """

    name: str
    admission: str
    head: str
    num_rows: int
    num_people: int
    keyid: str | None
    kept: tuple[Statistics | Path, frozenset[str] | Path]

    @cached_property
    def sums(self) -> Statistics:
        sums = self.kept[0]
        return read_sums(sums) if isinstance(sums, Path) else sums

    @cached_property
    def tags(self) -> frozenset[str]:
        tags = self.kept[1]
        return read_tags(tags) if isinstance(tags, Path) else tags

    def sums_without(self, later: Guest) -> Statistics:
        """Of the records that are no longer there ``later``; RequestError if not only rows can be lost."""
        gone = self.sums.copy()
        if later.num_rows:
            gone.subtract(later.sums)
        return gone

    def save(self, folder: Path) -> dict[str, Any]:
        """Its files, if it has rows; returns what ``guests.json`` has of it."""
        if self.num_rows:
            sums, tags = _places(folder, self.admission)
            if isinstance(self.kept[0], Path) and isinstance(self.kept[1], Path):
                _share(self.kept[0], sums)
                _share(self.kept[1], tags)
            else:
                write_sums(sums, self.sums)
                write_tags(tags, self.tags)
        return {name: getattr(self, name) for name in FACTS}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> Guest:
        """ValueError, KeyError or TypeError if ``facts`` are not those of :meth:`save`."""
        if not ADMISSION.fullmatch(facts["admission"]):  # it becomes a path
            raise ValueError("an admission is none")
        if any(type(facts[name]) is not int or facts[name] < 0 for name in FACTS[3:5]):
            raise ValueError("a number is none")
        return cls(
            **{name: facts[name] for name in FACTS}, kept=_places(folder, facts["admission"])
        )


def save_guests(folder: Path, guests: Sequence[Guest]) -> None:
    facts = [guest.save(folder) for guest in guests]
    files.write_json(folder / NAME, {"schema": SCHEMA, "guests": facts})


def load_guests(folder: Path) -> tuple[Guest, ...]:
    """None where there is no such file."""
    path = folder / NAME
    if not path.is_file():
        return ()
    values = files.read_json(path, SCHEMA)
    with files.as_saved(path):
        return tuple(Guest.load(folder, dict(facts)) for facts in values["guests"])


def write_tags(path: Path, tags: Iterable[str]) -> None:
    array = np.frombuffer(_joined(tags), np.uint8).reshape(-1, TAG_BYTES)
    files.write_arrays(path, {"tags": array})


def digest_of(tags: Iterable[str]) -> str:
    """SHA-256 of them."""
    return hashlib.sha256(_joined(tags)).hexdigest()


def _joined(tags: Iterable[str]) -> bytes:
    """In order: nothing tells in which they came."""
    return bytes.fromhex("".join(sorted(tags)))


def read_tags(path: Path) -> frozenset[str]:
    """The inverse; FormatError if it is no such file."""
    array = files.read_arrays(path).get("tags")
    if array is None or array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != TAG_BYTES:
        raise FormatError(f"{path} holds no tags.", "ask for it again, or restore it from a copy.")
    tags = frozenset(row.tobytes().hex() for row in array)
    if len(tags) != len(array):
        raise FormatError(f"{path}: a tag is there twice.", "take in each image once.")
    return tags


def _places(folder: Path, admission: str) -> tuple[Path, Path]:
    start = f"guest-{admission}"
    return folder / f"{start}.sums.safetensors", folder / f"{start}.tags.safetensors"


def _share(source: Path, target: Path) -> None:
    """One file under two names where the disk can do that, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(files.PRIVATE)
