"""Forgetting: from a model and the records that must go to new weights and their certificate.

Nothing of the model is changed here; the caller takes over the outcome when it is content with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface.errors import EffaceError, GuaranteeError
from efface.guarantee import noise
from efface.guarantee.apriori import RequestHistory, StatePolicy
from efface.guarantee.certificates import (
    Certificate,
    Difference,
    ExactCertificate,
    Guarantee,
    ShiftCertificate,
    sigma_for,
)
from efface.linear.solution import Solution
from efface.parts.compact.rows import Rows
from efface.parts.compact.user import CompactUser
from efface.parts.tangent.forgetting import PaperForgetting, SolvedForgetting
from efface.parts.tangent.rounding import measured_gradient
from efface.parts.tangent.sgd import Progress
from efface.parts.tangent.theorem import theorem_constants, with_theorem
from efface.parts.tangent.user import TangentUser
from efface.parts.training_set import TrainingSet, select

Procedure = PaperForgetting | SolvedForgetting


@dataclass(frozen=True)
class Outcome:
    """``state`` is what later requests start from, ``release`` what is served."""

    certificate: Certificate
    solution: Solution | None
    state: Tensor | None = None
    release: Tensor | None = None
    history: RequestHistory = field(default_factory=RequestHistory)


def plan(
    user: TangentUser,
    activations: Any,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    sigma: float | None = None,
    logit_noise: float = 0.02,
    state: StatePolicy | str = StatePolicy.SECRET,
) -> Guarantee:
    """Fix σ, the grid and what requests start from before any of them, from core samples alone.

    Without ``sigma`` it is chosen so that the noise moves a logit by ``logit_noise`` · target scale in
    the root mean square over the core samples.
    """
    if sigma is None:
        square = mean_jacobian_square(user, activations)
        outputs = len(user.core.classes)
        sigma = sigma_for(square, outputs, logit_noise * user.target_scale)
    return Guarantee.plan(epsilon, delta, sigma, user.operator.d, state)


def plan_compact(
    epsilon: float, delta: float, sigma: float | None, d: int, state: StatePolicy | str
) -> Guarantee:
    """What hides the difference between two releases of the compact part; σ is the caller's.

    Nothing else of a compact model needs a guarantee, so without σ it is an error.
    """
    if sigma is None:
        fix = "no plan is needed; give sigma to hide the difference between releases, too."
        raise EffaceError("the compact user part forgets exactly.", fix)
    if d == 0:
        raise EffaceError("the compact user part has no features yet.", "fit the model first.")
    guarantee = Guarantee.plan(epsilon, delta, sigma, d, state)
    if guarantee.state is not StatePolicy.SECRET:
        fix = "leave the state secret: protect the workspace's private folder."
        raise EffaceError("the compact user part keeps exact sums, which have no noise.", fix)
    return guarantee


def mean_jacobian_square(user: TangentUser, activations: Any, probes: int = 2) -> float:
    """mean_i ‖J_i‖_F² over core samples, by random probes (an estimate; it only sets σ)."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for start in range(0, len(activations), 64):
        batch = user.operator.prepare(activations[slice(start, start + 64)])
        for _ in range(probes):
            u = torch.randn(batch.outputs.shape, generator=generator)
            total += float(user.operator.vjp(batch, u).double().square().sum()) / probes
    return total / max(len(activations), 1)


def forget_compact(
    user: CompactUser,
    data: TrainingSet,
    forget: np.ndarray,
    guarantee: Guarantee | None = None,
    *,
    test_seed: bytes | None = None,
) -> Outcome:
    """Subtract the records' integers and solve: exact. Changes ``user`` (its statistics are in place).

    With a ``guarantee`` the weights get noise: see `change_compact`.
    """
    assert data.rows is not None
    rows = data.rows.select(forget)
    solution, difference = change_compact(
        user, rows, user.remove, guarantee=guarantee, test_seed=test_seed
    )
    certificate = ExactCertificate(
        user.statistics_digest,
        user.weights_digest,
        num_retained=len(data) - len(forget),
        num_forgotten=len(forget),
        solve_residual=solution.residual_norm,
        difference=difference,
        weights_proved=user.weights_proved,
        given=user.given,
    )
    return Outcome(certificate, solution)


