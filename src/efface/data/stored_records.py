"""The records of a workspace: a column an attribute, no images; a record is made when it is asked for.

A request looks at names and digests of all records, and at a few of them whole. At 10⁵ records, making all of
them would take longer than forgetting.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from efface.data.images import Channels
from efface.data.promises import positions_of
from efface.data.record import DEFAULT_COHORT, Record, Split
from efface.data.records import Records

CORE_COLUMNS = ("id", "label", "digest")
USUAL: dict[str, Any] = {  # the other columns, each with what records have where it is left out
    "owner": str(Split.CORE),
    "cohort": DEFAULT_COHORT,
    "split": str(Split.CORE),
    "channels": None,
    "extra": {},
}
COLUMNS = (*CORE_COLUMNS, *USUAL)


class NoImage:
    """The source of a record whose image is not kept."""

    def content(self) -> NoReturn:
        raise ValueError("a workspace keeps no images; read the record from its source")


NOWHERE = NoImage()


def columns_of(records: Records, names: Sequence[str] = COLUMNS) -> dict[str, list[Any]]:
    """What :class:`StoredRecords` is made of, ready for JSON; columns that are as usual are left out."""
    columns = {name: records.column(name) for name in names}
    if any(columns.get("extra", ())):
        plain = [json.dumps(dict(extra), default=str) for extra in columns["extra"]]
        columns["extra"] = [json.loads(text) for text in plain]
    return {name: column for name, column in columns.items() if not _is_usual(name, column)}


def _is_usual(name: str, column: list[Any]) -> bool:
    return name in USUAL and column.count(USUAL[name]) == len(column)


class StoredRecords(Records):
    """Records by ``columns``; a ValueError or KeyError if they are not what ``columns_of`` gives."""

    def __init__(self, columns: Mapping[str, list[Any]], classes: Sequence[str]) -> None:
        n = len(columns["id"])
        self._columns = {name: columns[name] for name in COLUMNS if name in columns}
        missing = set(CORE_COLUMNS) - set(self._columns)
        if missing or any(len(column) != n for column in self._columns.values()):
            raise ValueError(f"columns are missing ({sorted(missing)}) or of different lengths")
        self._classes, self._skipped, self._remarks = tuple(classes), (), ()
        splits = {Split(value) for value in set(self.column("split"))}
        _ = {Channels(value) for value in set(self.column("channels")) - {None}}
        distinct = len(set(columns["id"])) == n
        if not distinct or len(splits) > 1 or not set(columns["label"]) <= set(classes):
            Records(self, classes)  # looks at every record, and names the one that is wrong

    @cached_property
    def _records(self) -> tuple[Record, ...]:  # type: ignore[override]
        return tuple(self._make(i) for i in range(len(self)))

    def _make(self, i: int) -> Record:
        values = USUAL | {name: column[i] for name, column in self._columns.items()}
        channels = values["channels"]
        return Record(
            values["id"],
            values["owner"],
            values["cohort"],
            values["label"],
            Split(values["split"]),
            NOWHERE,
            values["digest"],
            None if channels is None else Channels(channels),
            values["extra"],
        )

    def __len__(self) -> int:
        return len(self._columns["id"])

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __getitem__(self, index: Any) -> Any:
        n = len(self)
        if isinstance(index, slice):
            return self._chosen(range(n)[index])
        if isinstance(index, Sequence | np.ndarray) and np.ndim(index) == 1:
            positions = positions_of(index, n)
            if len(set(positions)) == len(positions):
                return self._chosen(positions)
            return Records([self._make(i) for i in positions], self.classes)
        return self._make(range(n)[operator.index(index)])

    def _chosen(self, positions: Sequence[int]) -> StoredRecords:
        made = object.__new__(StoredRecords)
        made._columns = {
            name: [column[i] for i in positions] for name, column in self._columns.items()
        }
        made._classes, made._skipped, made._remarks = self._classes, (), ()
        return made

    def column(self, name: str) -> list[Any]:
        usual = None if name in CORE_COLUMNS else USUAL[name]
        return list(self._columns[name]) if name in self._columns else [usual] * len(self)

    @property
    def labels(self) -> np.ndarray:
        index = {name: i for i, name in enumerate(self.classes)}
        return np.array([index[label] for label in self._columns["label"]], dtype=np.int64)
