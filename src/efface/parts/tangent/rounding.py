"""A gradient with a bound on its own rounding error: what a certificate is computed from.

The problem's data are the primal side as it was prepared: the saved tensors and the weights *are* J and f.
What rounds are the products with them. For a sum of k products in any order |fl(Σ ab) − Σ ab| ≤ γ_k Σ|a||b|,
γ_k = ku/(1 − ku), u the unit roundoff (Higham 2002, section 3.1; fused operations only lose less). Through a
chain of layers the constants add up, and absolute values take the place of everything else: |J| is
the product of the layers' absolute values. With s_i = |f_i| + |J_i||w| + |y_i|,

    ‖fl(g) − g‖ ≤ (γ_N + γ_M) ‖1/n Σ |J_i|ᵀ s_i‖ + 8u μ‖w‖,

N roundings on the way to J w, M on the way back, the sum over all samples and positions included. Winograd's
transforms are not used here: their absolute values would be far larger than what they compute.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from efface.linear.frozen import freeze_below
from efface.linear.layers import (
    Chain,
    ConvLayer,
    GlobalMeanLayer,
    Layer,
    LinearLayer,
    ResidualLayer,
    Saved,
    ViewsLayer,
)
from efface.linear.lowering import lower
from efface.linear.opaque import OpaqueLayer
from efface.linear.operator import Prepared, TangentOperator
from efface.network.device import CPU
from efface.parts.tangent.problem import RidgeProblem

SLACK = 1.01  # covers the rounding of the bound itself, which is relatively N u, far below 1 %
FEW = 6  # roundings of a layer beside its sums: bias, activation, scale, the sum of two terms


@dataclass(frozen=True)
class Measured:
    """‖g‖ as computed, and how far that may be off; None where some layer's rounding is not bounded."""

    norm: float
    error: float | None


@dataclass(frozen=True)
class Roundings:
    """Of a product J v, of Jᵀu down to a weight, and how many rows a sample adds to a weight's sum."""

    forward: int
    backward: int
    positions: int = 1

    def after(self, other: Roundings) -> Roundings:
        return Roundings(
            self.forward + other.forward,
            self.backward + other.backward,
            max(self.positions, other.positions),
        )


def measured_gradient(
    problem: RidgeProblem, w: Tensor, dtype: torch.dtype = torch.float64
) -> Measured:
    """‖g_D(w)‖ and a bound on its rounding error, one pass."""
    plain, absolute = _plain(problem.operator), _absolute(problem.operator)
    bounded, u = not _opaque(plain.layer), torch.finfo(dtype).eps / 2
    total, above = problem.zeros(), problem.zeros()
    roundings = Roundings(0, 0)
    problem.passes += 1
    for start in range(0, problem.n, problem.batch_size):
        part = slice(start, min(start + problem.batch_size, problem.n))
        batch = plain.prepare(problem.activations[part], dtype)
        y = problem.targets[part].to(dtype)
        residual = batch.outputs + plain.jvp(batch, w) - y
        total += plain.vjp(batch, residual)
        if bounded:
            roundings = _count(plain.layer, batch.saved)
            saved = tree_map(_abs, batch.saved)
            positive = Prepared(batch.outputs.abs(), saved, absolute.layer)
            reach = positive.outputs + absolute.jvp(positive, w.abs()) + y.abs()
            above += absolute.vjp(positive, reach)
    n = max(problem.n, 1)
    norm = float((total / n + problem.mu * w).norm())
    if not bounded:
        return Measured(norm, None)
    way_back = roundings.backward + n * roundings.positions
    constant = _gamma(roundings.forward + FEW, u) + _gamma(way_back + FEW, u)
    products = constant * float(above.norm()) / n
    own = 8 * u * problem.mu * float(w.norm()) + _gamma(problem.d + FEW, 2.0**-53) * norm
    return Measured(norm, SLACK * (products + own))


def _gamma(k: int, u: float) -> float:
    return k * u / (1 - k * u) if k * u < 0.5 else float("inf")


def _abs(saved: Tensor) -> Tensor:
    return saved if saved.dtype == torch.bool else saved.abs()


def _plain(operator: TangentOperator) -> TangentOperator:
    """The same map, its convolutions as plain sums of products."""
    return _with_layer(operator, operator.tail)


def _absolute(operator: TangentOperator) -> TangentOperator:
    """The map whose layers have the absolute values of the weights."""
    tail = copy.deepcopy(operator.tail)
    with torch.no_grad():
        for parameter in tail.parameters():
            parameter.abs_()
    return _with_layer(operator, tail)


def _with_layer(operator: TangentOperator, tail: nn.Module) -> TangentOperator:
    made = copy.copy(operator)
    layer = lower(tail, winograd=False, merged=False)
    if len(operator.layout.names) < len(list(tail.parameters())):
        layer = freeze_below(layer, operator.layout.names)
    made.tail, made.layer, made.lean, made.device = tail, layer, None, CPU
    made.scales = {name: abs(scale) for name, scale in operator.scales.items()}
    return made


def _inner(layer: Layer) -> list[Layer]:
    if isinstance(layer, Chain):
        return layer.layers
    if isinstance(layer, ResidualLayer):
        return [layer.body, layer.shortcut, layer.activation]
    return [layer.inner] if isinstance(layer, ViewsLayer) else []


def _opaque(layer: Layer) -> bool:
    return isinstance(layer, OpaqueLayer) or any(map(_opaque, _inner(layer)))


def _count(layer: Layer, saved: Saved) -> Roundings:
    """The roundings of one layer, or of the longest way through several."""
    if isinstance(layer, ViewsLayer):  # samples in front, then views: both are rows of the sums
        flat = tree_map(lambda t: t.flatten(0, 1), saved)
        inner = _count(layer.inner, flat)
        return Roundings(
            inner.forward + layer.views + FEW,
            inner.backward + layer.views + FEW,
            inner.positions * layer.views,
        )
    if isinstance(
        layer, Chain | ResidualLayer
    ):  # the branches of a residual block: at most their sum
        total = Roundings(FEW, FEW)
        for part, own in zip(_inner(layer), saved, strict=True):
            total = total.after(_count(part, own))
        return total
    if isinstance(layer, ConvLayer):
        cols, (kh, kw) = saved[0], layer.kernel
        way_back = layer.weight.shape[0] + kh * kw + FEW
        return Roundings(cols.shape[-1] + FEW, way_back, cols[0, ..., 0].numel())
    if isinstance(layer, LinearLayer):
        x = saved[0]
        return Roundings(x.shape[-1] + FEW, layer.weight.shape[0] + FEW, x[0, ..., 0].numel())
    if isinstance(layer, GlobalMeanLayer):
        h, w = saved[0].shape[1:3]
        return Roundings(h * w + FEW, FEW)
    return Roundings(FEW, FEW, _spread(saved))


def _spread(saved: Saved) -> int:
    """Entries a sample of what a layer without a product keeps: no fewer than what it sums over."""
    return max((t[0].numel() for t in saved if t.dim()), default=1)
