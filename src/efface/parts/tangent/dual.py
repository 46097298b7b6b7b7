"""The ridge problem from the side of the samples: as many unknowns as there are samples times outputs.

The minimiser is w* = Jᵀα* with (K + nμI) α* = y − f, K = J Jᵀ the tangent kernel. A product with K is one
walk Jᵀ and one walk J: a pass, as for H. But vectors have n·c numbers and not d, so that a preconditioner may
be far better than one between weights (``KroneckerKernel``), and at ridges as small as the paper's that
decides. It is for problems with more weights than that, d > n·c: else K has eigenvalues 0 that P has not.

It also proves more. With ρ = y − f − Jw − nμα and w = Jᵀα the way that is left is
w* − w = (JᵀJ + nμI)⁻¹ Jᵀρ, and s/(s² + nμ) ≤ 1/(2√(nμ)) for every singular value s of J, so

    ‖w − w*‖  ≤  ‖ρ‖ / (2 √(nμ)),

where the gradient g = −Jᵀρ/n alone gives ‖g‖/μ, which may be 2‖J‖/√(nμ) times that. ρ is computed in
float64; the rounding of that is not in the bound, and no certificate rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from efface.errors import EffaceError
from efface.linear.solution import Solution, Status
from efface.parts.tangent.cg import residual_fraction
from efface.parts.tangent.kronecker import KroneckerKernel
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.solve_state import SolveState
from efface.progress import Progress

LOOK = 5  # iterations between two looks at the gradient, which cost half a pass each
NEAR = 30.0  # … once the residual is that near


@dataclass(eq=False)
class _Point:
    """α with w = Jᵀα, the outputs' residual f + Jw − y and the gradient, both in float64."""

    alpha: Tensor  # (n, c)
    w: Tensor  # (d,)
    residual: Tensor  # (n, c)
    gradient: Tensor  # (d,)

    def missing(self, ridge: float) -> Tensor:
        """ρ = y − f − (K + nμI)α; the gradient is −Jᵀρ/n."""
        return -(self.residual + ridge * self.alpha)

    def distance_bound(self, ridge: float) -> float:
        """‖ρ‖/(2√(nμ)) ≥ ‖w − w*‖, if w is Jᵀα."""
        return float(self.missing(ridge).norm()) / (2 * math.sqrt(ridge)) if ridge else 0.0


@dataclass(eq=False)
class _Walk:
    """Conjugate gradients on (K + nμI) δ = ρ from one point, between two steps."""

    x: Tensor  # δ, (n, c)
    moved: Tensor  # Jᵀδ, (d,)
    r: Tensor  # what is left of ρ
    p: Tensor  # the direction
    rz: float  # r · P⁻¹r
    norms: list[float]  # of r, after each step

    @classmethod
    def begin(cls, r: Tensor, w: Tensor, kernel: KroneckerKernel) -> _Walk:
        z = kernel.apply(r)
        rz = float((r * z).sum())
        return cls(torch.zeros_like(r), torch.zeros_like(w), r, z.clone(), rz, [])


@dataclass(frozen=True)
class _Aim:
    """When a solve is over: at a gradient's norm, or at a proved distance to the minimiser."""

    ridge: float  # nμ
    gradient: float | None = None
    distance: float | None = None
    relative: bool = False  # the distance is a share of ‖w‖

    def missed_by(self, point: _Point) -> float:
        """How many times too large what is looked at is, on a point computed in float64; 1 is reached."""
        if self.gradient is not None:
            return _ratio(float(point.gradient.norm()), self.gradient)
        assert self.distance is not None
        length = float(point.w.norm()) if self.relative else 1.0
        return _ratio(point.distance_bound(self.ridge), self.distance * length)

    def goal(self, point: _Point) -> float:
        """The norm of ρ that CG goes for from this point: half of what is wanted."""
        now = float(point.missing(self.ridge).norm())
        if self.gradient is None and self.relative and not point.w.any():
            return 0.01 * now  # ‖w‖ is not known yet
        return 0.5 * now / max(self.missed_by(point), 1e-300)


def _ratio(value: float, wanted: float) -> float:
    return value / wanted if wanted > 0 else (0.0 if value == 0 else math.inf)


