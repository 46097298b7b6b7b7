"""Rows of many samples, in a temporary file: what ``Rows`` is for few, without their taking memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from efface.ahead import ahead
from efface.parts.compact.rows import Rows
from efface.spool import Spool

BLOCK = 4096  # rows in memory at once, about, where all are read


class SpooledRows:
    """Made once, then only read; another set of rows is another file, and this one goes with its owner."""

    def __init__(self, blocks: Iterable[Rows], most_in_memory: int | None = None) -> None:
        self._features, self._targets = Spool(most_in_memory), Spool(most_in_memory)
        for block in blocks:
            self._features.append(block.features)
            self._targets.append(block.targets)

    @property
    def on_disk(self) -> bool:
        return self._features.on_disk or self._targets.on_disk

    def __len__(self) -> int:
        return len(self._features)

    def whole(self) -> Rows:
        """All rows in memory: ask for :meth:`blocks` instead, where that will do."""
        return self.select(np.arange(len(self)))

    def blocks(self) -> Iterator[Rows]:
        """All rows in their order, ``BLOCK`` at a time; the next ones are read meanwhile."""
        return ahead(self._blocks(0, len(self)))

    def _blocks(self, start: int, stop: int) -> Iterator[Rows]:
        for at in range(start, stop, BLOCK):
            yield self.select(np.arange(at, min(at + BLOCK, stop)))

    def select(self, index: np.ndarray) -> Rows:
        return Rows(self._features.take(index), self._targets.take(index))

    def without(self, index: np.ndarray) -> SpooledRows:
        """The others, in a file of their own: nothing of the rows at ``index`` is in it."""
        keep = np.ones(len(self), dtype=bool)
        keep[index] = False
        left = np.flatnonzero(keep)
        starts = range(0, max(len(left), 1), BLOCK)  # none left: still rows of this shape
        return SpooledRows(self.select(left[i : i + BLOCK]) for i in starts)

    def insert(self, at: int, rows: Rows) -> SpooledRows:
        """With more rows, before the one at ``at``."""

        def all_of_them() -> Iterator[Rows]:
            yield from self._blocks(0, at)
            yield rows
            yield from self._blocks(at, len(self))

        return SpooledRows(all_of_them())


def kept(blocks: Iterable[Rows]) -> Rows | SpooledRows:
    """These rows: in memory if they are few, else in a temporary file."""
    spooled = SpooledRows(blocks)
    return spooled if spooled.on_disk else spooled.whole()
