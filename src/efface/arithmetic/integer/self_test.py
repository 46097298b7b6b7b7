"""Is this machine's backend exact? Every layer of an integer network against the same sums in int64.

Kernels that transform their inputs (Winograd, FFT) or work in fewer bits (TF32) would not be. The test
runs the network once, on the images that make its sums largest, and compares a few places of every layer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from efface.arithmetic.integer.gradient import IntegerGradient
from efface.arithmetic.integer.graph import IntegerGraph
from efface.arithmetic.integer.ops import Affine
from efface.arithmetic.integer.sums import ExactAffine, power
from efface.arithmetic.integer.tail import IntegerTail
from efface.errors import EffaceError

PLACES, OUTPUTS = 4, 16


class NotExact(EffaceError):
    """The backend does not add integers exactly."""


def check_graph(graph: IntegerGraph, seed: int = 0) -> None:
    """Raise NotExact if a layer, fed with the network's own integers or with extreme ones, is off."""
    _check_layers(graph, graph, seed)


def check_placed(graph: IntegerGraph, placed: IntegerGraph, seed: int = 0) -> None:
    """The same for the network on another device, and its last tensor against that of the CPU.

    What is not a sum (divisions, slopes, rounding) is one operation on each number; that a device does these
    as IEEE 754 has it is what the second comparison looks at.
    """
    rng = np.random.default_rng(seed)
    try:
        _check_layers(graph, placed, seed)
        pairs = [(graph(q), placed(q.to(placed.device)).cpu()) for q in _some(graph, rng)]
    except (RuntimeError, NotExact) as error:  # also of an operation that the device does not have
        raise _not_there(placed, f"{error!s:.200}") from error
    if not all(torch.equal(here, there) for here, there in pairs):
        raise _not_there(placed, "its numbers are not those of the CPU.")


def check_same(graph: IntegerGraph, other: IntegerGraph, seed: int = 0) -> None:
    """Every tensor that is rounded to integers, in another way to compute the same, against ``graph``."""
    for q in _some(graph, np.random.default_rng(seed)):
        wanted, found = ({n: y.float() for n, y in _summed(g, q)} for g in (graph, other))
        for number, y in wanted.items():
            if not torch.equal(y, found[number]):
                raise NotExact(f"{graph.name(number)}: other integers than in float32.", "")


def _summed(graph: IntegerGraph, q: Tensor) -> list[tuple[int, Tensor]]:
    """The rounded tensors by number, copied: some are overwritten later."""
    found: list[tuple[int, Tensor]] = []

    def observe(number: int, y: Tensor) -> None:
        if number in graph.summed:
            found.append((number, y.clone(memory_format=torch.preserve_format)))

    last = graph(q.clone(memory_format=torch.preserve_format), observe=observe)
    return [*found, (len(graph.ops), last)]


def check_placed_tail(tail: IntegerTail, placed: IntegerTail, seed: int = 0) -> None:
    """ψ and h of a few boundaries on another device, against the CPU's."""
    rng = np.random.default_rng(seed)
    for some in _some(tail.graph, rng):
        q = torch.stack([some] * tail.views, dim=1) if tail.views > 1 else some
        pairs = zip(tail.rows(q), placed.rows(q), strict=True)
        if not all(torch.equal(here, there) for here, there in pairs):
            raise _not_there(placed.graph, "its features are not those of the CPU.")


def _not_there(placed: IntegerGraph, reason: str) -> NotExact:
    message = f"{placed.device.type} does not compute integers exactly: {reason}"
    return NotExact(message, 'use --device cpu (in Python: device="cpu").')


