"""Rows: all that training a compact user part needs of some samples, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rows:
    """Quantised features and target residuals, one row a sample."""

    features: np.ndarray  # (n, k) int8 or int16
    targets: np.ndarray  # (n, c) int16

    def __len__(self) -> int:
        return len(self.features)

    def whole(self) -> Rows:
        """All rows in memory: these are."""
        return self

    def blocks(self) -> Iterator[Rows]:
        """All rows, some at a time: these are in memory, so all at once."""
        yield self

    def select(self, index: np.ndarray) -> Rows:
        return Rows(self.features[index], self.targets[index])

    def without(self, index: np.ndarray) -> Rows:
        keep = np.ones(len(self), dtype=bool)
        keep[index] = False
        return self.select(keep)

    def insert(self, at: int, rows: Rows) -> Rows:
        """With more rows, before the one at ``at``."""
        before, after = slice(0, at), slice(at, len(self))
        return Rows.joined(
            [
                Rows(self.features[before], self.targets[before]),
                rows,
                Rows(self.features[after], self.targets[after]),
            ]
        )

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        features = np.concatenate([part.features for part in parts])
        return Rows(features, np.concatenate([part.targets for part in parts]))
