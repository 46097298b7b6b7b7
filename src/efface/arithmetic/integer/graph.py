"""A network on integers: what ``ops`` has read, with a power-of-two step for every tensor that is summed.

Every sum is a sum of integers below 2^24 (``sums``), so it is exact; every other operation works on
single numbers and is rounded once, as IEEE 754 has it. So the result does not depend on the order of
adding: not on the processor, the number of threads, the batch or the memory.

A tensor is *summed* if a convolution, a linear layer or a mean reads it. Before that it is rounded to
integers q = clip(rint(x / 2^e), low, reach), half to even, and stays so. In between (after a convolution,
before the rounding) numbers are held in units of the step they will be rounded to: powers of two cost no
accuracy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

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
    BIAS_MAX,
    EXACT,
    ExactAffine,
    divided,
    integers,
    least_exponent,
    power,
    weight_exponents,
)

Observer = Callable[[int, Tensor], None]

REACH = 255  # integers of summed tensors; of those that only a mean reads, more
MEAN_REACH = 2**16


@dataclass(frozen=True, eq=False)
class Source:
    """What the network's input integers are: x = factor · (q · 2^exponent) + shift, |q| ≤ reach.

    ``factor`` and ``shift`` (for each channel, float64; pixels have them) go into the layer that reads them.
    ``nonnegative``: no q is below 0.
    """

    exponent: int
    reach: int = REACH
    factor: Tensor | None = None
    shift: Tensor | None = None
    nonnegative: bool = False

    def real(self, q: Tensor) -> Tensor:
        """The numbers that the integers stand for, float32."""
        x = q.float() * float(power(self.exponent))
        if self.factor is None or self.shift is None:
            return x
        view = (1, -1, *[1] * (q.dim() - 2))
        return (x.double() * self.factor.view(view) + self.shift.view(view)).float()


def summed(ops: Sequence[Op], *, output: bool) -> dict[int, bool]:
    """Which tensors are summed -> whether by means alone. ``output``: the last one is rounded, too."""
    found: dict[int, bool] = {}
    for op in ops:
        if isinstance(op, Affine | Mean):
            number = op.inputs[0]
            found[number] = found.get(number, True) and isinstance(op, Mean)
    if output and ops:
        found[len(ops)] = False
    found.pop(0, None)  # the input is integers already
    return found


class IntegerGraph:
    """The operations, ready to run on integers.

    Args:
        ops: from ``read``.
        source: what the input is.
        exponents: of the summed tensors' steps, by number; from core (or public) images.
        output: whether the last tensor is rounded to integers, too (a prefix's boundary).
        shapes: of every tensor for one sample, by number: how many places a mean sums.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        source: Source,
        exponents: Mapping[int, int],
        *,
        output: bool,
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        self.ops, self.source, self.output = tuple(ops), source, output
        self.shapes = tuple(shapes)
        self.summed = summed(ops, output=output)
        missing = [n for n in self.summed if n not in exponents]
        if missing:
            raise NoIntegerForm(f"no scale for {[self.name(n) for n in missing]}.")
        self.exponents = {n: int(exponents[n]) for n in self.summed}
        self.units = self._units()
        self.reach = {n: self._reach(n) for n in self.summed} | {0: source.reach}
        self.users = self._users()
        self.affine = {
            n: self._prepare(n, op) for n, op in self.numbered() if isinstance(op, Affine)
        }
        self.channels = {
            n: self._scaled(n, op) for n, op in self.numbered() if isinstance(op, ChannelAffine)
        }
        self.device = torch.device("cpu")

    # --- built once -------------------------------------------------------------------------------

    def numbered(self) -> list[tuple[int, Op]]:
        return list(enumerate(self.ops, start=1))

    def name(self, number: int) -> str:
        return "input" if number == 0 else self.ops[number - 1].name

    def exponent(self, number: int) -> int:
        """e of a summed tensor, or of the input."""
        return self.source.exponent if number == 0 else self.exponents[number]

    def _users(self) -> dict[int, list[int]]:
        users: dict[int, list[int]] = {n: [] for n in range(len(self.ops) + 1)}
        for number, op in self.numbered():
            for i in op.inputs:
                users[i].append(number)
        return users

    def _units(self) -> dict[int, int]:
        """In units of 2^unit every tensor is held: its own step, or that of the operation that reads it."""
        units: dict[int, int] = {}
        users = self._users()
        for number in range(len(self.ops), 0, -1):
            op = self.ops[number - 1]
            if number in self.summed:
                units[number] = self.exponent(number)
            elif isinstance(op, Mean):  # a sum of integers, divided
                units[number] = self.exponent(op.inputs[0])
            elif users[number]:
                units[number] = units[users[number][0]]
            else:
                units[number] = 0
        return units | {0: self.source.exponent}

    def _reach(self, number: int) -> int:
        if not self.summed[number]:
            return REACH
        places = _places(self.shapes[number])
        return min(MEAN_REACH, (EXACT - 1) // places)

    def _prepare(self, number: int, op: Affine) -> ExactAffine:
        at = op.inputs[0]
        weight, bias = op.weight, op.bias
        if at == 0 and self.source.factor is not None and self.source.shift is not None:
            weight, bias = _with_source(op, self.source.factor, self.source.shift)
        e_in = self.exponent(at)
        # A dead output has no weights to set its step by: its bias must fit all the same.
        least = least_exponent(bias.abs(), BIAS_MAX) - e_in
        exponent = weight_exponents(weight, least)
        step = power(exponent)
        w = integers(weight, step.reshape(-1, *[1] * (weight.dim() - 1)))
        b = torch.round(bias / (step * power(e_in)))
        shift = exponent + e_in - self.units[number]
        return ExactAffine.build(op, w, b, shift, self.reach[at])

    def _scaled(self, number: int, op: ChannelAffine) -> tuple[Tensor, Tensor]:
        """Factor and shift of each channel in the tensors' units, float32."""
        ratio = power(self.units[op.inputs[0]] - self.units[number])
        return (op.factor * ratio).float(), (op.shift / power(self.units[number])).float()

    def to(self, device: torch.device) -> IntegerGraph:
        """The same network on another device; see ``self_test.check_placed`` for whether it is the same."""
        made = copy.copy(self)
        made.device = device
        made.affine = {n: affine.to(device) for n, affine in self.affine.items()}
        made.channels = {n: (f.to(device), s.to(device)) for n, (f, s) in self.channels.items()}
        return made

    # --- run --------------------------------------------------------------------------------------

    @torch.no_grad()
    def __call__(
        self, q: Tensor, keep: Kept | None = None, observe: Observer | None = None
    ) -> Tensor:
        """Integers in float32, (n, …), to the last tensor: integers, or numbers in its unit.

        ``observe`` sees every tensor as it is left to its readers.
        """
        values: dict[int, Tensor] = {0: q}
        left = {n: len(users) for n, users in self.users.items()}
        for number, op in self.numbered():
            y = self._run(number, op, values, keep)
            for i in op.inputs:  # free what nobody reads any more
                left[i] -= 1
                if not left[i]:
                    del values[i]
            values[number] = self._rounded(number, op, y)
            if observe is not None:
                observe(number, values[number])
        return values[len(self.ops)] if self.ops else q

    def _run(self, number: int, op: Op, values: dict[int, Tensor], keep: Kept | None) -> Tensor:
        x = values[op.inputs[0]]
        if isinstance(op, Affine):
            if keep is not None:
                keep.input(number, x)
            return self.affine[number](x)
        if isinstance(op, Mean):
            total = x.sum(dim=(2, 3), keepdim=op.keep)
            mean = divided(total, _places(self.shapes[op.inputs[0]]))
            return mean.mul_(math.ldexp(1.0, self.exponent(op.inputs[0]) - self.units[number]))
        if isinstance(op, MaxPool):
            if keep is not None and keep.backward:
                raise NoIntegerForm(f"{op.name}: no gradients through MaxPool2d.")
            return self._same(number, op, op.apply(x))
        if isinstance(op, Flatten):
            return self._same(number, op, x.flatten(1))
        if isinstance(op, Add):
            return self._add(number, op, values)
        if isinstance(op, ChannelAffine):
            view = (1, -1, *[1] * (x.dim() - 2))
            factor, shift = (values.view(view) for values in self.channels[number])
            return (x * factor).add_(shift)  # two operations, each rounded once
        assert isinstance(op, Activation)
        return self._activate(number, op, x, keep)

    def _owned(self, number: int) -> bool:
        """Whether the tensor may be worked on in place: one reader, and it is no integers of others."""
        return number > 0 and len(self.users[number]) == 1

    def _same(self, number: int, op: Op, x: Tensor) -> Tensor:
        ratio = self._ratio(op.inputs[0], number)
        return x if ratio == 1 else x * ratio

    def _ratio(self, source: int, target: int) -> float:
        return math.ldexp(1.0, self.units[source] - self.units[target])

    def _add(self, number: int, op: Op, values: dict[int, Tensor]) -> Tensor:
        a, b = op.inputs
        if not (self._owned(a) and self._ratio(a, number) == 1):
            a, b = b, a
        first, second = values[a], values[b]
        if not (self._owned(a) and self._ratio(a, number) == 1):
            first = first * self._ratio(a, number)
        # The product with a power of two is exact, so it does not matter if it is fused with the sum.
        return first.add_(second, alpha=self._ratio(b, number))

    def _activate(self, number: int, op: Activation, x: Tensor, keep: Kept | None) -> Tensor:
        x = self._same(number, op, x)
        cap = None if op.cap is None else op.cap / math.ldexp(1.0, self.units[number])
        if keep is not None and keep.backward:
            keep.slope(number, _slopes(x, op.slope, cap))
        clamped = number in self.summed and op.slope == 0 and cap is None
        if clamped:  # rounding will clip at 0 anyway
            return x if self._owned(op.inputs[0]) else x.clone()
        in_place = self._owned(op.inputs[0])
        y = F.leaky_relu_(x, op.slope) if in_place else F.leaky_relu(x, op.slope)
        return y if cap is None else y.clamp_(max=cap)

    def _rounded(self, number: int, op: Op, y: Tensor) -> Tensor:
        if number not in self.summed:
            return y
        reach = self.reach[number]
        return y.round_().clamp_(0 if self.nonnegative(number) else -reach, reach)

    def nonnegative(self, number: int) -> bool:
        """Whether no number of this tensor can be below 0: a ReLU's output, or what only picks from one."""
        if number == 0:
            return self.source.nonnegative
        op = self.ops[number - 1]
        if isinstance(op, MaxPool | Flatten | Mean):
            return self.nonnegative(op.inputs[0])
        return isinstance(op, Activation) and op.slope == 0


class Kept:
    """What the backward pass needs of a forward one; not ``backward``: what the layers read alone."""

    def __init__(self, *, backward: bool = True) -> None:
        self.backward = backward
        self.inputs: dict[int, Tensor] = {}  # of every Affine: integers
        self.slopes: dict[int, Tensor] = {}  # of every Activation

    def input(self, number: int, x: Tensor) -> None:
        self.inputs[number] = x

    def slope(self, number: int, slopes: Tensor) -> None:
        self.slopes[number] = slopes


def _slopes(x: Tensor, slope: float, cap: float | None) -> Tensor:
    """The derivative of the activation at x."""
    slopes = torch.where(x > 0, 1.0, slope)
    return slopes if cap is None else slopes.masked_fill_(x >= cap, 0.0)


def _places(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape[-2:]).numel())


def _with_source(op: Affine, factor: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """W and b that read the source's integers: W (f x + s) + b = (W f) x + (W s + b)."""
    if op.geometry is None or op.geometry.groups > 1:
        raise NoIntegerForm(f"{op.name} reads the pixels, and is no plain convolution.")
    view = (1, -1, 1, 1)
    # At the border this takes the padding as shift, not as 0: half a grey level at most.
    bias = op.bias + (op.weight * shift.view(view)).sum((1, 2, 3))
    return op.weight * factor.view(view), bias


def shapes_of(ops: Sequence[Op], shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The shape of every tensor for one sample of that shape, the input first; nothing is computed."""
    shapes = [tuple(shape)]
    with torch.device("meta"):
        evaluate(
            _on_meta(ops), torch.empty(1, *shape), lambda _, y: shapes.append(tuple(y.shape[1:]))
        )
    return tuple(shapes)


def _on_meta(ops: Sequence[Op]) -> list[Op]:
    def moved(op: Op) -> Op:
        tensors = {
            name: value.to("meta") for name, value in vars(op).items() if isinstance(value, Tensor)
        }
        return replace(op, **tensors)  # type: ignore[arg-type]

    return [moved(op) for op in ops]


@torch.no_grad()
def evaluate(
    ops: Sequence[Op], x: Tensor, observe: Observer | None = None, *, matched: bool = False
) -> Tensor:
    """The same operations in float32: what scales are found on, and what errors are measured against.

    ``observe`` sees every tensor. ``matched``: see ``blocks.matched_statistics``. A tensor that nothing
    reads any more is let go: all of them together are gigabytes, for a batch of photos.
    """
    values, last = {0: x}, _last_uses(ops)
    for number, op in enumerate(ops, start=1):
        y = values[number] = _evaluate(op, [values[i] for i in op.inputs], matched)
        if observe is not None:
            observe(number, y)
        for done in last[number]:
            del values[done]
    return values[len(ops)]


def _last_uses(ops: Sequence[Op]) -> list[list[int]]:
    """By the number of an operation, the tensors that it is the last to read; the output is never one."""
    last = {i: number for number, op in enumerate(ops, start=1) for i in (*op.inputs, number)}
    found: list[list[int]] = [[] for _ in range(len(ops) + 1)]
    for tensor, number in last.items():
        if tensor != len(ops):
            found[number].append(tensor)
    return found


def _evaluate(op: Op, inputs: list[Tensor], matched: bool) -> Tensor:
    x = inputs[0]
    if isinstance(op, Affine):
        y = op.apply(x, op.weight.float(), op.bias.float())
        if matched and op.statistics is not None:
            mean, std = op.statistics
            y = F.batch_norm(y, None, None, std, mean, training=True, eps=1e-12)
        return y
    if isinstance(op, Mean):
        return x.mean(dim=(2, 3), keepdim=op.keep)
    if isinstance(op, MaxPool):
        return op.apply(x)
    if isinstance(op, Flatten):
        return x.flatten(1)
    if isinstance(op, Add):
        return inputs[0] + inputs[1]
    view = (1, -1, *[1] * (x.dim() - 2))
    if isinstance(op, ChannelAffine):
        return x * op.factor.float().view(view) + op.shift.float().view(view)
    assert isinstance(op, Activation)
    y = F.leaky_relu(x, op.slope)
    return y if op.cap is None else y.clamp(max=op.cap)
