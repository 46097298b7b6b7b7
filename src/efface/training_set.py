"""What a fitted model keeps of its training records: just what the user part needs, and no images."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from efface import files
from efface.activations import Activations
from efface.compact.user import Rows
from efface.images import Channels
from efface.records import DEFAULT_COHORT, Record, Records, Split

SCHEMA = "efface.records/1"


@dataclass(frozen=True)
class TrainingSet:
    """User records first, then replayed core records; one row of ``data`` each.

    ``data`` are boundary activations (tangent) or quantised rows (compact).
    """

    records: Records
    replay: Records | None
    labels: Tensor  # (n,)
    activations: Activations | None = None
    rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.labels)

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
            rows=None if self.rows is None else self.rows.select(keep),
        )

    def plus(self, part: TrainingSet, activations: Activations | None = None) -> TrainingSet:
        """The set with more user records, before the replayed ones; ``activations`` are those of all."""
        at, rows = len(self.records), part.rows
        if self.rows is not None and rows is not None:
            rows = Rows(
                _insert(self.rows.features, rows.features, at, np.concatenate),
                _insert(self.rows.targets, rows.targets, at, np.concatenate),
            )
        return replace(
            self,
            records=self.records + part.records,
            labels=_insert(self.labels, part.labels, at, torch.cat),
            activations=activations,
            rows=self.rows if rows is None else rows,
        )

    # --- files ------------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """``records.json`` and, if there are rows, ``rows.safetensors``; activations are the cache's.

        Of replayed core records only id, label and digest are kept: their owner may have user records
        too, and then nothing may be left of the name once these are forgotten.
        """
        replay = self.replay
        values = {
            "schema": SCHEMA,
            "records": [_entry(record) for record in self.records],
            "replay": None if replay is None else [_core_entry(record) for record in replay],
        }
        files.write_json(directory / "records.json", values)
        if self.rows is not None:
            tensors = {"features": self.rows.features, "targets": self.rows.targets}
            arrays = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()}
            files.write_tensors(directory / "rows.safetensors", arrays)

    @classmethod
    def load(cls, directory: Path, classes: Sequence[str]) -> TrainingSet:
        """The inverse of :meth:`save`; asking one of its records for its image is an error."""
        values = files.read_json(directory / "records.json", SCHEMA)
        records = Records([_record(entry) for entry in values["records"]], classes)
        listed = values["replay"]
        replay = None if listed is None else Records([_record(e) for e in listed], classes)
        labels = [records.labels] if replay is None else [records.labels, replay.labels]
        rows = None
        if (directory / "rows.safetensors").is_file():
            tensors = files.read_tensors(directory / "rows.safetensors")
            rows = Rows(tensors["features"].numpy(), tensors["targets"].numpy())
        return cls(records, replay, torch.from_numpy(np.concatenate(labels)), rows=rows)


class NoImage:
    """The source of a record whose image is not kept."""

    def content(self) -> NoReturn:
        raise ValueError("a workspace keeps no images; read the record from its source")


def _entry(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "owner": record.owner,
        "cohort": record.cohort,
        "label": record.label,
        "split": str(record.split),
        "digest": record.digest,
        "channels": None if record.channels is None else str(record.channels),
        "extra": json.loads(json.dumps(dict(record.extra), default=str)),
    }


def _core_entry(record: Record) -> dict[str, Any]:
    return {"id": record.id, "label": record.label, "digest": record.digest}


def _record(entry: dict[str, Any]) -> Record:
    channels = entry.get("channels")
    return Record(
        id=entry["id"],
        owner=entry.get("owner", str(Split.CORE)),
        cohort=entry.get("cohort", DEFAULT_COHORT),
        label=entry["label"],
        split=Split(entry.get("split", Split.CORE)),
        source=NoImage(),
        digest=entry["digest"],
        channels=None if channels is None else Channels(channels),
        extra=entry.get("extra", {}),
    )


def _insert(whole: Any, part: Any, at: int, join: Callable[[list[Any]], Any]) -> Any:
    return join([whole[:at], part, whole[at:]])


def select(activations: Activations, index: np.ndarray) -> Activations:
    """Some rows: still a memory map if it was one, else a copy (so that the others can be freed)."""
    if isinstance(activations, Tensor):
        return activations[torch.from_numpy(index)]
    return activations.select(index)  # type: ignore[attr-defined]
