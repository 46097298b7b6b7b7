"""The tangent part's certificate, checked on the weights that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from efface.guarantee import bounds
from efface.guarantee.certificates import Certificate, ShiftCertificate
from efface.guarantee.check import Check
from efface.guarantee.checks import noise_check
from efface.parts.tangent.forgetting import SolvedForgetting
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.rounding import measured_gradient


def recertify(
    problem: RidgeProblem, release: Tensor, state: Tensor, certificate: Certificate | None
) -> Iterator[Check]:
    """‖g_r‖ in float64 on the noiseless weights, ε from it, and the size of the noise."""
    if isinstance(certificate, ShiftCertificate) and certificate.keeps_no_secret:
        yield from resolve(certificate, problem, release)
        return
    measured = measured_gradient(problem, state)
    norm = measured.norm
    if not isinstance(certificate, ShiftCertificate):
        yield Check("gradient on the noiseless weights", True, f"{norm:.2e}, nothing is promised")
        return
    again = replace(certificate, gradient_norm=norm, gradient_error=measured.error)
    promised = certificate.guarantee.epsilon
    detail = f"gradient {norm:.2e}, epsilon {again.epsilon_bound:.4g} of {promised:g}"
    yield Check("epsilon from the gradient", again.passed, detail)
    yield noise_check(certificate, float((release - state).norm()))


def resolve(
    certificate: ShiftCertificate, problem: RidgeProblem, release: Tensor
) -> Iterator[Check]:
    """What is left to check where only the noisy weights are kept: solve again, look at the difference.

    ‖release − w̃‖ = ‖σξ + (w − w*) − (w̃ − w*)‖ is within (m + m̃)σ of σ‖ξ‖, so a release that is far from the
    retained minimiser shows, and so does noise of the wrong size. That ‖w − w*‖ itself was at most mσ, a
    small part of it, cannot be seen any more.
    """
    g = certificate.guarantee
    solver = SolvedForgetting().solver(g.gradient_tolerance(problem.mu, problem.d))
    solution = solver.solve(problem, release)
    detail = "not checked: it was that of weights which were not kept (state: noisy)"
    yield Check("epsilon from the gradient", None, detail)
    if not solution.ok:
        yield Check("noise in the release", None, f"not checked: the solver {solution}")
        return
    again = bounds.distance_bound(solution.residual_norm, problem.mu) / g.sigma
    shift = again + certificate.distance_bound / g.sigma
    yield noise_check(certificate, float((release - solution.value).norm()), shift)
