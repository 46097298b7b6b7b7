"""The minimiser of a ridge problem, to a precision that is proved: what a verdict on the paper rests on.

A model counts as trained when ‖w − w*‖ ≤ ``precision`` · ‖w‖. Where there are more weights than samples times
outputs that is proved between samples (``DualConjugateGradient``), otherwise through the gradient: ‖g‖/μ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from efface.guarantee.bounds import distance_bound
from efface.linear.solution import Solution, Status
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.dense import DenseFactor
from efface.parts.tangent.dual import DualConjugateGradient
from efface.parts.tangent.preconditioners import Identity, Preconditioner
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.solve_state import SolveState
from efface.progress import Progress

MOST_DENSE = 12_000  # weights whose Hessian is written out
ROUNDS = 4  # of conjugate gradients, each with the norm that the last one found


def between_samples(problem: RidgeProblem) -> bool:
    """Whether the dual form suits: more weights than samples times outputs."""
    return problem.d > problem.targets.numel()


def minimise(
    problem: RidgeProblem,
    start: Tensor | None = None,
    *,
    precision: float | None = None,
    distance: float | None = None,
    max_passes: int = 500,
    preconditioner: Preconditioner | None = None,
    multipliers: Tensor | None = None,
    state: SolveState | None = None,
    progress: Progress | None = None,
) -> Solution:
    """w with ‖w − w*‖ ≤ ``distance``, or ≤ ``precision`` · ‖w‖; the solution has the bound that was proved.

    ``multipliers``: α to begin from, of a solve between samples (``multipliers.py``); elsewhere not used.

    ``state``: where a solve between samples is kept on its way (the others are over soon).

    ``preconditioner`` is for conjugate gradients between weights; without one, a problem whose Hessian can be
    written out gets its factor.
    """
    if between_samples(problem):
        dual = DualConjugateGradient(max_passes=max_passes, distance=distance, precision=precision)
        return dual.solve(problem, start, multipliers=multipliers, state=state, progress=progress)
    preconditioner = preconditioner or dense_factor(problem) or Identity()
    before, solution = problem.passes, _unsolved(problem, start)
    for _ in range(ROUNDS):
        wanted = distance if distance is not None else _share(precision, solution.value)
        left = int(max_passes - (problem.passes - before))
        if solution.residual_norm <= problem.mu * wanted or left < 3:
            break
        by = ConjugateGradient(
            absolute=0.9 * problem.mu * wanted or None,
            max_passes=left,
            preconditioner=preconditioner,
        )
        solution = by.solve(problem, solution.value, progress=progress)
    wanted = distance if distance is not None else _share(precision, solution.value)
    bound = distance_bound(solution.residual_norm, problem.mu)
    status = Status.CONVERGED if bound <= wanted else Status.STOPPED_SHORT
    passes = problem.passes - before
    return replace(solution, status=status, passes=passes, distance_bound=bound)


def told(solution: Solution) -> dict[str, Any]:
    """What is kept of a solve besides the weights."""
    return {
        "passes": solution.passes,
        "status": str(solution.status),
        "residual_norm": solution.residual_norm,
        "distance_bound": solution.distance_bound,
    }


def dense_factor(problem: RidgeProblem) -> DenseFactor | None:
    """The Hessian's factor, of a problem between weights that are not too many."""
    if between_samples(problem) or problem.d > MOST_DENSE:
        return None
    return DenseFactor.build(problem)


def _share(precision: float | None, w: Tensor) -> float:
    return (precision or 0.0) * float(w.norm())


def _unsolved(problem: RidgeProblem, start: Tensor | None) -> Solution:
    w = problem.zeros() if start is None else start
    return Solution(w, Status.STOPPED_SHORT, float("inf"), 0.0)
