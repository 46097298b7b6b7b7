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
import torch.nn.functional as F
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
    Geometry,
    MaxPool,
    Mean,
    Op,
)
from efface.arithmetic.integer.sums import LEAST, ExactAffine, power
from efface.arithmetic.integer.tail import IntegerTail, Projected, Summed, projection_reach
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


class PlainAffine(nn.Module):
    """``ExactAffine``; with ``turned``, the shapes of what it reads and gives, a layer's way back."""

    bias: Tensor | None

    def __init__(
        self,
        exact: ExactAffine,
        geometry: Geometry | None,
        *,
        turned: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__()
        self.spans = [(span.start, span.stop) for span, _ in exact.parts]
        self.geometry, self.channel, self.turned = geometry, exact.channel, turned
        for i, (_, weight) in enumerate(exact.parts):
            self.register_buffer(f"weight{i}", weight.detach().clone().contiguous())
        bias = None if exact.bias is None else exact.bias.detach().clone()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor | None = None
        for i, (start, stop) in enumerate(self.spans):
            piece = x if len(self.spans) == 1 else x.narrow(self.channel, start, stop - start)
            y = self._times(piece, self.get_buffer(f"weight{i}"), self.bias if i == 0 else None)
            total = y if total is None else total + y
        assert total is not None
        return total

    def _times(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        o = self.geometry
        if o is None:
            return F.linear(x, weight, bias)
        if self.turned is None:
            return o.convolve(x, weight, bias)
        left = _left_over(o, weight, *self.turned)
        return F.conv_transpose2d(x, weight, None, o.stride, o.padding, left, o.groups, o.dilation)


def _left_over(
    o: Geometry, weight: Tensor, given: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, int]:
    """Rows and columns of the input that a convolution with strides never got to."""
    sides = []
    for i in (0, 1):
        reached = (given[-2:][i] - 1) * o.stride[i] - 2 * o.padding[i]
        reached += o.dilation[i] * (weight.shape[2 + i] - 1) + 1
        sides.append(wanted[-2:][i] - reached)
    return sides[0], sides[1]


class PlainGraph(nn.Module):
    """``IntegerGraph``: integers to its last tensor; beside it, by number, all others and the slopes."""

    def __init__(self, graph: IntegerGraph) -> None:
        super().__init__()
        self.graph = graph  # no module: its weights are in those below
        self.layers = nn.ModuleDict()
        for number, op in graph.numbered():
            if isinstance(op, Affine):
                self.layers[str(number)] = PlainAffine(graph.affine[number], op.geometry)
            elif isinstance(op, ChannelAffine):
                self.layers[str(number)] = _PlainChannels(graph, number, op)

    def forward(self, q: Tensor) -> tuple[Tensor, dict[int, Tensor], dict[int, Tensor]]:
        values, slopes = {0: q}, dict[int, Tensor]()
        for number, op in self.graph.numbered():
            y = self._run(number, op, values, slopes)
            if number in self.graph.summed:
                reach = self.graph.reach[number]
                low = 0 if self.graph.nonnegative(number) else -reach
                y = y.round().clamp(low, reach)
            values[number] = y
        return values[len(self.graph.ops)], values, slopes

    def _run(
        self, number: int, op: Op, values: Mapping[int, Tensor], slopes: dict[int, Tensor]
    ) -> Tensor:
        x = values[op.inputs[0]]
        if isinstance(op, Affine | ChannelAffine):
            y: Tensor = self.layers[str(number)](x)
            return y
        if isinstance(op, Mean):
            return self._mean(number, op, x)
        if isinstance(op, Add):
            a, b = (_times(values[i], self._ratio(i, number)) for i in op.inputs)
            return a + b
        if isinstance(op, MaxPool):
            x = op.apply(x)
        if isinstance(op, Flatten):
            x = x.flatten(1)
        x = _times(x, self._ratio(op.inputs[0], number))
        return self._activate(number, op, x, slopes) if isinstance(op, Activation) else x

    def _ratio(self, source: int, target: int) -> float:
        return math.ldexp(1.0, self.graph.units[source] - self.graph.units[target])

    def _mean(self, number: int, op: Mean, x: Tensor) -> Tensor:
        places = math.prod(self.graph.shapes[op.inputs[0]][-2:])
        unit = self.graph.exponent(op.inputs[0]) - self.graph.units[number]
        return _times(x.sum(dim=(2, 3), keepdim=op.keep) / places, math.ldexp(1.0, unit))

    def _activate(
        self, number: int, op: Activation, x: Tensor, slopes: dict[int, Tensor]
    ) -> Tensor:
        cap = None if op.cap is None else op.cap / math.ldexp(1.0, self.graph.units[number])
        positive = x > 0
        slope = torch.where(positive, 1.0, op.slope)
        slopes[number] = slope if cap is None else torch.where(x >= cap, 0.0, slope)
        if number in self.graph.summed and op.slope == 0 and cap is None:
            return x  # rounding will clip at 0
        y = torch.where(positive, x, x * op.slope)
        return y if cap is None else y.clamp(max=cap)


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


class _PlainChannels(nn.Module):
    """y = factor · x + shift, the product rounded once and the sum once."""

    factor: Tensor
    shift: Tensor

    def __init__(self, graph: IntegerGraph, number: int, op: ChannelAffine) -> None:
        super().__init__()
        view = (1, -1, *[1] * (len(graph.shapes[number]) - 1))
        ratio = power(graph.units[op.inputs[0]] - graph.units[number])
        self.register_buffer("factor", (op.factor * ratio).float().double().view(view))
        self.register_buffer("shift", (op.shift / power(graph.units[number])).float().view(view))

    def forward(self, x: Tensor) -> Tensor:
        return _rounded_product(x, self.factor) + self.shift


def _rounded_product(x: Tensor, factor: Tensor) -> Tensor:
    """x · factor of float32 numbers, rounded to float32 once; ``factor`` is held in float64."""
    return (x.double() * factor).float()


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
        h = _times(last, self.unit)
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
        return _rounded_product(g, self.get_buffer(f"factor{number}"))


class PlainEnergies(nn.Module):
    """``Summed.row``: exact in float64, rounded once."""

    def __init__(self, tail: IntegerTail, summed: Summed) -> None:
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
