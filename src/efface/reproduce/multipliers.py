"""α of a specimen's solves between samples: where the next one of nearly the same samples begins.

Training, requests, retrained models and the worlds of an attack are problems on parts of one set. Weights
alone are a poor start between samples (``DualConjugateGradient``); α of a problem with a few samples more or
fewer is a good one. Where each ends does not depend on it: the distance is proved. A workspace keeps weights
alone, since α has a row for everybody; so what is *timed* as a request must not use this (``unused``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from efface.linear.solution import Solution
from efface.parts.tangent.problem import RidgeProblem


class Multipliers:
    """Those of the solves so far, by the rows of the shared primal side that each was on."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Tensor, Tensor]] = {}  # rows in order, (n, c)
        self._in_use = True

    def keep(self, problem: RidgeProblem, solution: Solution) -> None:
        """What was found of the same samples before is replaced."""
        if problem.rows is not None and solution.multipliers is not None:
            rows, order = problem.rows.sort()
            self._known[rows.numpy().tobytes()] = rows, solution.multipliers[order]

    def near(self, problem: RidgeProblem) -> Tensor | None:
        """α of the solve with the fewest samples that the problem has not, or the other way round; 0 for
        samples that it had not. None: there was none, or there is none in use."""
        if problem.rows is None or not self._known or not self._in_use:
            return None
        rows, own = problem.rows, len(problem.primal)

        def apart(known: tuple[Tensor, Tensor]) -> int:
            common = int(torch.isin(known[0], rows).sum())
            return len(known[0]) + len(rows) - 2 * common

        found, values = min(self._known.values(), key=apart)
        whole = values.new_zeros(own, values.shape[1]).index_copy_(0, found, values)
        return whole[rows]

    @contextmanager
    def unused(self) -> Iterator[None]:
        """For what is timed; what is solved meanwhile is kept all the same."""
        self._in_use = False
        try:
            yield
        finally:
            self._in_use = True
