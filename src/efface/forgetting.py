"""Forgetting: from a model and the records that must go to new weights and their certificate.

Nothing of the model is changed here; the caller takes over the outcome when it is content with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface import apriori, noise
from efface.certificates import (
    Certificate,
    ExactCertificate,
    Guarantee,
    ShiftCertificate,
    sigma_for,
)
from efface.compact.user import CompactUser
from efface.errors import EffaceError, GuaranteeError
from efface.tangent.forgetting import PaperForgetting, SolvedForgetting
from efface.tangent.problem import RidgeProblem
from efface.tangent.sgd import Progress
from efface.tangent.solution import Solution
from efface.tangent.user import TangentUser
from efface.training_set import TrainingSet, select

Procedure = PaperForgetting | SolvedForgetting


@dataclass(frozen=True)
class Outcome:
    """``state`` is what later requests start from, ``release`` what is served."""

    certificate: Certificate
    solution: Solution | None
    state: Tensor | None = None
    release: Tensor | None = None


def plan(
    user: TangentUser,
    activations: Any,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    sigma: float | None = None,
    logit_noise: float = 0.02,
) -> Guarantee:
    """Fix σ and the grid before any request, from core samples alone.

    Without ``sigma`` it is chosen so that the noise moves a logit by ``logit_noise`` · target scale in
    the root mean square over the core samples.
    """
    if sigma is None:
        square = mean_jacobian_square(user, activations)
        outputs = len(user.core.classes)
        sigma = sigma_for(square, outputs, logit_noise * user.target_scale)
    return Guarantee.plan(epsilon, delta, sigma, user.operator.d)


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


def forget_compact(user: CompactUser, data: TrainingSet, forget: np.ndarray) -> Outcome:
    """Subtract the records' integers and solve: exact. Changes ``user`` (its statistics are in place)."""
    assert data.rows is not None
    solution = user.remove(data.rows.select(forget))
    certificate = ExactCertificate(
        user.statistics_digest,
        user.weights_digest,
        num_retained=len(data) - len(forget),
        num_forgotten=len(forget),
        solve_residual=solution.residual_norm,
    )
    return Outcome(certificate, solution)


def forget_tangent(
    user: TangentUser,
    data: TrainingSet,
    forget: np.ndarray,
    guarantee: Guarantee,
    *,
    procedure: Procedure | None = None,
    earlier_shifts: tuple[float, ...] = (),
    test_seed: bytes | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """w ← w − H_r⁻¹ g_r(w), then fresh noise; raises GuaranteeError if the guarantee is not reached.

    The certificate is computed from the gradient on the final noiseless weights, recomputed in float64
    on the retained data. The noise comes from a cryptographic generator; ``test_seed`` fixes it for tests
    and marks the certificate as not releasable.
    """
    assert data.activations is not None
    keep = data.retained(forget)
    labels = data.labels[torch.from_numpy(keep)]
    problem = user.problem(select(data.activations, keep), labels)
    procedure = procedure if procedure is not None else SolvedForgetting()
    tolerance = guarantee.gradient_tolerance(user.mu, user.operator.d)
    solver = procedure.solver(tolerance) if isinstance(procedure, SolvedForgetting) else procedure
    solution = solver.solve(problem, user.state, progress=progress)
    certificate = ShiftCertificate(
        guarantee,
        user.mu,
        user.operator.d,
        num_retained=problem.n,
        num_forgotten=len(forget),
        gradient_norm=solution.residual_norm,
        passes=solution.passes,
        releasable=test_seed is None,
        earlier_shifts=earlier_shifts,
    )
    if not certificate.passed:
        raise GuaranteeError(
            f"epsilon {guarantee.epsilon} asked for, {certificate.epsilon_bound:.3g} reached "
            f"(gradient {solution.residual_norm:.1e}, needed {tolerance:.1e}); nothing was changed.",
            solution.advice or "allow more passes, raise sigma, or use the solved procedure.",
        )
    released = noise.release_on_grid(
        solution.value.numpy(), guarantee.sigma, guarantee.grid, test_seed=test_seed
    )
    release = torch.tensor(released.values)
    return Outcome(certificate, solution, solution.value, release)


def with_apriori(
    certificate: ShiftCertificate, problem: RidgeProblem, *, steps: int, num_requests: int = 1
) -> ShiftCertificate:
    """Print the paper's theorem beside it, every constant computed; mostly it says it is vacuous.

    β is bounded by max_i ‖J_i‖_F² + μ (a bound, not the exact λ_max), M by max_i ½‖f_i − y_i‖².
    """
    beta, largest = theorem_constants(problem)
    b = max(certificate.num_forgotten, 1)
    value = apriori.paper_information_bound(
        apriori.TheoremInputs(
            n=problem.n + b,
            b=b,
            num_requests=num_requests,
            beta=beta,
            M=largest,
            mu=certificate.mu,
            sigma=certificate.guarantee.sigma,
            sigma_l=largest,
            d=certificate.d,
            batch_size=64,
            steps=steps,
        )
    )
    shown = {
        "nats_bound": value.nats_bound,
        "vacuous": value.vacuous,
        "reason": value.reason,
        "beta": beta,
        "M": largest,
        "gamma": value.gamma,
    }
    return replace(certificate, apriori=shown)


def theorem_constants(problem: RidgeProblem) -> tuple[float, float]:
    """(β, M): β ≥ λ_max(J_iᵀJ_i) + μ for every i, by the trace of J_iJ_iᵀ; M = max_i ½‖f_i − y_i‖²."""
    beta, largest = 0.0, 0.0
    for i in range(problem.n):
        batch = problem.operator.prepare(problem.activations[slice(i, i + 1)], torch.float64)
        square = 0.0
        for k in range(batch.outputs.shape[1]):
            unit = torch.zeros_like(batch.outputs)
            unit[0, k] = 1
            square += float(problem.operator.vjp(batch, unit).square().sum())
        beta = max(beta, square)
        error = batch.outputs[0] - problem.targets[i]
        largest = max(largest, 0.5 * float(error.square().sum()))
    return beta + problem.mu, largest


def require_model_data(data: TrainingSet | None) -> TrainingSet:
    if data is None:
        raise EffaceError(
            "this model has no training data at hand, so there is nothing to forget from.",
            "forget on the model you fitted, or open its workspace.",
        )
    return data
