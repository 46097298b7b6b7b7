"""Integer layers and graphs as plain modules, for other programs: the lower half of ``chain``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efface.arithmetic.integer.graph import IntegerGraph
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
from efface.arithmetic.integer.sums import ExactAffine, power


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
            a, b = (times(values[i], self._ratio(i, number)) for i in op.inputs)
            return a + b
        if isinstance(op, MaxPool):
            x = op.apply(x)
        if isinstance(op, Flatten):
            x = x.flatten(1)
        x = times(x, self._ratio(op.inputs[0], number))
        return self._activate(number, op, x, slopes) if isinstance(op, Activation) else x

    def _ratio(self, source: int, target: int) -> float:
        return math.ldexp(1.0, self.graph.units[source] - self.graph.units[target])

    def _mean(self, number: int, op: Mean, x: Tensor) -> Tensor:
        places = math.prod(self.graph.shapes[op.inputs[0]][-2:])
        unit = self.graph.exponent(op.inputs[0]) - self.graph.units[number]
        return times(x.sum(dim=(2, 3), keepdim=op.keep) / places, math.ldexp(1.0, unit))

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


def times(x: Tensor, factor: float) -> Tensor:
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
        return rounded_product(x, self.factor) + self.shift


def rounded_product(x: Tensor, factor: Tensor) -> Tensor:
    """x · factor of float32 numbers, rounded to float32 once; ``factor`` is held in float64."""
    return (x.double() * factor).float()
