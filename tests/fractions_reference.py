"""Slow twins in Python's fractions: networks on integers, the ridge system, exact sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from tests.reference import exact_statistics

from efface.arithmetic.integer.graph import IntegerGraph
from efface.arithmetic.integer.ops import (
    Activation,
    Add,
    Affine,
    ChannelAffine,
    Flatten,
    MaxPool,
    Mean,
)
from efface.arithmetic.integer.sums import ExactAffine

# --- networks on integers ---------------------------------------------------------------------------


def float32_of(value: Fraction) -> Fraction:
    """The nearest number with 24 significant bits, half to even: one rounded operation of float32."""
    if value == 0:
        return Fraction(0)
    exponent = 0
    size = abs(value)
    while size >= 2:
        size, exponent = size / 2, exponent + 1
    while size < 1:
        size, exponent = size * 2, exponent - 1
    step = Fraction(2) ** (exponent - 23)
    return round(value / step) * step  # Python rounds half to even, too


def integer_network(graph: IntegerGraph, image: np.ndarray) -> np.ndarray:
    """What an ``IntegerGraph`` must give for one sample (c, h, w) of integers, in Python's fractions.

    Only its weights as integers, their parts and the units are taken from the graph; every product, sum and
    rounding is done here, one number after the other.
    """
    values: dict[int, np.ndarray] = {0: _fractions(image)}
    for number, op in enumerate(graph.ops, start=1):
        x = values[op.inputs[0]]
        ratio = Fraction(2) ** (graph.units[op.inputs[0]] - graph.units[number])
        if isinstance(op, Affine):
            y = _affine(graph.affine[number], op, x)
        elif isinstance(op, Mean):
            places = x.shape[1] * x.shape[2]
            total = x.sum(axis=(1, 2), keepdims=op.keep) / places
            y = _each(float32_of, total) * ratio
        elif isinstance(op, Add):
            other = values[op.inputs[1]]
            alpha = Fraction(2) ** (graph.units[op.inputs[1]] - graph.units[number])
            y = _each(float32_of, x * ratio + other * alpha)
        elif isinstance(op, MaxPool):
            y = _max_pool(x, op.options) * ratio
        elif isinstance(op, Flatten):
            y = x.reshape(-1) * ratio
        elif isinstance(op, ChannelAffine):
            y = _channel_affine(op, x, graph.units[op.inputs[0]], graph.units[number])
        else:
            y = _activation(op, x * ratio, graph.units[number])
        if number in graph.summed:
            reach = graph.reach[number]
            low = 0 if graph.nonnegative(number) else -reach
            y = _each(lambda v: Fraction(min(max(round(v), low), reach)), y)  # noqa: B023
        values[number] = y
    return values[len(graph.ops)]


def _fractions(array: np.ndarray) -> np.ndarray:
    return _each(lambda v: Fraction(float(v)), np.asarray(array))


def _each(function: Callable[[Any], Fraction], array: np.ndarray) -> np.ndarray:
    result = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        result[index] = function(array[index])
    return result


def _affine(exact: ExactAffine, op: Affine, x: np.ndarray) -> np.ndarray:
    total: np.ndarray | None = None
    for position, (span, weight) in enumerate(exact.parts):
        w = _fractions(weight.numpy())
        bias = exact.bias if position == 0 else None
        b = [Fraction(0)] * len(w) if bias is None else [Fraction(float(v)) for v in bias]
        y = _linear(w, b, x[span]) if op.geometry is None else _convolve(op, w, b, x, span)
        total = y if total is None else _each(float32_of, total + y)
    assert total is not None
    return total


def _linear(w: np.ndarray, b: list[Fraction], x: np.ndarray) -> np.ndarray:
    return np.array([sum(row * x, start) for row, start in zip(w, b, strict=True)], dtype=object)


def _convolve(
    op: Affine, w: np.ndarray, b: list[Fraction], x: np.ndarray, span: slice
) -> np.ndarray:
    g = op.geometry
    assert g is not None
    x = x if g.groups > 1 else x[span]
    top, left = g.padding
    padded = np.full(
        (len(x), x.shape[1] + 2 * top, x.shape[2] + 2 * left), Fraction(0), dtype=object
    )
    padded[:, top : top + x.shape[1], left : left + x.shape[2]] = x
    reach = [d * (k - 1) + 1 for d, k in zip(g.dilation, w.shape[2:], strict=True)]
    height = (padded.shape[1] - reach[0]) // g.stride[0] + 1
    width = (padded.shape[2] - reach[1]) // g.stride[1] + 1
    y = np.empty((len(w), height, width), dtype=object)
    for c, i, j in np.ndindex(y.shape):
        group = c // (len(w) // g.groups)
        channels = slice(group * w.shape[1], (group + 1) * w.shape[1])
        a, z = i * g.stride[0], j * g.stride[1]
        patch = padded[channels, a : a + reach[0] : g.dilation[0], z : z + reach[1] : g.dilation[1]]
        y[c, i, j] = (w[c] * patch).sum() + b[c]
    return y


def _max_pool(x: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    floats = torch.tensor(x.astype(np.float64))[None]
    pooled = torch.nn.functional.max_pool2d(floats, **options)[0]  # picks numbers, changes none
    return _fractions(pooled.numpy())


def _activation(op: Activation, x: np.ndarray, unit: int) -> np.ndarray:
    slope = Fraction(float(np.float32(op.slope)))
    y = _each(lambda v: v if v > 0 else float32_of(v * slope), x)
    if op.cap is None:
        return y
    cap = float32_of(Fraction(op.cap) / Fraction(2) ** unit)
    return _each(lambda v: min(v, cap), y)


def _channel_affine(op: ChannelAffine, x: np.ndarray, unit_in: int, unit: int) -> np.ndarray:
    y = np.empty(x.shape, dtype=object)
    for c in range(len(x)):
        factor = Fraction(float(op.factor[c])) * Fraction(2) ** (unit_in - unit)
        shift = float32_of(Fraction(float(op.shift[c])) / Fraction(2) ** unit)
        product = _each(float32_of, x[c] * float32_of(factor))
        y[c] = _each(float32_of, product + shift)
    return y


# --- weights that are the same everywhere: the ridge system in fractions --------------------------


def rational_ridge(
    rows: np.ndarray,
    targets: np.ndarray,
    ridge: float,
    scale: Sequence[float],
    target_scale: Sequence[float],
    counts: Sequence[int] | None = None,
) -> list[list[Fraction]]:
    """Θ with ``(S G S + λ I) Θ = S B T``, k rows of c, by Gauss and Jordan without a rounding."""
    gram, cross, _ = exact_statistics(rows, targets, counts)
    s, t = ([Fraction(float(v)) for v in values] for values in (scale, target_scale))
    k, c = len(s), len(t)
    system = [
        [s[i] * gram[i][j] * s[j] + (Fraction(ridge) if i == j else 0) for j in range(k)]
        + [s[i] * cross[i][j] * t[j] for j in range(c)]
        for i in range(k)
    ]
    for i in range(k):
        pivot = next(j for j in range(i, k) if system[j][i])
        system[i], system[pivot] = system[pivot], system[i]
        system[i] = [value / system[i][i] for value in system[i]]
        for j in range(k):
            if j != i:
                system[j] = [
                    v - system[j][i] * p for v, p in zip(system[j], system[i], strict=True)
                ]
    return [row[k:] for row in system]


def released(weight: Fraction, scale: float, target_scale: float) -> np.float32:
    """The nearest float32 that is a multiple of the quantum, by looking at the neighbours of a guess."""
    quantum = Fraction(2) ** max(
        int(np.log2(target_scale)) - int(np.log2(scale)) - 48, -126
    )  # powers of two
    size, sign = abs(weight), -1 if weight < 0 else 1
    if size < quantum * 2**23:
        number = size // quantum
        rest = size - number * quantum
        up = rest > quantum / 2 or (rest == quantum / 2 and number % 2 == 1)
        return np.float32(sign * float((number + up) * quantum)) + np.float32(0)
    guess = np.float32(float(size))
    near = [np.nextafter(guess, np.float32(way)) for way in (0, np.inf)] + [guess]
    even = [int(value.view(np.int32)) % 2 for value in near]
    best = min(
        zip(near, even, strict=True), key=lambda v: (abs(Fraction(float(v[0])) - size), v[1])
    )
    return np.float32(sign * best[0])


def rational_product(
    integers: np.ndarray, weights: np.ndarray, scale: Sequence[float]
) -> list[list[Fraction]]:
    """``Σ_j q_j s_j w_jc`` in fractions, n rows of c."""
    exact = [
        [Fraction(float(s)) * Fraction(float(w)) for w in row]
        for s, row in zip(scale, weights, strict=True)
    ]
    return [
        [
            sum((int(q) * exact[j][column] for j, q in enumerate(row)), Fraction(0))
            for column in range(weights.shape[1])
        ]
        for row in integers
    ]


# --- exact sums, in fractions ---------------------------------------------------------------------


def on_grid(values: Sequence[float], bits: int) -> list[Fraction]:
    """Each value rounded, half to even, to steps 2^(1 − bits) P, 2P > max |value| ≥ P a power of two."""
    largest = max(abs(Fraction(value)) for value in values)
    if largest == 0:
        return [Fraction(0)] * len(values)
    power = Fraction(1)
    while power > largest:
        power /= 2
    while 2 * power <= largest:
        power *= 2
    step = power * Fraction(2) ** (1 - bits)
    return [round(Fraction(value) / step) * step for value in values]


def fraction_product(a: ArrayLike, b: ArrayLike, bits: tuple[int, int]) -> list[list[Fraction]]:
    """Rows of ``a`` and columns of ``b`` on their grids, multiplied without any rounding."""
    rows = [on_grid(row, bits[0]) for row in np.asarray(a).tolist()]
    columns = [on_grid(column, bits[1]) for column in np.asarray(b).T.tolist()]
    return [[sum(x * y for x, y in zip(r, c, strict=True)) for c in columns] for r in rows]


def convolution_matrix(weight: np.ndarray, shape: Sequence[int], **options: int) -> np.ndarray:
    """The matrix of a two-dimensional convolution on inputs of ``shape``, (outputs, inputs), entry by entry.

    ``options``: stride, padding, dilation, groups.
    """
    stride, padding = options.get("stride", 1), options.get("padding", 0)
    dilation, groups = options.get("dilation", 1), options.get("groups", 1)
    c_out, c_in, *kernel = weight.shape
    size = [
        (shape[1 + a] + 2 * padding - dilation * (kernel[a] - 1) - 1) // stride + 1 for a in (0, 1)
    ]
    matrix = np.zeros((c_out, *size, *shape))
    for o, y, x, i, u, v in np.ndindex(c_out, *size, c_in, *kernel):
        row, column = y * stride + u * dilation - padding, x * stride + v * dilation - padding
        if 0 <= row < shape[1] and 0 <= column < shape[2]:
            channel = o // (c_out // groups) * c_in + i
            matrix[o, y, x, channel, row, column] = weight[o, i, u, v]
    return matrix.reshape(c_out * size[0] * size[1], -1)