def _check_layers(graph: IntegerGraph, placed: IntegerGraph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q = _blocks(graph, rng)
    for number, x in _inputs(graph, q).items():
        op = graph.ops[number - 1]
        assert isinstance(op, Affine)
        largest = graph.reach[op.inputs[0]]
        extreme = torch.from_numpy(rng.choice([0, largest], size=tuple(x.shape))).float()
        for values in (x, extreme.contiguous(memory_format=_layout(x))):
            y = placed.affine[number](values.to(placed.device)).cpu()
            _check_layer(op, graph.affine[number], values, y, rng)


def _some(graph: IntegerGraph, rng: np.random.Generator) -> list[Tensor]:
    """Inputs to compare by: of either sign where there are such, and as after a ReLU."""
    reach = graph.source.reach
    drawn = rng.integers(_lowest(graph), reach, size=(1, *graph.shapes[0]), endpoint=True)
    noise = torch.from_numpy(drawn).float()
    noise = noise.contiguous(memory_format=_layout(noise))
    return [_blocks(graph, rng), noise, noise.clamp(min=0)]


def _blocks(graph: IntegerGraph, rng: np.random.Generator) -> Tensor:
    reach = graph.source.reach
    shape = (1, *graph.shapes[0])
    # Blocks of equal pixels: what differs only from pixel to pixel dies in the first layers.
    coarse = rng.choice(
        [_lowest(graph), 0, reach], size=(1, shape[1], *[-(-s // 4) for s in shape[2:]])
    )
    for axis in range(2, len(shape)):
        coarse = coarse.repeat(4, axis=axis)
    q = torch.from_numpy(coarse[tuple(slice(0, s) for s in shape)]).float()
    return q.contiguous(memory_format=_layout(q))


def _lowest(graph: IntegerGraph) -> int:
    return 0 if graph.source.nonnegative else -graph.source.reach


def _layout(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.contiguous_format


def _inputs(graph: IntegerGraph, q: Tensor) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {0: q.contiguous(memory_format=_layout(q))}
    values |= _summed(graph, values[0])
    for number, op in graph.numbered():
        if isinstance(op, Affine):
            found[number] = values[op.inputs[0]]
    return found


def _check_layer(
    op: Affine, exact: ExactAffine, x: Tensor, y: Tensor, rng: np.random.Generator
) -> None:
    """``y`` is what was computed of ``x``."""
    outputs = np.unique(rng.integers(0, y.shape[1 if op.geometry else -1], OUTPUTS))
    if op.geometry is None:
        got = y.reshape(-1, y.shape[-1])[:PLACES, outputs]
        want = _sums(op, exact, outputs, lambda s: x[..., s].reshape(-1, s.stop - s.start)[:PLACES])
    else:
        height, width = y.shape[-2:]
        at = list(zip(rng.integers(0, height, PLACES), rng.integers(0, width, PLACES), strict=True))
        got = y[0][:, [i for i, _ in at], [j for _, j in at]].T[:, outputs]
        want = _sums(op, exact, outputs, lambda s: _patches(op, x, s, at))
    if not np.array_equal(got.numpy(), want):
        raise NotExact(
            f"{op.name}: this machine's kernels do not add integers exactly.",
            "use --arithmetic float, or another machine or build of torch.",
        )


def _sums(
    op: Affine, exact: ExactAffine, outputs: np.ndarray, rows: Callable[[slice], Tensor]
) -> np.ndarray:
    """(places, outputs): Σ over parts in float32, each part an exact sum in int64 times its power of two."""
    unit = power(exact.shift[outputs])
    groups = 1 if op.geometry is None else op.geometry.groups
    total: np.ndarray | None = None
    for position, (span, weight) in enumerate(exact.parts):
        w = (weight[outputs].flatten(1).double() / unit[:, None]).to(torch.int64)  # (outputs, m)
        x = rows(span).to(torch.int64)
        if groups == 1:
            sums = x @ w.T
        else:  # an output reads the channels of its own group
            mine = torch.from_numpy(outputs) // (len(weight) // groups)
            sums = (x.reshape(len(x), groups, -1)[:, mine] * w).sum(2)
        if position == 0 and exact.bias is not None:
            sums = sums + (exact.bias[outputs].double() / unit).to(torch.int64)
        part = (sums.double() * unit).float().numpy()
        total = part if total is None else total + part
    assert total is not None
    return total


def _patches(op: Affine, x: Tensor, span: slice, at: list[tuple[int, int]]) -> Tensor:
    """What the sum at each place reads, (places, channels · kernel), by slicing alone."""
    o = op.geometry
    assert o is not None
    kernel = op.weight.shape[-2:]
    top, left = o.padding
    channels = slice(None) if o.groups > 1 else span
    padded = torch.nn.functional.pad(x[0, channels], (left, left, top, top))
    rows = []
    for i, j in at:
        a, b = int(i) * o.stride[0], int(j) * o.stride[1]
        rows.append(
            padded[
                :,
                a : a + (kernel[0] - 1) * o.dilation[0] + 1 : o.dilation[0],
                b : b + (kernel[1] - 1) * o.dilation[1] + 1 : o.dilation[1],
            ].reshape(-1)
        )
    return torch.stack(rows)


def check_gradient(graph: IntegerGraph, gradient: IntegerGradient, seed: int = 0) -> None:
    """The same for the backward pass: one place of each layer's output pulled back, against int64."""
    rng = np.random.default_rng(seed)
    for number, exact in gradient.pull.items():
        op = graph.ops[number - 1]
        assert isinstance(op, Affine)
        if op.geometry is None:
            continue  # an ordinary matrix product: the forward test has those
        g = torch.zeros(1, *graph.shapes[number])
        i, j = (int(rng.integers(0, s)) for s in g.shape[-2:])
        g[0, :, i, j] = torch.from_numpy(rng.integers(-255, 256, g.shape[1])).float()
        shape = (1, *graph.shapes[op.inputs[0]])
        got = gradient._pulled(number, op, g.contiguous(memory_format=torch.channels_last), shape)
        if not torch.equal(got[0], _pulled_place(op, exact, g, shape, i, j)):
            raise NotExact(
                f"{op.name}: this machine's kernels do not pull integers back exactly.",
                "use --arithmetic float, or another machine or build of torch.",
            )


def _pulled_place(
    op: Affine, exact: ExactAffine, g: Tensor, shape: tuple[int, ...], i: int, j: int
) -> Tensor:
    o = op.geometry
    assert o is not None
    total = torch.zeros(shape[1:])
    for span, weight in exact.parts:  # (outputs of the part, inputs, …)
        unit = power(exact.shift)
        w = (weight.transpose(0, 1).double() / unit.view(-1, 1, 1, 1)).to(torch.int64)
        sums = (g[0, span, i, j].to(torch.int64).view(1, -1, 1, 1) * w).sum(1)
        part = (sums.double() * unit.view(-1, 1, 1)).float()
        for a in range(part.shape[1]):
            for b in range(part.shape[2]):
                y = i * o.stride[0] - o.padding[0] + a * o.dilation[0]
                x = j * o.stride[1] - o.padding[1] + b * o.dilation[1]
                if 0 <= y < shape[2] and 0 <= x < shape[3]:
                    total[:, y, x] += part[:, a, b]
    return total
