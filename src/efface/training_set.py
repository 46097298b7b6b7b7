"""What a fitted model keeps of its training records: just what the user part needs, and no images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from efface import files
from efface.activations import Activations
from efface.compact.rows import Rows
from efface.errors import FormatError
from efface.images import Channels
from efface.records import DEFAULT_COHORT, Record, Records, Split
from efface.stored_rows import StoredRows

SCHEMA = "efface.records/2"
ROWS = "rows.json"
CORE_COLUMNS = ("id", "label", "digest")
EMPTY: dict[str, Any] = {  # the other columns, and what a record has where there is none
    "owner": str(Split.CORE),
    "cohort": DEFAULT_COHORT,
    "split": str(Split.CORE),
    "channels": None,
    "extra": {},
}
COLUMNS = (*CORE_COLUMNS, *EMPTY)


@dataclass(frozen=True)
class TrainingSet:
    """User records first, then replayed core records; one row of ``data`` each.

    ``data`` are boundary activations (tangent) or quantised rows (compact).
    """

    records: Records
    replay: Records | None
    labels: Tensor  # (n,)
    activations: Activations | None = None
    rows: Rows | StoredRows | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def digests(self) -> tuple[str, ...]:
        """Content digests of all rows, in order."""
        return self.records.digests + (() if self.replay is None else self.replay.digests)

    @property
    def core_ids(self) -> set[str]:
        return set(self.replay.ids) if self.replay is not None else set()

    def retained(self, forget: np.ndarray) -> np.ndarray:
        """Positions, among all rows, of what stays when the user records at ``forget`` go."""
        keep = np.ones(len(self), dtype=bool)
        keep[forget] = False
        return keep.nonzero()[0]

    def without(self, forget: np.ndarray) -> TrainingSet:
        """The set without these user records; their rows are not part of it any more."""
        keep = self.retained(forget)
        stay = keep[keep < len(self.records)]
        activations = self.activations
        return replace(
            self,
            records=self.records[stay],
            labels=self.labels[torch.from_numpy(keep)],
            activations=None if activations is None else select(activations, keep),
            rows=None if self.rows is None else self.rows.without(forget),
        )

    def plus(self, part: TrainingSet, activations: Activations | None = None) -> TrainingSet:
        """The set with more user records, before the replayed ones; ``activations`` are those of all."""
        at, rows = len(self.records), self.rows
        if rows is None:
            rows = part.rows
        elif part.rows is not None:
            new = part.rows.whole()
            if isinstance(rows, StoredRows):
                rows = rows.plus(at, new, part.digests)
            else:
                rows = rows.insert(at, new)
        return replace(
            self,
            records=self.records + part.records,
            labels=torch.cat([self.labels[:at], part.labels, self.labels[at:]]),
            activations=activations,
            rows=rows,
        )

    # --- files ------------------------------------------------------------------------------------

    def save(self, directory: Path, buckets: Path) -> None:
        """``records.json`` and, if there are rows, ``rows.json`` with those in ``buckets``; activations
        are the cache's.

        Of replayed core records only id, label and digest are kept: their owner may have user records
        too, and then nothing may be left of the name once these are forgotten.
        """
        columns = [_columns(self.records, COLUMNS)]
        columns += [] if self.replay is None else [_columns(self.replay, CORE_COLUMNS)]
        values = dict(zip(("records", "replay"), columns, strict=False))
        files.write_json(directory / "records.json", {"schema": SCHEMA, **values}, indent=None)
        rows = self.rows
        if rows is not None:
            stored = rows if isinstance(rows, StoredRows) else StoredRows.of(rows, self.digests)
            stored.save(directory / ROWS, buckets)

    @classmethod
    def load(cls, directory: Path, classes: Sequence[str], buckets: Path) -> TrainingSet:
        """The inverse of :meth:`save`; asking one of its records for its image is an error."""
        values = files.read_json(directory / "records.json", SCHEMA)
        try:
            records = Records(_records(values["records"]), classes)
            replay = Records(_records(values["replay"]), classes) if "replay" in values else None
        except (KeyError, TypeError, ValueError) as error:
            message = f"records.json in {directory} is not as it was saved: {error!r}."
            raise FormatError(message, "restore it from a copy.") from error
        labels = [records.labels] if replay is None else [records.labels, replay.labels]
        data = cls(records, replay, torch.from_numpy(np.concatenate(labels)))
        if not (directory / ROWS).is_file():
            return data
        return replace(data, rows=StoredRows.load(directory / ROWS, buckets, data.digests))


class NoImage:
    """The source of a record whose image is not kept."""

    def content(self) -> NoReturn:
        raise ValueError("a workspace keeps no images; read the record from its source")


def _columns(records: Records, names: Sequence[str]) -> dict[str, list[Any]]:
    """One list an attribute, which takes a tenth of the time of a dictionary a record; none where all
    of them are as in ``EMPTY``."""
    columns = {name: list(map(attrgetter(name), records)) for name in names}
    if any(columns.get("extra", ())):
        plain = [json.dumps(dict(extra), default=str) for extra in columns["extra"]]
        columns["extra"] = [json.loads(text) for text in plain]
    usual = {name for name in EMPTY if all(value == EMPTY[name] for value in columns.get(name, ()))}
    return {name: values for name, values in columns.items() if name not in usual}


def _records(columns: dict[str, list[Any]]) -> list[Record]:
    n = len(columns["id"])
    given = {name: [value] * n for name, value in EMPTY.items()} | columns
    splits = {str(split): split for split in Split}
    modes = {None: None} | {str(mode): mode for mode in Channels}
    nowhere = NoImage()
    return [
        Record(i, owner, cohort, label, splits[split], nowhere, digest, modes[mode], extra)
        for i, label, digest, owner, cohort, split, mode, extra in zip(
            *(given[name] for name in COLUMNS), strict=True
        )
    ]


def select(activations: Activations, index: np.ndarray) -> Activations:
    """Some rows: still a memory map if it was one, else a copy (so that the others can be freed)."""
    if isinstance(activations, Tensor):
        return activations[torch.from_numpy(index)]
    return activations.select(index)  # type: ignore[attr-defined]
