"""A small ridge system solved in Python's integers: the last resort where no error bound decides."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from efface.parts.compact.expansion import Floats
from efface.parts.compact.statistics import Statistics

MOST_FEATURES = 24  # a few milliseconds


def solve_exactly(
    statistics: Statistics, ridge: list[Fraction]
) -> tuple[tuple[Fraction, ...], ...] | None:
    """Z with ``(G + diag(ridge)) Z = B``, k rows of c; None if the matrix is singular."""
    size = statistics.num_features
    cross = _integers(statistics.cross_limbs())
    matrix: list[list[int]] = []
    below = []
    for _, stop, limbs in statistics.limb_strips():
        below += [row + [0] * (size - stop) for row in _integers(limbs)]
    for i in range(size):
        row = [Fraction(below[max(i, j)][min(i, j)]) for j in range(size)]
        row[i] += ridge[i]
        common = lcm(*(value.denominator for value in row))
        matrix.append([int(value * common) for value in row] + [v * common for v in cross[i]])
    return _bareiss(matrix, size)


def _integers(limbs: tuple[Floats, ...]) -> list[list[int]]:
    rows = [limb.tolist() for limb in limbs]
    return [
        [sum(int(v) for v in values) for values in zip(*row, strict=True)]
        for row in zip(*rows, strict=True)
    ]


def _bareiss(rows: list[list[int]], size: int) -> tuple[tuple[Fraction, ...], ...] | None:
    """Gauss and Jordan without fractions: every division by the last pivot leaves no remainder."""
    last = 1
    for i in range(size):
        pivot = next((j for j in range(i, size) if rows[j][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        top = rows[i]
        for j in range(size):
            if j != i:
                factor = rows[j][i]
                rows[j] = [
                    (top[i] * v - factor * t) // last for v, t in zip(rows[j], top, strict=True)
                ]
        last = top[i]
    return tuple(tuple(Fraction(v, row[i]) for v in row[size:]) for i, row in enumerate(rows))
