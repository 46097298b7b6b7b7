"""The backward pass on integers: ∂(1ᵀh) at the output of every convolution and linear layer of a tail.

As in the forward pass every sum is one of integers: gradients are rounded to q = clip(rint(g / 2^e),
±reach) at the output of each layer, and pulled back through weights that are rounded anew for this
direction, with a step for each *input* channel. It is not the derivative of the rounded network (which is
0 almost everywhere) but that of the network itself, computed coarsely and always in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from efface.arithmetic.integer.graph import REACH, IntegerGraph, Kept
from efface.arithmetic.integer.ops import (
    Activation,
    Add,
    Affine,
    ChannelAffine,
    Flatten,
    MaxPool,
    Mean,
    NoIntegerForm,
    Op,
)
from efface.arithmetic.integer.sums import (
    ExactAffine,
    divided,
    integers,
    power,
    weight_exponents,
)
from efface.arithmetic.integer.unfolded import pull_back


class IntegerGradient:
    """Backward from 1ᵀh to all layers with weights.

    Args:
        graph: the forward pass.
        exponents: of each layer's output gradient, by the layer's number.
    """

    def __init__(self, graph: IntegerGraph, exponents: Mapping[int, int]) -> None:
        self.graph, self.exponents = graph, dict(exponents)
        missing = [
            op.name for n, op in graph.numbered() if isinstance(op, Affine) and n not in exponents
        ]
        if missing:
            raise NoIntegerForm(f"no step for the gradients of {missing}.")
        self.below = _with_layers_below(graph)
        self.pull: dict[int, ExactAffine] = {}
        for number, op in graph.numbered():
            if isinstance(op, MaxPool) and op.inputs[0] in self.below:
                raise NoIntegerForm(f"{op.name}: no gradients through MaxPool2d.")
            if isinstance(op, Affine) and op.inputs[0] in self.below:
                self.pull[number] = _transposed(op, self.exponents[number])
        factors = [(n, op) for n, op in graph.numbered() if isinstance(op, ChannelAffine)]
        self.factors = {number: op.factor.float() for number, op in factors}
        self.placed = False  # convolutions as products of matrices

    def to(self, graph: IntegerGraph) -> IntegerGradient:
        """The same where ``graph`` is, which is this one's on another device."""
        made = copy.copy(self)
        made.graph, made.placed = graph, True
        made.pull = {number: exact.to(graph.device) for number, exact in self.pull.items()}
        made.factors = {number: f.to(graph.device) for number, f in self.factors.items()}
        return made

    @torch.no_grad()
    def __call__(self, kept: Kept, features: Tensor, scale: float = 1.0) -> dict[int, Tensor]:
        """For each layer by number: integers, whose unit is 2^exponent, of scale · ∂(1ᵀh)."""
        found: dict[int, Tensor] = {}
        waiting = {len(self.graph.ops): torch.full_like(features, scale)}
        for number, op in reversed(self.graph.numbered()):
            if number not in waiting:
                continue
            g = waiting.pop(number)
            if isinstance(op, Affine):
                g = g * float(power(-self.exponents[number]))
                found[number] = g = g.round_().clamp_(-REACH, REACH)
            for i in dict.fromkeys(op.inputs):
                if i in self.below:
                    part = self._through(number, op, g, kept)
                    waiting[i] = waiting[i] + part if i in waiting else part
        return found

    def _through(self, number: int, op: Op, g: Tensor, kept: Kept) -> Tensor:
        """The gradient at the operation's input."""
        shape = (len(g), *self.graph.shapes[op.inputs[0]])
        if isinstance(op, Affine):
            return self._pulled(number, op, g, shape)
        if isinstance(op, Activation):
            return g * kept.slopes[number]
        if isinstance(op, Add):
            return g * 2 if op.inputs[0] == op.inputs[1] else g
        if isinstance(op, Mean):
            places = shape[-1] * shape[-2]
            return divided(g, places).reshape(*shape[:2], 1, 1).expand(shape)
        if isinstance(op, Flatten):
            return g.reshape(shape)
        assert isinstance(op, ChannelAffine)
        return g * self.factors[number].view(1, -1, *[1] * (g.dim() - 2))

    def _pulled(self, number: int, op: Affine, g: Tensor, shape: tuple[int, ...]) -> Tensor:
        exact = self.pull[number]
        if op.geometry is None:
            return exact(g)
        total: Tensor | None = None
        o = op.geometry
        for span, weight in exact.parts:
            piece = g[:, span].contiguous(memory_format=torch.channels_last)
            if not self.placed:
                y = conv2d_input(shape, weight, piece, o.stride, o.padding, o.dilation, o.groups)
            else:
                y = pull_back(o, piece, weight, shape)
            total = y if total is None else total.add_(y)
        assert total is not None
        return total


def _with_layers_below(graph: IntegerGraph) -> set[int]:
    """The tensors that depend on a layer with weights: only there a gradient has to go."""
    below: set[int] = set()
    for number, op in graph.numbered():
        if isinstance(op, Affine) or any(i in below for i in op.inputs):
            below.add(number)
    return below


def _transposed(op: Affine, e_out: int) -> ExactAffine:
    """Wᵀ on integers whose unit is 2^e_out, to plain numbers: one step for each input channel."""
    if op.geometry is not None and op.geometry.groups > 1:
        raise NoIntegerForm(f"{op.name}: no gradients through grouped convolutions.")
    turned = op.weight.transpose(0, 1)  # (inputs, outputs, …)
    exponent = weight_exponents(turned)
    step = power(exponent).reshape(-1, *[1] * (turned.dim() - 1))
    exact = ExactAffine.build(op, integers(turned, step), None, exponent + e_out, REACH)
    if op.geometry is None:
        return exact
    # conv2d_input wants (outputs, inputs, …), and the outputs are what is split.
    parts = tuple((span, w.transpose(0, 1).contiguous()) for span, w in exact.parts)
    return replace(exact, parts=parts)
