"""Steps for every tensor of an integer network, found on images that never have to be forgotten.

A step is a power of two. For tensors that layers read it is set by what the largest one in ten thousand
numbers of an image reaches, on average over the images (the largest of all where there are fewer numbers):
rare large numbers are clipped, and the rest is resolved the better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from efface.arithmetic.integer.graph import REACH, IntegerGraph, evaluate, summed
from efface.arithmetic.integer.ops import Affine, NoIntegerForm, Op
from efface.arithmetic.integer.sums import least_exponent
from efface.linear.taps import Tapped

RARE = 1e-4  # the share of an image's numbers that may be clipped
RARE_GRADIENT = 5e-4
ENOUGH = 2**16  # numbers of an image to look at


@dataclass(frozen=True)
class Seen:
    """What float evaluation showed of the tensors by number: how large, and of which shape (one sample)."""

    sizes: Mapping[int, float]  # of layers' inputs: all but the rarest numbers
    largest: Mapping[int, float]
    shapes: tuple[tuple[int, ...], ...]
    output: Tensor  # the last tensor

    def exponents(self, ops: Sequence[Op], *, output: bool) -> dict[int, int]:
        found = {}
        for number, by_means in summed(ops, output=output).items():
            if by_means:  # these have bits to spare: nothing need be clipped
                found[number] = _exponent(2 * self.largest[number], 2**16 - 1)
            else:
                found[number] = _exponent(self.sizes[number] or self.largest[number], REACH)
        return found


def look(
    ops: Sequence[Op], batches: Iterable[Tensor], *, output: bool, matched: bool = False
) -> Seen:
    """Run the operations in float32 and note what every summed tensor reaches."""
    wanted = summed(ops, output=output)
    sizes: dict[int, list[float]] = {}
    largest: dict[int, float] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    outputs = []

    def observe(number: int, y: Tensor) -> None:
        shapes[number] = tuple(y.shape[1:])
        if number not in wanted:
            return
        least, most = y.aminmax()
        largest[number] = max(largest.get(number, 0.0), abs(float(least)), abs(float(most)))
        some = y.flatten(1)
        some = some[:, :: max(1, some.shape[1] // ENOUGH)].abs()
        rare = some.topk(max(1, math.ceil(RARE * some.shape[1])), dim=1).values[:, -1]
        sizes.setdefault(number, []).extend(rare.tolist())

    for x in batches:
        shapes[0] = tuple(x.shape[1:])
        outputs.append(evaluate(ops, x, observe, matched=matched))
    if not outputs:
        raise NoIntegerForm("no images to find its scales on.")
    # In a small tensor the rarest number is the largest one: a mean would clip every other image.
    small = {n for n in sizes if math.prod(shapes[n]) * RARE < 1}
    means = {n: max(v) if n in small else sum(v) / len(v) for n, v in sizes.items()}
    ordered = tuple(shapes[n] for n in range(len(ops) + 1))
    return Seen(means, largest, ordered, torch.cat(outputs))


def gradient_exponents(graph: IntegerGraph, tapped: Tapped) -> dict[int, int]:
    """Of every layer's output gradient, from the same in float32."""
    pairs = dict(zip(tapped.names, tapped.pairs, strict=True))
    found = {}
    for number, op in graph.numbered():
        if not isinstance(op, Affine):
            continue
        if op.name not in pairs:
            raise NoIntegerForm(
                f"{op.name}: the features do not depend on it in a way that is seen."
            )
        size = pairs[op.name][1].abs().flatten()
        rank = max(1, math.ceil((1 - RARE_GRADIENT) * len(size)))
        common = float(size.kthvalue(rank).values)
        found[number] = _exponent(common or float(size.max()), REACH)
    return found


def _exponent(size: float, reach: int) -> int:
    return int(least_exponent(torch.tensor(size, dtype=torch.float64), reach))
