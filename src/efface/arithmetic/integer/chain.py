"""The integer form as one plain module, for other programs: pixels in, ψ and the core's logits out.

The same sums of the same integers as ``graph``, ``gradient``, ``tail`` and ``head``, one after the other and
nothing in place, so that torch.export and ONNX can write them down; tests compare the bits. Two things
are written differently than there, because other programs rewrite graphs:

- a product with what is no power of two goes through float64 (48 bits of it are exact, then it is rounded
  to float32 once, as before). Optimisers fuse a convolution with the factor behind it, and its weights would
  be no integers any more; they do not look through a change of type.
- the power of two beside a row's largest feature is looked up in a table: ONNX has no frexp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from efface.arithmetic.integer.gradient import IntegerGradient
from efface.arithmetic.integer.graph import REACH, IntegerGraph
from efface.arithmetic.integer.head import FEATURE_BITS, LIMB_BITS, limbs
from efface.arithmetic.integer.ops import (
    Activation,
    Add,
    Affine,
    ChannelAffine,
    Flatten,
    Mean,
    Op,
)
from efface.arithmetic.integer.plain_graph import PlainAffine, PlainGraph, rounded_product, times
from efface.arithmetic.integer.sums import LEAST, power
from efface.arithmetic.integer.tail import ChannelEnergies, IntegerTail, Projected, projection_reach
from efface.linear.matrix_root import covariance_roots

MOST_EXPONENT = 128 - FEATURE_BITS  # of a row's step: no float32 is larger than 2^128


class IntegerChain(nn.Module):
    """Pixels (n, c, h, w) uint8 -> ψ (n, k) and f_core (n, classes), float32.

    Args:
        prefix: up to the boundary.
        tail: behind it, with its projection.
        head: the core's.
        centre: round(255 · mean), one number a channel.
    """

    centre: Tensor

    def __init__(
        self, prefix: IntegerGraph, tail: IntegerTail, head: nn.Linear, centre: Tensor
    ) -> None:
        super().__init__()
        self.views = tail.views
        self.register_buffer("centre", centre.float().view(1, -1, 1, 1))
        self.prefix, self.tail = PlainGraph(prefix), PlainTail(tail)
        self.head = PlainHead(head)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        q = pixels.float() - self.centre
        if self.views > 1:
            q = torch.stack([q, q.flip(-1)], dim=1).flatten(0, 1)
        psi, h = self.tail(self.prefix(q)[0])
        return psi, self.head(h)


class PlainTail(nn.Module):
    """``IntegerTail``: boundary integers, every view a sample, to ψ (n, k) and h (n, p)."""

    def __init__(self, tail: IntegerTail) -> None:
        super().__init__()
        self.views, self.maps = tail.views, frozenset(tail.maps.values())
        self.run = PlainGraph(tail.graph)
        self.unit = float(power(tail.graph.units[len(tail.graph.ops)]))
        self.gradient = None
        if tail.projection.has_gradients:
            assert tail.gradient is not None
            self.gradient = PlainGradient(tail.gradient)
        self.projected = nn.ModuleList(PlainProjected(tail, p) for p in tail.projected)
        self.energies = nn.ModuleList(PlainEnergies(tail, e) for e in tail.energies)
        self.register_buffer("part_scales", tail.projection.part_scales.double().clone())

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        last, values, slopes = self.run(q)
        found = {} if self.gradient is None else self.gradient(last, values, slopes, self.views)
        h = self._pooled(last)
        first = [e(values) for e in self.energies] or [h]
        parts = [*first, *(p(values, found) for p in self.projected)]
        scales = self.get_buffer("part_scales")
        scaled = [(p.double() / scales[i]).float() for i, p in enumerate(parts)]
        return torch.cat([scaled[0], torch.ones_like(h[:, :1]), *scaled[1:]], dim=1), h

    def _pooled(self, last: Tensor) -> Tensor:
        h = times(last, self.unit)
        if self.views == 1:
            return h
        h = h.reshape(-1, self.views, h.shape[1])
        return (h[:, 0] + h[:, 1]) * 0.5


class PlainGradient(nn.Module):
    """``IntegerGradient``: ∂(1ᵀh) at the output of every layer, integers in its step, by number."""

    def __init__(self, gradient: IntegerGradient) -> None:
        super().__init__()
        self.gradient, self.graph = gradient, gradient.graph
        self.pull, shapes = nn.ModuleDict(), self.graph.shapes
        for number, exact in gradient.pull.items():
            op = self.graph.ops[number - 1]
            assert isinstance(op, Affine)
            turned = (shapes[number], shapes[op.inputs[0]])
            self.pull[str(number)] = PlainAffine(exact, op.geometry, turned=turned)
        for number, op in self.graph.numbered():
            if isinstance(op, ChannelAffine):
                view = (1, -1, *[1] * (len(shapes[number]) - 1))
                self.register_buffer(f"factor{number}", op.factor.float().double().view(view))

    def forward(
        self,
        last: Tensor,
        values: Mapping[int, Tensor],
        slopes: Mapping[int, Tensor],
        views: int,
    ) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        waiting = {len(self.graph.ops): torch.ones_like(last) / views}
        for number, op in reversed(self.graph.numbered()):
            if number not in waiting:
                continue
            g = waiting.pop(number)
            if isinstance(op, Affine):
                g = g * math.ldexp(1.0, -self.gradient.exponents[number])
                found[number] = g = g.round().clamp(-REACH, REACH)
            for i in dict.fromkeys(op.inputs):
                if i in self.gradient.below:
                    part = self._through(number, op, g, values[i], slopes)
                    waiting[i] = waiting[i] + part if i in waiting else part
        return found

    def _through(
        self, number: int, op: Op, g: Tensor, x: Tensor, slopes: Mapping[int, Tensor]
    ) -> Tensor:
        if isinstance(op, Affine):
            y: Tensor = self.pull[str(number)](g)
            return y
        if isinstance(op, Activation):
            return g * slopes[number]
        if isinstance(op, Add):
            return g * 2 if op.inputs[0] == op.inputs[1] else g
        if isinstance(op, Mean):
            places = x.shape[-1] * x.shape[-2]
            return (g / places).reshape(-1, x.shape[1], 1, 1).expand_as(x)
        if isinstance(op, Flatten):
            return g.reshape(x.shape)
        assert isinstance(op, ChannelAffine)
        return rounded_product(g, self.get_buffer(f"factor{number}"))


class PlainEnergies(nn.Module):
    """``ChannelEnergies.row``: exact in float64, rounded once."""

    def __init__(self, tail: IntegerTail, summed: ChannelEnergies) -> None:
        super().__init__()
        self.number, graph = summed.number, tail.graph
        self.ratio = math.ldexp(1.0, graph.units[summed.number] - summed.exponent)
        self.unit = math.ldexp(1.0, 2 * summed.exponent)
        self.places = tail.views * _num_places(graph.shapes[summed.number])

    def forward(self, values: Mapping[int, Tensor]) -> Tensor:
        q = _places_last((values[self.number] * self.ratio).round().clamp(-REACH, REACH)).double()
        q = q.reshape(-1, self.places, q.shape[-1])
        return ((q * q).sum(1) * self.unit).float()


class PlainProjected(nn.Module):
    """``Projected.row``."""

    above: Tensor | None  # which products are moments

    def __init__(self, tail: IntegerTail, projected: Projected) -> None:
        super().__init__()
        p, graph = projected, tail.graph
        self.number, self.is_map = p.number, p.number in tail.maps.values()
        self.map_ratio = float(power(graph.units[p.number] - p.gradient_exponent))
        op = None if self.is_map else graph.ops[p.number - 1]
        self.reads = p.number if op is None else op.inputs[0]
        geometry = op.geometry if isinstance(op, Affine) else None
        self.inputs = PlainAffine(p.inputs, geometry)
        self.gradients = None if p.gradients is None else PlainAffine(p.gradients, None)
        exponent = p.input_exponent + (
            p.input_exponent if p.gradients is None else p.gradient_exponent
        )
        self.unit = float(power(exponent))
        self.places, self.roots = tail.views * _num_places(graph.shapes[p.number]), p.roots
        size = p.inputs.shift.numel()
        above = np.ravel_multi_index(np.triu_indices(size), (size, size))
        self.register_buffer("above", torch.from_numpy(above) if p.gradients is None else None)

    def forward(self, values: Mapping[int, Tensor], gradients: Mapping[int, Tensor]) -> Tensor:
        x = values[self.reads]
        if self.is_map:
            x = _places_last((x * self.map_ratio).round().clamp(-REACH, REACH))
        a = b = self._cut(_places_last(self.inputs(x)))
        if self.gradients is not None:
            b = self._cut(self.gradients(_places_last(gradients[self.number])))
        square = covariance_roots(a) if self.roots else b.transpose(1, 2) @ a
        products = square.flatten(1)
        if self.above is not None:
            products = products.index_select(1, self.above)
        return products.float() if self.roots else products * self.unit

    def _cut(self, a: Tensor) -> Tensor:
        """(n, places, r), rounded."""
        reach = projection_reach(self.places)
        return a.reshape(-1, self.places, a.shape[-1]).round().clamp(-reach, reach)


def _num_places(shape: tuple[int, ...]) -> int:
    """Of one view: a map's (c, h, w), or the tokens' (…, c)."""
    return math.prod(shape[1:] if len(shape) == 3 else shape[:-1])


def _places_last(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2) if x.dim() == 4 else x


class PlainHead(nn.Module):
    """``exact_linear``: head(h) on exact sums, float32."""

    steps: Tensor  # of a row, to choose from
    reached: Tensor  # by each of them
    high: Tensor
    low: Tensor
    unit: Tensor
    bias: Tensor | None

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        high, low, unit = limbs(head.weight.detach().double())
        exponents = torch.arange(LEAST, MOST_EXPONENT + 1)
        self.register_buffer("steps", power(exponents))
        self.register_buffer("reached", power(exponents + FEATURE_BITS))
        self.register_buffer("high", high.T.contiguous())
        self.register_buffer("low", low.T.contiguous())
        self.register_buffer("unit", power(unit))
        bias = None if head.bias is None else head.bias.detach().double().clone()
        self.register_buffer("bias", bias)

    def forward(self, h: Tensor) -> Tensor:
        wide = h.double()
        largest = wide.abs().amax(1, keepdim=True)  # (n, 1)
        at = (largest > self.reached).sum(1)
        step = self.steps[at].unsqueeze(1)
        q = (wide / step).round()
        total = (q @ self.high) * 2.0**LIMB_BITS + q @ self.low
        logits = total * (step * self.unit)
        return (logits if self.bias is None else logits + self.bias).float()
