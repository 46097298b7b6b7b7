"""What a fitted model keeps in memory of its training records: just what the user part needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from efface.activations import Activations
from efface.compact.user import Rows
from efface.records import Records


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


def select(activations: Activations, index: np.ndarray) -> Activations:
    """Some rows: still a memory map if it was one, else a copy (so that the others can be freed)."""
    if isinstance(activations, Tensor):
        return activations[torch.from_numpy(index)]
    return activations.select(index)  # type: ignore[attr-defined]
