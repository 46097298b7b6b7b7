"""A partner's own folder: rows of its records, which never leave it, and the statement that it made last.

    partner.json    name, admission, key of the tags
    data/           a partial: rows, names and sums
    share.json      the last statement, as it was sent

Forgetting makes the folder anew without the records, beside the old one, and then takes its place: killed at
any point it is the old one or the new one, and nothing of what was forgotten is left in the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from efface import files
from efface.data.records import Records
from efface.errors import EffaceError, RequestError
from efface.model.mixed_linear import MixedLinear
from efface.model.request import Request, meant
from efface.parts.compact.addend import Addend
from efface.parts.compact.guest import digest_of
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.stored_rows import StoredRows
from efface.parts.training_set import TrainingSet
from efface.progress import Progress
from efface.receipts.keys import SigningKey, now
from efface.shards.partial import Partial
from efface.shards.share import NAME, write_share
from efface.shards.statement import Statement, sealed, unsealed
from efface.workspace.disk import remove
from efface.workspace.forgotten import tag
from efface.workspace.partners import Invitation

SCHEMA = "efface.partner/1"
FILE, DATA = "partner.json", "data"


@dataclass(frozen=True)
class Partner:
    """A partner and its records. ``said`` are the bytes of its last statement."""

    invitation: Invitation
    partial: Partial
    said: bytes

    @property
    def statement(self) -> Statement:
        return unsealed(self.said, None)[0]

    @property
    def sums(self) -> Statistics:
        assert self.partial.data.sums is not None
        return self.partial.data.sums

    @property
    def tags(self) -> frozenset[str]:
        return _tags(self.partial.data, self.invitation)

    @classmethod
    def join(
        cls,
        folder: Path,
        model: MixedLinear,
        records: Records,
        invitation: Invitation,
        *,
        key: SigningKey | None = None,
        minimum_people: int = 1,
        progress: Progress | None = None,
    ) -> Partner:
        """Rows of the records, kept in ``folder``, and a first statement about them."""
        if folder.exists():
            raise EffaceError(f"{folder} is there already.", "choose another --out, or delete it.")
        _require_people(records, minimum_people)
        _require_once(records)
        partial = Partial.make(model, records, invitation.name, progress)
        made = cls(invitation, partial, _said(invitation, partial, (), key))
        made._write(_beside(folder, "next"))
        os.rename(_beside(folder, "next"), folder)
        return made

    @classmethod
    def open(cls, folder: Path) -> Partner:
        """The folder as it is; what a kill left beside it is put in order first."""
        _settle(folder)
        values = files.read_json(folder / FILE, SCHEMA)
        invitation = Invitation.of(folder / FILE, values)
        return cls(invitation, Partial.load(folder / DATA), (folder / NAME).read_bytes())

    def positions(self, request: Request) -> np.ndarray:
        """Where the records that it names are; RequestError if there are none."""
        records = self.partial.data.records
        return meant(request, records.owners)[0].positions(records)

    def forget(self, folder: Path, request: Request, key: SigningKey | None = None) -> Partner:
        """Without these records, in the same folder, with a statement that follows from the last one."""
        data = _without(self.partial.data, self.positions(request))
        partial = replace(self.partial, data=data)
        before = self.statement
        history = (*before.history, before.digest)
        said = _said(self.invitation, partial, history, key)
        made = Partner(self.invitation, partial, said)
        made._write(_beside(folder, "next"))
        os.rename(folder, _beside(folder, "old"))
        os.rename(_beside(folder, "next"), folder)
        remove(_beside(folder, "old"))
        return made

    def find(self, tags: Iterable[str]) -> dict[str, str]:
        """The ids of records by their tags; tags of no record are left out."""
        wanted, records = set(tags), self.partial.data.records
        tagged = [tag(self.invitation.tag_key, digest) for digest in records.digests]
        pairs = zip(tagged, records.ids, strict=True)
        return {found: record_id for found, record_id in pairs if found in wanted}

    def send(self, folder: Path) -> None:
        """The message: its last statement, sums and tags. It can be sent again."""
        write_share(folder, self.said, self.sums, self.tags)

    def _write(self, folder: Path) -> None:
        remove(folder)
        files.make_folder(folder, files.PRIVATE_FOLDER)
        self.partial.save(folder / DATA)
        files.write_bytes(folder / NAME, self.said)
        known = self.invitation
        values = {"name": known.name, "admission": known.admission, "tag_key": known.tag_key.hex()}
        files.write_json(folder / FILE, {"schema": SCHEMA, **values})


def _said(
    invitation: Invitation, partial: Partial, history: tuple[str, ...], key: SigningKey | None
) -> bytes:
    data = partial.data
    assert data.sums is not None
    statement = Statement(
        partner=invitation.name,
        admission=invitation.admission,
        history=history,
        given=partial.given,
        num_rows=len(data),
        num_people=len(set(data.records.owners)),
        sums=data.sums.digest(),
        tags=digest_of(_tags(data, invitation)),
        time=now(),
    )
    return sealed(statement, key)


def _tags(data: TrainingSet, invitation: Invitation) -> frozenset[str]:
    return frozenset(tag(invitation.tag_key, digest) for digest in data.digests)


def _without(data: TrainingSet, positions: np.ndarray) -> TrainingSet:
    """What stays, its sums, and its rows still to be read: the old folder is there until they are written."""
    assert data.rows is not None
    assert data.sums is not None
    sums, stay = data.sums.copy(), data.retained(positions)
    Addend((data.rows.select(positions),)).out_of(sums)
    source = (
        data.rows if isinstance(data.rows, StoredRows) else StoredRows.of(data.rows, data.digests)
    )
    digests = [data.digests[int(i)] for i in stay]
    rows = StoredRows.gathered((source,), digests, np.zeros(len(stay), np.int64), stay)
    left = replace(data, rows=None).without(positions)
    return replace(left, rows=rows, sums=sums)


def _require_people(records: Records, minimum: int) -> None:
    people = len(set(records.owners))
    if people < minimum:
        message = f"these are records of {people} people: their sums would tell much of each."
        fix = f"bring {minimum} or more together, or lower --minimum-people if they know that."
        raise RequestError(message, fix)


def _require_once(records: Records) -> None:
    """One tag an image: a copy could not be told from an image that came twice."""
    seen: dict[str, str] = {}
    for record in records:
        if record.digest in seen:
            message = f"{seen[record.digest]!r} and {record.id!r} are the same image."
            raise EffaceError(message, "take one of them away: partners' images count once.")
        seen[record.digest] = record.id


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def _settle(folder: Path) -> None:
    """After a kill: before both renames the old folder stands, from the first one on the new one does."""
    following, old = _beside(folder, "next"), _beside(folder, "old")
    if not folder.exists() and old.exists() and following.exists():
        os.rename(following, folder)
    for left in (following, old) if folder.exists() else ():
        remove(left)
