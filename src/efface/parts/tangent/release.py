"""A release of the tangent part: the Newton step on the retained data, its certificate, and noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from efface.errors import GuaranteeError
from efface.guarantee import noise
from efface.guarantee.apriori import RequestHistory, StatePolicy
from efface.guarantee.certificates import ShiftCertificate, reached
from efface.guarantee.promise import Guarantee
from efface.linear.solution import Solution
from efface.parts.tangent.forgetting import PaperForgetting, SolvedForgetting
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.rounding import measured_gradient
from efface.parts.tangent.theorem import with_theorem
from efface.progress import Progress

Procedure = PaperForgetting | SolvedForgetting


@dataclass(frozen=True)
class Outcome:
    """``state`` is what later requests start from, ``release`` what is served."""

    certificate: ShiftCertificate
    solution: Solution
    state: Tensor
    release: Tensor
    history: RequestHistory


def release(
    retained: RidgeProblem,
    start: Tensor,
    guarantee: Guarantee,
    *,
    num_forgotten: int,
    history: RequestHistory,
    earlier_shifts: tuple[float, ...] = (),
    procedure: Procedure | None = None,
    test_seed: bytes | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """w ← w − H_r⁻¹ g_r(w) from ``start``, then fresh noise; GuaranteeError if the guarantee is not reached.

    The certificate is computed from the gradient on the final noiseless weights, recomputed in float64 on
    the ``retained`` data, with a bound on its rounding error. The paper's theorem stands beside it, for
    all requests of ``history``, this one included. The noise comes from a cryptographic generator;
    ``test_seed`` fixes it for tests and marks the certificate as not releasable.
    Under ``StatePolicy.NOISY`` the outcome's state is the release: the noiseless weights are in its
    ``solution`` alone, for the caller to drop.
    """
    procedure = procedure if procedure is not None else SolvedForgetting()
    tolerance = guarantee.gradient_tolerance(retained.mu, retained.d)
    aim = 0.9 * tolerance  # the rest is for the rounding of the gradient itself
    solver = procedure.solver(aim) if isinstance(procedure, SolvedForgetting) else procedure
    solution = solver.solve(retained, start, progress=progress)
    before = retained.passes
    measured = measured_gradient(retained, solution.value)
    certificate = ShiftCertificate(
        guarantee,
        retained.mu,
        retained.d,
        num_retained=retained.n,
        num_forgotten=num_forgotten,
        gradient_norm=measured.norm,
        gradient_error=measured.error,
        passes=solution.passes + retained.passes - before,
        releasable=test_seed is None,
        earlier_shifts=earlier_shifts,
    )
    if not certificate.passed:
        raise GuaranteeError(
            f"epsilon {guarantee.epsilon} asked for, {reached(certificate.epsilon_bound)} reached "
            f"(gradient {measured.norm:.1e}, needed {tolerance:.1e}); nothing was changed.",
            solution.advice or "allow more passes, raise sigma, or use the solved procedure.",
        )
    paper = procedure if isinstance(procedure, PaperForgetting) else PaperForgetting()
    certificate = with_theorem(certificate, history, paper)
    noisy = noise.release_on_grid(
        solution.value.numpy(), guarantee.sigma, guarantee.grid, test_seed=test_seed
    )
    served = torch.tensor(noisy.values)
    state = served if guarantee.state is StatePolicy.NOISY else solution.value
    return Outcome(certificate, solution, state, served, history)
