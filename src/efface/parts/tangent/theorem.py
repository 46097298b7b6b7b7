"""The paper's theorem for the data at hand: its constants, and what it says about a request.

It is known before running, and nearly always vacuous; it is printed beside what was checked afterwards.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from efface.guarantee import apriori, bounds
from efface.guarantee.apriori import RequestHistory
from efface.guarantee.certificates import ShiftCertificate
from efface.linear.operator import Prepared
from efface.parts.tangent.forgetting import PaperForgetting
from efface.parts.tangent.problem import RidgeProblem

FAILURE_PROBABILITY = 1e-6  # that β, which is found by random probes, is too small for some record


def theorem_constants(
    problem: RidgeProblem, *, probes: int = 8, failure_probability: float = FAILURE_PROBABILITY
) -> tuple[float, float]:
    """(β, M): β ≥ max_i λ_max(J_iᵀJ_i) + μ, except with ``failure_probability``; M = max_i ½‖f_i − y_i‖².

    One float64 pass: the primal side once, then J_i V for ``probes`` Gaussian vectors V (a J v has a row
    for each sample, so all samples share them), and ``bounds.probed_eigenvalue_bound`` for each sample.
    It is larger than the true value by about p over the χ²_p quantile: for 8 probes and 1,000 records some
    hundred times, where one vjp for each sample and class would be exact.
    """
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    directions = [
        torch.randn(problem.d, generator=generator, dtype=torch.float64) for _ in range(probes)
    ]
    top, largest = problem.zeros()[:1], problem.zeros()[:1]
    for start in range(0, problem.n, problem.batch_size):
        part = slice(start, min(start + problem.batch_size, problem.n))
        batch = problem.operator.prepare(problem.activations[part], torch.float64)
        top = torch.maximum(top, _largest_eigenvalue(problem, batch, directions))
        losses = (batch.outputs - problem.targets[part]).square().sum(1) / 2
        largest = torch.maximum(largest, losses.max())
    each = failure_probability / max(problem.n, 1)
    beta = bounds.probed_eigenvalue_bound(float(top), probes, each) + problem.mu
    return beta, float(largest)


def _largest_eigenvalue(problem: RidgeProblem, batch: Prepared, directions: list[Tensor]) -> Tensor:
    """max_i λ_max(J_i V VᵀJ_iᵀ), from the small matrices VᵀJ_iᵀJ_i V."""
    moved = torch.stack([problem.operator.jvp(batch, v) for v in directions], dim=2)  # (n, c, p)
    return torch.linalg.eigvalsh(moved.transpose(1, 2) @ moved)[:, -1].max()


def with_theorem(
    certificate: ShiftCertificate, history: RequestHistory, procedure: PaperForgetting
) -> ShiftCertificate:
    """The certificate with the paper's theorem beside it, for ``procedure`` and all requests so far.

    The theorem is about the paper's SGD. Where another solver was run, it says what would have been known
    beforehand about the paper's; what is known about the weights themselves is the rest of the certificate.
    M also serves as σ_ℓ, since L(w*) ≤ L(0) ≤ M.
    """
    steps_an_epoch = -(-certificate.num_retained // procedure.batch_size)
    inputs = apriori.TheoremInputs(
        n=history.n,
        b=min(history.b, history.n - 1),
        num_requests=history.num_requests,
        beta=history.beta,
        M=history.M,
        mu=certificate.mu,
        sigma=certificate.guarantee.sigma,
        sigma_l=history.M,
        d=certificate.d,
        batch_size=procedure.batch_size,
        steps=procedure.epochs * procedure.snapshots * steps_an_epoch,
    )
    return replace(certificate, apriori=_shown(inputs))


def _shown(inputs: apriori.TheoremInputs) -> dict[str, Any]:
    """JSON has no infinity: a bound that is infinite is None, and the reason says so."""
    value = apriori.paper_information_bound(inputs)
    constants = ("n", "b", "num_requests", "beta", "M", "batch_size", "steps")
    return {
        "nats_bound": value.nats_bound if value.nats_bound < float("inf") else None,
        "vacuous": value.vacuous,
        "reason": value.reason,
        "gamma": value.gamma,
        **{name: getattr(inputs, name) for name in constants},
        "failure_probability": FAILURE_PROBABILITY,
        "assumptions": list(value.assumptions),
    }
