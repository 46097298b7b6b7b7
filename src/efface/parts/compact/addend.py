"""What is added to the exact sums in one go, or taken out of them: rows, or sums that were made elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from efface.parts.compact.rows import Rows
from efface.parts.compact.spooled_rows import SpooledRows
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.stored_rows import StoredRows

Piece = Rows | SpooledRows | StoredRows | Statistics


@dataclass(frozen=True)
class Addend:
    """Some pieces. All of them go in (or out), or on an error none; rows on disk are read block by block."""

    pieces: tuple[Piece, ...]

    def into(self, statistics: Statistics) -> None:
        self._all(statistics, _put, _take)

    def out_of(self, statistics: Statistics) -> None:
        self._all(statistics, _take, _put)

    def _all(self, statistics: Statistics, do: Step, undo: Step) -> None:
        done = 0
        try:
            for block in self._blocks():
                do(statistics, block)
                done += 1
        except Exception:
            for _, block in zip(range(done), self._blocks(), strict=False):
                undo(statistics, block)
            raise

    def _blocks(self) -> Iterator[Rows | Statistics]:
        for piece in self.pieces:
            if isinstance(piece, Statistics):
                yield piece
            else:
                yield from piece.blocks()


Step = Callable[[Statistics, Rows | Statistics], None]


def _put(statistics: Statistics, block: Rows | Statistics) -> None:
    if isinstance(block, Statistics):
        statistics.merge(block)
    else:
        statistics.add(block.features, block.targets)


def _take(statistics: Statistics, block: Rows | Statistics) -> None:
    if isinstance(block, Statistics):
        statistics.subtract(block)
    else:
        statistics.remove(block.features, block.targets)
