"""Scales that balance the layers of the tail, measured on core data only."""

from __future__ import annotations

import math

import torch

from efface.errors import EffaceError
from efface.linear.operator import TangentOperator
from efface.network.activations import ActivationCache, Activations
from efface.network.core import Core


def balanced_scales(
    operator: TangentOperator, activations: Activations, *, probes: int = 4, seed: int = 0
) -> dict[str, float]:
    """s_l = (mean_i ‖∂f(x_i)/∂θ_l‖_F²)^(-1/2) for every parameter tensor θ_l, over core samples.

    With these scales every tensor contributes a tangent kernel of mean trace 1, so one ridge μ fits all
    and the problem is far better conditioned. The norms are estimated without bias by random probes: for
    u_i ~ N(0, I), E‖Σ_i J_iᵀu_i‖² = Σ_i ‖J_i‖_F². A tensor without any gradient (a zero head above it)
    keeps the scale 1.
    """
    generator = torch.Generator().manual_seed(seed)
    total = dict.fromkeys(operator.layout.names, 0.0)
    for start in range(0, len(activations), 64):
        batch = operator.prepare(activations[slice(start, start + 64)])
        for _ in range(probes):
            u = torch.randn(batch.outputs.shape, generator=generator)
            for name, view in operator.layout.views(operator.vjp(batch, u)).items():
                total[name] += float(view.double().square().sum())
    count = max(len(activations) * probes, 1)
    return {
        name: 1 / math.sqrt(value / count) if value > 0 else 1.0 for name, value in total.items()
    }


def scales_of_core(core: Core, cache: ActivationCache | None = None) -> dict[str, float]:
    """The same, over the records that the core was fitted on."""
    records = core.records
    if records is None or len(records) == 0:
        fix = "set some aside with --core-fraction 0.3, or use --scales plain."
        raise EffaceError("scales are balanced on core records, and there are none.", fix)
    return balanced_scales(TangentOperator(core.tail), core.activations(records, cache))


def mean_jacobian_square(operator: TangentOperator, inputs: Activations, probes: int = 2) -> float:
    """mean_i ‖J_i‖_F², by random probes: an estimate."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for start in range(0, len(inputs), 64):
        batch = operator.prepare(inputs[slice(start, start + 64)])
        for _ in range(probes):
            u = torch.randn(batch.outputs.shape, generator=generator)
            total += float(operator.vjp(batch, u).double().square().sum()) / probes
    return total / max(len(inputs), 1)
