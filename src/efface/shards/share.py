"""A share: the message in which a partner sends sums, and never rows. A folder of three files.

``share.json`` is the statement, signed if the partner has a key; ``sums.safetensors`` are the exact sums of
its records' rows, ``tags.safetensors`` a keyed tag of each record. Whoever takes one in has nothing but its
word for the rows behind the sums; what can be told without them is checked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from efface import files
from efface.errors import EffaceError, FormatError, LedgerError
from efface.guarantee.certificates import Given
from efface.parts.compact.guest import Guest, digest_of, read_tags, write_tags
from efface.parts.compact.plausible import objection
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.sums_file import read_sums, write_sums
from efface.receipts.encoding import LARGEST
from efface.receipts.keys import PublicKeys
from efface.shards.same_model import require_same
from efface.shards.statement import FIX, Statement, unsealed
from efface.workspace.disk import remove

NAME, SUMS, TAGS = "share.json", "sums.safetensors", "tags.safetensors"


@dataclass(frozen=True)
class Share:
    """A message that was read. ``keyid``: which of the partner's keys signed it, if one had to."""

    statement: Statement
    sums: Statistics
    tags: frozenset[str]
    keyid: str | None = None

    @classmethod
    def load(cls, folder: Path, ring: PublicKeys | None = None) -> Share:
        """The message, if it is what its statement says; ``ring``: it must be signed by one of it."""
        statement, keyid = unsealed(_bytes(folder / NAME), ring)
        sums, tags = read_sums(folder / SUMS), read_tags(folder / TAGS)
        found = sums.digest(), digest_of(tags), sums.num_rows, len(tags)
        number = statement.num_rows
        if found != (statement.sums, statement.tags, number, number) or sums.limbs != 1:
            raise LedgerError(f"{folder}: sums or tags are not those of its statement.", FIX)
        return cls(statement, sums, tags, keyid)

    @property
    def guest(self) -> Guest:
        said = self.statement
        numbers = said.num_rows, said.num_people
        kept = (self.sums, self.tags)
        return Guest(said.partner, said.admission, said.digest, *numbers, self.keyid, kept)

    def check_model(self, ours: Given, empty: Statistics) -> tuple[str, ...]:
        """Refuse sums that were made for another model, or that no rows can have; returns notes."""
        notes = require_same(f"the message of {self.statement.partner}", self.statement.given, ours)
        alike = (empty.num_features, empty.num_outputs, empty.bits, empty.target_bits)
        if (
            self.sums.num_features,
            self.sums.num_outputs,
            self.sums.bits,
            self.sums.target_bits,
        ) != alike:
            raise FormatError(f"{self.sums!r} are not sums of this model.", FIX)
        self._require_possible(self.sums)
        return notes

    def check_after(self, before: Guest | None) -> None:
        """Refuse what does not follow from what the partner has here: its statements, tags and sums."""
        said = self.statement
        if before is None:
            return
        if before.head == said.digest:
            raise EffaceError(f"this message of {said.partner} was taken in already.", "go on.")
        if before.head not in said.history:
            message = f"this message of {said.partner} does not follow from the last one taken in."
            raise EffaceError(message, "it is an old one, or another's: ask for the newest.")
        if not before.num_rows:
            return
        if not self.tags < before.tags:
            message = f"this message of {said.partner} has records that were not there before."
            raise EffaceError(message, "forgetting only takes away: ask the partner.")
        self._require_possible(before.sums_without(self.guest))

    def _require_possible(self, sums: Statistics) -> None:
        wrong = objection(sums)
        if wrong is not None:
            message = f"the message of {self.statement.partner} has no sums of rows: {wrong}."
            raise FormatError(message, FIX)


def write_share(folder: Path, statement: bytes, sums: Statistics, tags: frozenset[str]) -> None:
    """The folder is there with all that is in it, or it is not."""
    if folder.exists():
        raise EffaceError(f"{folder} is there already.", "choose another folder, or delete it.")
    making = folder.with_name(f".{folder.name}.{os.getpid()}.making")
    remove(making)
    files.make_folder(making, files.PRIVATE_FOLDER)
    try:
        files.write_bytes(making / NAME, statement)
        write_sums(making / SUMS, sums)
        write_tags(making / TAGS, tags)
        os.rename(making, folder)
    except BaseException:
        remove(making)
        raise


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FormatError(f"{path.parent} is no partner's message.", "`efface partner` makes them.")
    with path.open("rb") as file:
        return file.read(LARGEST + 1)
