"""The integer network on bytes: the same integers by kernels that multiply bytes and add in 32 bits.

Sums of integers are exact however they are added, so a kernel for bytes (u8 · s8 → s32; oneDNN's, on
processors with VNNI) gives what ``graph`` gives in float32, several times faster and in a quarter of the
memory. What is rounded is rounded at the same place in the same way:

    q = clip(rint(relu(2^s (W x + b) + 2^r z)), 0, 255),

where W x + b is an integer below 2^24, exact in float32, its product with a power of two is exact, the
sum with the shortcut z has one rounding as there, and rint is half to even. Integers of either sign are
read as two bytes, x = max(x, 0) − max(−x, 0), with weights (W, −W): of each pair one is 0, so no sum is
larger than before.

Processors without VNNI add pairs of products in 16 bits, and clip. So nothing is taken for granted: every
layer is probed with the largest bytes and weights there can be, and the whole network is compared
with ``graph`` (``self_test.check_placed``) before it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from efface.arithmetic.integer.graph import REACH, IntegerGraph, Kept, Observer
from efface.arithmetic.integer.ops import Activation, Add, Affine, Geometry, MaxPool, Op
from efface.arithmetic.integer.self_test import NotExact, check_same
from efface.arithmetic.integer.sums import WEIGHT_MAX, ExactAffine, power

WORTH = 2**23  # products of a sample: below, a network is run in no time anyway


@dataclass(frozen=True, eq=False)
class ByteConvolution:
    """One part of an ``ExactAffine``: 2^shift (W x + b) of bytes x.

    ``packed`` are the weights as the kernel wants them, ``signed`` says that x has two bytes a number.
    """

    packed: Tensor
    scale: Tensor  # 2^shift, (c,) float32
    zero: Tensor  # (c,) int64: weights have no offset
    bias: Tensor | None  # times 2^shift
    geometry: Geometry
    signed: bool

    @classmethod
    def build(
        cls,
        exact: ExactAffine,
        part: int,
        shape: tuple[int, ...],
        *,
        signed: bool,
        extreme: bool = False,
    ) -> ByteConvolution:
        """``shape`` is that of one input. ``extreme``: all weights as large as can be, for a probe."""
        assert exact.geometry is not None
        o, weight = exact.geometry, exact.parts[part][1]
        factor = power(exact.shift)
        w = (weight.double() / factor.view(-1, 1, 1, 1)).to(torch.int8)
        if extreme:
            w = torch.full_like(w, WEIGHT_MAX)
            factor = torch.ones_like(factor)
        if signed:
            w = torch.cat([w, w if extreme else -w], 1)
        channels = w.shape[1] * o.groups
        scale = factor.float()
        packed = torch.ops.onednn.qconv_prepack(
            w.contiguous(), scale, 1.0, 0, *_listed(o), [1, channels, *shape[1:]]
        )
        bias = exact.bias if part == 0 and not extreme else None
        return cls(packed, scale, torch.zeros(len(w), dtype=torch.int64), bias, o, signed)

    def __call__(self, x: Tensor, *, rounded: bool) -> Tensor:
        """(n, …) bytes -> bytes clipped at 0, or float32 that are not rounded."""
        out: tuple[Any, ...] = (
            (torch.uint8, "relu", [], "") if rounded else (torch.float32, "none", [], "")
        )
        result: Tensor = torch.ops.onednn.qconv2d_pointwise(
            x,
            1.0,
            0,
            self.packed,
            self.scale,
            self.zero,
            self.bias,
            *_listed(self.geometry),
            1.0,
            0,
            *out,
        )
        return result

    def plus(self, x: Tensor, other: Tensor, ratio: float) -> Tensor:
        """Bytes of relu(y + ratio · other), written over the bytes ``other``."""
        result: Tensor = torch.ops.onednn.qconv2d_pointwise.binary(
            x,
            1.0,
            0,
            self.packed,
            self.scale,
            self.zero,
            other,
            self.bias,
            *_listed(self.geometry),
            1.0,
            0,
            torch.uint8,
            ratio,
            0,
            "sum",
            1.0,
            "relu",
            [],
            "",
        )
        return result


def _listed(o: Geometry) -> tuple[list[int], list[int], list[int], int]:
    return list(o.stride), list(o.padding), list(o.dilation), o.groups


class ByteGraph(IntegerGraph):
    """See the module; ``of`` makes one. Bytes where all integers of a tensor are, float32 elsewhere."""

    plain: IntegerGraph
    bytes: dict[int, tuple[ByteConvolution, ...]]
    direct: set[
        int
    ]  # convolutions whose bytes are the activation's (and the pooling's) behind them
    summing: dict[int, int]  # sums -> the convolution that is run together with them
    whole: set[int]  # operations that a convolution has done already

    @classmethod
    def of(cls, graph: IntegerGraph) -> ByteGraph | None:
        """The same network on bytes, tested; None where this machine, or the network, has no use for it."""
        if not available() or graph.device.type != "cpu":
            return None
        made = cls.__new__(cls)
        made.__dict__.update(graph.__dict__)
        made.plain = graph
        try:
            made._prepare_bytes()
            if not made.bytes:
                return None
            check_same(graph, made)
        except (RuntimeError, NotExact):  # also of a kernel that this build of torch does not have
            return None
        return made

    def _prepare_bytes(self) -> None:
        self.bytes, self.direct, self.summing, self.whole = {}, set(), {}, set()
        for number, op in self.numbered():
            if isinstance(op, Affine) and self._suits(number, op):
                self.bytes[number] = self._byte_parts(number, op)
        for number in self.bytes:
            if len(self.bytes[number]) > 1 or len(self.users[number]) != 1:
                continue  # the parts of a sum that was too long are added in float32
            after = self.users[number][0]
            if self._to_bytes(after):
                self.direct.add(number)
                self.whole.update(self._chain(after))
            elif self._sums_to_bytes(after, number):
                self.summing[after] = number
                self.whole.update(self._chain(self.users[after][0]))

    def _suits(self, number: int, op: Affine) -> bool:
        """A plain convolution of bytes, or of integers that two bytes make."""
        at = op.inputs[0]
        if op.geometry is None or self.reach[at] > REACH:
            return False
        return self.nonnegative(at) or op.geometry.groups == 1

    def _byte_parts(self, number: int, op: Affine) -> tuple[ByteConvolution, ...]:
        exact, at = self.affine[number], op.inputs[0]
        signed, parts = not self.nonnegative(at), []
        for i, (span, _) in enumerate(exact.parts):
            width = self.shapes[at][0] if len(exact.parts) == 1 else span.stop - span.start
            shape = (width, *self.shapes[at][1:])
            _probe(exact, i, shape, signed=signed)
            parts.append(ByteConvolution.build(exact, i, shape, signed=signed))
        return tuple(parts)

    def _chain(self, number: int) -> list[int]:
        """The activation, and the pooling that alone reads it: maxima and rounding can change places."""
        users = self.users[number]
        if number not in self.summed and len(users) == 1:
            return [number, users[0]] if isinstance(self.ops[users[0] - 1], MaxPool) else []
        return [number]

    def _to_bytes(self, number: int) -> bool:
        """Whether this is a ReLU whose output is rounded to bytes, at once or after a pooling."""
        op = self.ops[number - 1]
        if not isinstance(op, Activation) or op.slope != 0 or op.cap is not None:
            return False
        chain = self._chain(number)
        if not chain or chain[-1] not in self.summed or self.reach[chain[-1]] != REACH:
            return False
        return all(self._ratio(self.ops[n - 1].inputs[0], n) == 1 for n in chain)

    def _sums_to_bytes(self, number: int, convolution: int) -> bool:
        """Whether this is conv(x) + bytes that nobody reads afterwards, and then a ReLU to bytes."""
        op, users = self.ops[number - 1], self.users[number]
        if not isinstance(op, Add) or len(users) != 1 or not self._to_bytes(users[0]):
            return False
        if op.inputs[0] == op.inputs[1] or self._ratio(convolution, number) != 1:
            return False
        other = op.inputs[1] if op.inputs[0] == convolution else op.inputs[0]
        return self._are_bytes(other) and max(self.users[other]) == number

    def _are_bytes(self, number: int) -> bool:
        return number in self.summed and self.reach[number] == REACH and self.nonnegative(number)

    # --- run --------------------------------------------------------------------------------------

    def __call__(
        self, q: Tensor, keep: Kept | None = None, observe: Observer | None = None
    ) -> Tensor:
        """As ``IntegerGraph`` does; ``observe`` may see bytes. What gradients need is kept in float32."""
        if keep is not None:
            return self.plain(q, keep, observe)
        return super().__call__(q, None, observe)

    def _run(self, number: int, op: Op, values: dict[int, Tensor], keep: Kept | None) -> Tensor:
        if number in self.summing:
            return self._sum(number, op, values)
        x = values[op.inputs[0]]
        if number in self.bytes:
            if number in self.summing.values():
                return x  # waits for its sum
            return self._convolved(number, x)
        if number in self.whole:
            return _pooled(op, x) if isinstance(op, MaxPool) else x
        if x.dtype == torch.uint8 and not isinstance(op, Add):
            values = {**values, op.inputs[0]: x.float()}
        return super()._run(number, op, values, keep)

    def _convolved(self, number: int, x: Tensor) -> Tensor:
        parts = self.bytes[number]
        if len(parts) == 1:
            return parts[0](_bytes_of(x, parts[0].signed), rounded=number in self.direct)
        total: Tensor | None = None
        for part, (span, _) in zip(parts, self.affine[number].parts, strict=True):
            piece = _bytes_of(x.narrow(1, span.start, span.stop - span.start), part.signed)
            y = part(piece, rounded=False)
            total = y if total is None else total.add_(y)
        assert total is not None
        return total

    def _sum(self, number: int, op: Op, values: dict[int, Tensor]) -> Tensor:
        convolution = self.summing[number]
        other = op.inputs[1] if op.inputs[0] == convolution else op.inputs[0]
        part = self.bytes[convolution][0]
        x = _bytes_of(values[convolution], part.signed)
        return part.plus(x, values[other], self._ratio(other, number))

    def _rounded(self, number: int, op: Op, y: Tensor) -> Tensor:
        if y.dtype == torch.uint8:
            return y
        y = super()._rounded(number, op, y)
        return y.to(torch.uint8) if self._are_bytes(number) else y


def _bytes_of(x: Tensor, signed: bool) -> Tensor:
    """Integers as bytes; two for each that may be below 0."""
    if signed:
        x = torch.cat([x.clamp(min=0), x.neg().clamp_(min=0)], 1)
    return x.to(torch.uint8).contiguous(memory_format=torch.channels_last)


def _pooled(op: MaxPool, x: Tensor) -> Tensor:
    """The largest byte of each window; bytes outside of the map count as 0, and none is below."""
    sides = [_pair(op.options[n]) for n in ("kernel_size", "stride", "padding", "dilation")]
    result: Tensor = torch.ops.quantized.max_pool2d(x, *sides, bool(op.options["ceil_mode"]))
    return result


def _pair(value: int | tuple[int, int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def worth_bytes(graph: IntegerGraph) -> bool:
    """Whether the network has so many products a sample that time is spent on them."""
    return sum(_products(graph, n, op) for n, op in graph.numbered()) >= WORTH


def _products(graph: IntegerGraph, number: int, op: Op) -> int:
    if not isinstance(op, Affine) or op.geometry is None:
        return 0
    return op.weight.numel() * math.prod(graph.shapes[number][1:])


def available() -> bool:
    """Whether this processor has instructions that add products of bytes in 32 bits, and torch uses them."""
    known = getattr(torch.cpu, "_is_vnni_supported", None)
    return bool(known and known()) and hasattr(torch.ops.onednn, "qconv2d_pointwise")


def _probe(exact: ExactAffine, part: int, shape: tuple[int, ...], *, signed: bool) -> None:
    """The largest bytes times the largest weights, in the kernel that this layer gets."""
    probe = ByteConvolution.build(exact, part, shape, signed=signed, extreme=True)
    channels = shape[0] * (2 if signed else 1)
    x = torch.full((1, channels, *shape[1:]), REACH, dtype=torch.uint8)
    y = probe(x.contiguous(memory_format=torch.channels_last), rounded=False)
    weight = exact.parts[part][1]
    most = weight[0].numel() * (2 if signed else 1) * REACH * WEIGHT_MAX
    if float(y.max()) != float(torch.tensor(most, dtype=torch.float32)):
        raise NotExact("products of bytes are not added exactly.", "use float32.")
