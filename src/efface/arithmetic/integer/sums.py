"""Sums of integers in float32: exact, in any order, with or without fused operations.

A float32 holds every integer up to 2^24. So a sum Σ_i w_i x_i of integers, with |x_i| ≤ a, is exact in
whatever order a kernel adds as long as

    a Σ_i |w_i| + |b| < 2^24,

since no partial sum can pass that. Multiplying all w_i and b of one output by a power of two changes
nothing in the argument: every partial sum is a multiple of that power. ``ExactAffine`` proves the
inequality from its own weights when it is built, and splits the inputs of a sum that is too long; the
parts are added one by one, each addition rounded once (IEEE: the same on every machine).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from efface.arithmetic.integer.ops import Affine, Geometry, NoIntegerForm
from efface.arithmetic.integer.unfolded import convolve

EXACT = 2**24
WEIGHT_MAX = 127
BIAS_MAX = 2**22
LEAST = -126  # no step is smaller than 2^LEAST


def divided(x: Tensor, number: float) -> Tensor:
    """x / number, rounded once. By a tensor: of a plain number some devices take the reciprocal first."""
    return x / x.new_full((), number)


def least_exponent(largest: Tensor, levels: float) -> Tensor:
    """The least e with ``largest ≤ levels · 2^e``, as int64; ``LEAST`` at least."""
    mantissa, exponent = torch.frexp(largest.double() / levels)
    exact = mantissa == 0.5  # a power of two already
    return torch.where(largest > 0, exponent - exact.int(), LEAST).to(torch.int64).clamp(min=LEAST)


def power(exponent: Tensor | int) -> Tensor:
    """2^exponent, float64."""
    exponent = torch.as_tensor(exponent)
    return torch.ldexp(torch.ones(exponent.shape, dtype=torch.float64), exponent)


def weight_exponents(weight: Tensor, least: Tensor | int = LEAST) -> Tensor:
    """For each output the power of two, of the two that could do, with the least squared error; ≥ ``least``.

    Errors are compared as sums of integers (squares of 1/1024 steps, below 2^53): a function of the weights
    alone, so it need not be stored.
    """
    flat = weight.flatten(1)  # (c, m)
    least = torch.as_tensor(least)
    top = torch.maximum(least_exponent(flat.abs().amax(1), WEIGHT_MAX), least)
    finer = torch.maximum(top - 1, least)
    better = _squared_error(flat, finer) < 4 * _squared_error(flat, top)
    return torch.where((finer < top) & better, finer, top)


def _squared_error(flat: Tensor, exponent: Tensor) -> Tensor:
    """In squares of 1/1024 of the step."""
    scaled = flat / power(exponent)[:, None]
    off = scaled - torch.round(scaled).clamp(-WEIGHT_MAX, WEIGHT_MAX)
    return torch.round(off * 1024).square().sum(1)


def integers(values: Tensor, step: Tensor, limit: int = WEIGHT_MAX) -> Tensor:
    """``clip(rint(values / step), ±limit)``, float64."""
    return torch.round(values / step).clamp(-limit, limit)


@dataclass(frozen=True, eq=False)
class ExactAffine:
    """y = 2^shift (W x + b) on integers x, |x| ≤ ``reach``: W and b integers, one shift for each output.

    ``parts`` are input channels and their weights, already multiplied by 2^shift.
    """

    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    parts: tuple[tuple[slice, Tensor], ...]
    bias: Tensor | None
    shift: Tensor  # (c,) int64
    channel: int  # the dimension of the inputs that is split
    sum_bound: int  # no |partial sum| of integers is larger, in any part
    geometry: Geometry | None = None

    @classmethod
    def build(
        cls, op: Affine, weight: Tensor, bias: Tensor | None, shift: Tensor, reach: int
    ) -> ExactAffine:
        """``weight`` (c, …) and ``bias`` (c,) are integers, float64; proves that every sum is exact."""
        grouped = op.geometry is not None and op.geometry.groups > 1
        cuts, bound = _cuts(weight, bias, reach, splittable=not grouped)
        factor = power(shift)
        scaled = (weight * factor.reshape(-1, *[1] * (weight.dim() - 1))).float()
        layout = torch.channels_last if scaled.dim() == 4 else torch.contiguous_format
        parts = tuple(
            (slice(a, b), scaled[:, a:b].contiguous(memory_format=layout)) for a, b in cuts
        )
        scaled_bias = None if bias is None else (bias * factor).float()
        channel = 1 if op.geometry is not None else -1
        return cls(op.apply, parts, scaled_bias, shift, channel, bound, op.geometry)

    def to(self, device: torch.device) -> ExactAffine:
        """The same on another device: there a convolution is a product of matrices (``unfolded``)."""
        apply = self.apply if self.geometry is None else partial(convolve, self.geometry)
        parts = tuple((span, weight.to(device)) for span, weight in self.parts)
        bias = None if self.bias is None else self.bias.to(device)
        return replace(self, apply=apply, parts=parts, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """(n, …) integers in float32 -> (n, …), exact if there is one part, else rounded once a part."""
        if len(self.parts) == 1:
            return self.apply(x, self.parts[0][1], self.bias)
        total: Tensor | None = None
        for span, weight in self.parts:
            piece = x.narrow(self.channel, span.start, span.stop - span.start)
            piece = _contiguous(piece)
            y = self.apply(piece, weight, self.bias if total is None else None)
            total = y if total is None else total.add_(y)
        assert total is not None
        return total


def _contiguous(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()


def _cuts(
    weight: Tensor, bias: Tensor | None, reach: int, *, splittable: bool
) -> tuple[list[tuple[int, int]], int]:
    """Equal spans of input channels such that ``reach Σ|w| + |b| < 2^24`` in each, and the largest sum."""
    size = weight.flatten(2).abs().sum(2) if weight.dim() > 2 else weight.abs()  # (c, inputs)
    extra = torch.zeros(len(weight)).double() if bias is None else bias.abs()
    width = weight.shape[1]
    for count in range(1, width + 1):
        edges = [width * i // count for i in range(count + 1)]
        cuts = list(itertools.pairwise(edges))
        sums = [reach * size[:, a:b].sum(1) + (extra if a == 0 else 0) for a, b in cuts]
        bound = int(max(float(s.max()) for s in sums))
        if bound < EXACT:
            return cuts, bound
        if not splittable:
            break
    raise NoIntegerForm(f"a sum of {int(size.sum(1).max()) * reach} does not fit 2^24, even split.")