@dataclass(frozen=True)
class DualConjugateGradient:
    """Minimise L_D by preconditioned CG on (K + nμI) α = y − f, w = Jᵀα, until one of

        ‖w − w*‖ ≤ ``distance``               if given (proved, see the module),
        ‖w − w*‖ ≤ ``precision`` · ‖w‖        if given (proved),
        ‖g_D(w)‖ ≤ ``absolute``               if given,
        ‖g_D(w)‖ ≤ ``tolerance`` · ‖g_D(0)‖   else.

    What is reported is computed in float64 on the final weights; where it misses the target, CG restarts
    from them (iterative refinement). The preconditioner is built anew in each solve, from the samples of the
    problem alone: after a request nothing of the forgotten ones is in it. It takes some n × n matrices: more
    than ``max_samples`` are refused.
    """

    tolerance: float = 1e-4
    absolute: float | None = None
    max_passes: int = 500
    refinements: int = 8
    max_samples: int = 12_000
    side: int = 64
    distance: float | None = None
    precision: float | None = None

    def solve(
        self,
        problem: RidgeProblem,
        start: Tensor | None = None,
        *,
        multipliers: Tensor | None = None,
        state: SolveState | None = None,
        progress: Progress | None = None,
    ) -> Solution:
        """``state``: where the solve is kept on its way. One that was killed there goes on.

        ``multipliers``: an α to begin from, (n, c), instead of weights: it is far nearer than what weights
        tell of it, since α = (y − f − Jw)/(nμ) makes an error in Jw 1/(nμ) times as large.
        """
        self._check(problem)
        told: Progress = progress or (lambda fraction, message: None)
        before, history = problem.passes, list[float]()
        kept = _unpacked(state.read(), problem) if state is not None else None
        if kept is None:
            (point, at_zero), walk = self._start(problem, start, multipliers), None
        else:
            point, walk, history, (at_zero, passes) = kept
            problem.passes += passes
        aim = self._aim(problem, at_zero)
        kernel: KroneckerKernel | None = None
        for _ in range(self.refinements + 1):
            if aim.missed_by(point) <= 1 or self._left(problem, before) < 1:
                break
            problem.pool(half=self.proves)
            kernel = kernel or KroneckerKernel.build(problem, side=self.side)
            walk = walk or _Walk.begin(point.missing(aim.ridge), point.w, kernel)

            def look(point: _Point = point, walk: _Walk = walk) -> None:
                if state is not None:
                    numbers, old = [at_zero, problem.passes - before], tuple(history)  # noqa: B023
                    state.keep(lambda: _packed(point, walk, old, numbers))

            self._inner(problem, kernel, point, aim, walk, before, told, look)
            history += walk.norms
            told(0.99, f"{len(history)} steps; looking at the weights in float64")
            point, walk = self._moved(problem, point, walk.x, walk.moved), None
            told(0.99, f"{aim.missed_by(point):.1e} times what is wanted")
        if state is not None:
            state.drop()
        return self._solution(point, aim, problem.passes - before, history)

    @property
    def proves(self) -> bool:
        """Whether it goes for a proved distance; then w has to be Jᵀα, in float64."""
        return self.distance is not None or self.precision is not None

    def _aim(self, problem: RidgeProblem, at_zero: float) -> _Aim:
        ridge = problem.n * problem.mu
        if self.proves:
            relative = self.distance is None
            return _Aim(ridge, None, self.precision if relative else self.distance, relative)
        return _Aim(ridge, self.absolute if self.absolute is not None else self.tolerance * at_zero)

    def _moved(self, problem: RidgeProblem, point: _Point, step: Tensor, moved: Tensor) -> _Point:
        alpha = point.alpha + step
        w = problem.pull(alpha, torch.float64) if self.proves else point.w + moved
        return _at(problem, alpha, w)

    def _solution(self, point: _Point, aim: _Aim, passes: float, history: list[float]) -> Solution:
        norm, missed = float(point.gradient.norm()), aim.missed_by(point)
        proved = point.distance_bound(aim.ridge) if self.proves else None
        if missed <= 1:
            status, advice = Status.CONVERGED, ""
        else:
            status = Status.STOPPED_SHORT
            advice = f"{missed:.1e} times too far: raise max_passes (now {self.max_passes}), or raise mu."
        alpha = point.alpha if self.proves else None  # only then is w exactly Jᵀα
        return Solution(point.w, status, norm, passes, advice, tuple(history), proved, alpha)

    def _check(self, problem: RidgeProblem) -> None:
        if problem.n > self.max_samples:
            message = f"{problem.n} samples are too many for matrices between samples."
            raise EffaceError(message, f"use cg, or allow for more than {self.max_samples}.")

    def _left(self, problem: RidgeProblem, before: float) -> float:
        """Passes that may still go into CG; what is looked at on the new weights is kept back."""
        return self.max_passes - (problem.passes - before) - (1.5 if self.proves else 1)

    def _start(
        self, problem: RidgeProblem, start: Tensor | None, multipliers: Tensor | None
    ) -> tuple[_Point, float]:
        """Where to begin, and ‖g_D(0)‖ where that decides when it is over.

        At a minimiser α = (y − f − Jw)/(nμ). For weights that were one before a request this is what is
        left of the old α, and a good start; if it is worse than nothing, begin with nothing.
        """
        if multipliers is not None and self.proves:
            return _at(problem, multipliers, problem.pull(multipliers, torch.float64)), 0.0
        warm_start = start is not None and bool(start.any()) and problem.n > 0
        if start is not None and warm_start and self.proves:
            return self._near(problem, start), 0.0
        zero = _at(problem, torch.zeros_like(problem.targets), problem.zeros())
        norm, ridge = float(zero.gradient.norm()), problem.n * problem.mu
        if start is None or not warm_start:
            return zero, norm
        alpha = -(zero.residual + problem.push(start)) / ridge
        warm = _at(problem, alpha, problem.pull(alpha))
        better = warm.missing(ridge).norm() < zero.missing(ridge).norm()
        return (warm if better else zero), norm

    def _near(self, problem: RidgeProblem, start: Tensor) -> _Point:
        """The same where w has to be Jᵀα: α in float64, since an error in J w comes back 1/(nμ) times as
        large. What zero would be is only compared with, and is good enough in the products' own precision."""
        ridge = problem.n * problem.mu
        residual, _ = problem.residual(start, torch.float64)
        alpha = -residual / ridge
        warm = _at(problem, alpha, problem.pull(alpha, torch.float64))
        if warm.missing(ridge).norm() < (residual - problem.push(start)).norm():
            return warm
        return _at(problem, torch.zeros_like(alpha), problem.zeros())

    def _inner(
        self,
        problem: RidgeProblem,
        kernel: KroneckerKernel,
        point: _Point,
        aim: _Aim,
        walk: _Walk,
        before: float,
        progress: Progress,
        look: Callable[[], None],
    ) -> None:
        """CG on (K + nμI) δ = ρ, until ‖ρ‖ is what is wanted or passes are used up; ``look`` is called after
        every step."""
        ridge = problem.n * problem.mu
        start, wanted = float(point.missing(ridge).norm()), aim.goal(point)
        # In float32 products the recursive residual stops meaning anything after about 5 digits.
        floor = max(0.01 * wanted, problem.floor * start)
        while self._left(problem, before) >= 1.5:
            pulled = problem.pull(walk.p)
            hp = problem.push(pulled) + ridge * walk.p
            curvature = float((walk.p * hp).sum())
            if not curvature > 0:
                break
            step = walk.rz / curvature
            walk.x.add_(walk.p, alpha=step)
            walk.moved.add_(pulled, alpha=step)
            walk.r.sub_(hp, alpha=step)
            walk.norms.append(norm := float(walk.r.norm()))
            progress(residual_fraction(norm, start, wanted), f"residual {norm / start:.1e}")
            if norm <= floor or self._is_there(problem, walk.r, walk.norms, wanted, aim):
                break
            z = kernel.apply(walk.r)
            walk.rz, old = float((walk.r * z).sum()), walk.rz
            walk.p.mul_(walk.rz / old).add_(z)
            look()

    def _is_there(
        self, problem: RidgeProblem, r: Tensor, norms: list[float], wanted: float, aim: _Aim
    ) -> bool:
        """Whether ‖ρ‖, or ‖Jᵀρ‖/n, is small enough; the second is looked at now and then when it may be."""
        if aim.gradient is None:
            return norms[-1] <= wanted
        if len(norms) % LOOK or norms[-1] > NEAR * wanted:
            return False
        return float(problem.pull(r).norm()) / max(problem.n, 1) <= 0.5 * aim.gradient