def change_compact(
    user: CompactUser,
    rows: Rows,
    change: Callable[[Rows], Solution],
    *,
    guarantee: Guarantee | None = None,
    test_seed: bytes | None = None,
) -> tuple[Solution, Difference | None]:
    """``change`` is ``user.add`` or ``user.remove``; with a ``guarantee``, noise on the weights after it.

    The noise is for somebody who has the release before, too: the weights that would be released if nothing
    had changed are solved for as well, and must be near enough to be hidden by it. If they are not,
    GuaranteeError, and ``user`` is as it was. The sums stay exact; the noise is in no other place than the
    released weights.
    """
    if guarantee is None:
        return change(rows), None
    served, proved = user.theta, user.weights_proved
    try:
        user.solve()
        before = user.theta
    finally:
        user.theta, user.weights_proved = served, proved
    solution = change(rows)
    assert before is not None
    assert user.theta is not None
    distance = float(np.linalg.norm(user.theta.astype(np.float64) - before))
    difference = Difference(guarantee, distance, user.num_weights, test_seed is None)
    if not difference.passed:
        assert user.statistics is not None
        undo = user.statistics.add if change == user.remove else user.statistics.remove
        undo(rows.features, rows.targets)
        user.theta, user.weights_proved = served, proved
        raise GuaranteeError(
            f"epsilon {guarantee.epsilon} between the two releases asked for, "
            f"{reached(difference.epsilon_bound)} reached; nothing was changed.",
            f"raise sigma above {distance / guarantee.shift(user.num_weights):.2g}, or epsilon.",
        )
    released = noise.release_on_grid(
        user.theta, guarantee.sigma, guarantee.grid, test_seed=test_seed
    )
    user.theta = released.values
    return solution, difference


def forget_tangent(
    user: TangentUser,
    data: TrainingSet,
    forget: np.ndarray,
    guarantee: Guarantee,
    *,
    procedure: Procedure | None = None,
    earlier_shifts: tuple[float, ...] = (),
    history: RequestHistory | None = None,
    num_added: int = 0,
    test_seed: bytes | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """w ← w − H_r⁻¹ g_r(w), then fresh noise; raises GuaranteeError if the guarantee is not reached.

    The certificate is computed from the gradient on the final noiseless weights, recomputed in float64
    on the retained data, with a bound on its rounding error. The paper's theorem stands beside it, for
    this and the earlier requests of ``history``; ``num_added`` records of ``data`` are new in this one. The
    noise comes from a cryptographic generator; ``test_seed`` fixes it for tests and marks the certificate
    as not releasable.
    Under ``StatePolicy.NOISY`` the outcome's state is the release: the noiseless weights are in its
    ``solution`` alone, for the caller to drop.
    """
    assert data.activations is not None
    keep = data.retained(forget)
    labels = data.labels[torch.from_numpy(keep)]
    problem = user.problem(select(data.activations, keep), labels)
    procedure = procedure if procedure is not None else SolvedForgetting()
    tolerance = guarantee.gradient_tolerance(user.mu, user.operator.d)
    aim = 0.9 * tolerance  # the rest is for the rounding of the gradient itself
    solver = procedure.solver(aim) if isinstance(procedure, SolvedForgetting) else procedure
    solution = solver.solve(problem, user.state, progress=progress)
    before = problem.passes
    measured = measured_gradient(problem, solution.value)
    certificate = ShiftCertificate(
        guarantee,
        user.mu,
        user.operator.d,
        num_retained=problem.n,
        num_forgotten=len(forget),
        gradient_norm=measured.norm,
        gradient_error=measured.error,
        passes=solution.passes + problem.passes - before,
        releasable=test_seed is None,
        earlier_shifts=earlier_shifts,
    )
    if not certificate.passed:
        raise GuaranteeError(
            f"epsilon {guarantee.epsilon} asked for, {reached(certificate.epsilon_bound)} reached "
            f"(gradient {measured.norm:.1e}, needed {tolerance:.1e}); nothing was changed.",
            solution.advice or "allow more passes, raise sigma, or use the solved procedure.",
        )
    history = _with_request(history, user, data, len(forget) + num_added)
    paper = procedure if isinstance(procedure, PaperForgetting) else PaperForgetting()
    certificate = with_theorem(certificate, history, paper)
    released = noise.release_on_grid(
        solution.value.numpy(), guarantee.sigma, guarantee.grid, test_seed=test_seed
    )
    release = torch.tensor(released.values)
    state = release if guarantee.state is StatePolicy.NOISY else solution.value
    return Outcome(certificate, solution, state, release, history)


def reached(epsilon_bound: float) -> str:
    return f"{epsilon_bound:.3g}" if math.isfinite(epsilon_bound) else "none at this delta"


def _with_request(
    history: RequestHistory | None, user: TangentUser, data: TrainingSet, num_changed: int
) -> RequestHistory:
    """The theorem's constants hold for all records of this request, those that go included."""
    assert data.activations is not None
    constants = theorem_constants(user.problem(data.activations, data.labels))
    return (history or RequestHistory()).with_request(len(data), num_changed, *constants)


def require_model_data(data: TrainingSet | None) -> TrainingSet:
    if data is None:
        raise EffaceError(
            "this model has no training data at hand, so there is nothing to forget from.",
            "forget on the model you fitted, or open its workspace.",
        )
    return data