def _packed(
    point: _Point, walk: _Walk, history: Sequence[float], numbers: list[float]
) -> dict[str, Tensor]:
    """A solve between two steps, as tensors."""
    told = {"history": history, "norms": walk.norms, "numbers": [walk.rz, *numbers]}
    return {
        **{f"point.{name}": value for name, value in vars(point).items()},
        **{f"walk.{name}": getattr(walk, name) for name in ("x", "moved", "r", "p")},
        **{name: torch.tensor(values, dtype=torch.float64) for name, values in told.items()},
    }


def _unpacked(
    kept: dict[str, Tensor] | None, problem: RidgeProblem
) -> tuple[_Point, _Walk, list[float], list[float]] | None:
    """None: nothing was kept, or something else, which does not fit the problem."""
    samples, weights = tuple(problem.targets.shape), (problem.operator.d,)
    shapes = {
        **dict.fromkeys(("point.alpha", "point.residual", "walk.x", "walk.r", "walk.p"), samples),
        **dict.fromkeys(("point.w", "point.gradient", "walk.moved"), weights),
        "numbers": (3,),
    }
    lists = {"history", "norms"}
    if kept is None or set(kept) != {*shapes, *lists}:
        return None
    if any(tuple(kept[name].shape) != shape for name, shape in shapes.items()):
        return None
    point = _Point(*(kept[f"point.{name}"] for name in ("alpha", "w", "residual", "gradient")))
    rz, *numbers = kept["numbers"].tolist()
    x, moved, r, p = (kept[f"walk.{name}"] for name in ("x", "moved", "r", "p"))
    walk = _Walk(x, moved, r, p, rz, kept["norms"].tolist())
    return point, walk, kept["history"].tolist(), numbers


def _at(problem: RidgeProblem, alpha: Tensor, w: Tensor) -> _Point:
    residual, gradient = problem.residual(w, torch.float64)
    return _Point(alpha, w, residual, gradient)
