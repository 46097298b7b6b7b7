"""Slow twins: each says in the plainest way what a fast path of the package must equal."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

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
from efface.data.records import Records
from efface.network.augmentation import Augmentation, draws, shuffled
from efface.network.backbone import Backbone
from efface.network.finetuning import FineTuning, network_of


def exact_statistics(
    rows: ArrayLike, targets: ArrayLike, counts: Sequence[int] | None = None
) -> tuple[list[list[int]], list[list[int]], int]:
    """``G = Σ m q qᵀ``, ``B = Σ m q tᵀ``, ``n = Σ m`` in Python's integers, row by row.

    ``counts`` are the multiplicities m of the rows, of any size; 1 unless given.
    """
    features, residuals = np.asarray(rows).tolist(), np.asarray(targets).tolist()
    counts = [1] * len(features) if counts is None else list(counts)
    k, c = np.asarray(rows).shape[1], np.asarray(targets).shape[1]
    gram, cross = [[0] * k for _ in range(k)], [[0] * c for _ in range(k)]
    for count, q, t in zip(counts, features, residuals, strict=True):
        for i in range(k):
            for j in range(k):
                gram[i][j] += count * q[i] * q[j]
            for j in range(c):
                cross[i][j] += count * q[i] * t[j]
    return gram, cross, sum(counts)


def exact_digest(
    rows: ArrayLike,
    targets: ArrayLike,
    bits: int,
    target_bits: int,
    counts: Sequence[int] | None = None,
) -> str:
    """The digest of compact statistics, from :func:`exact_statistics` and Python's integers."""
    gram, cross, n = exact_statistics(rows, targets, counts)
    entries = [value for i, row in enumerate(gram) for value in row[: i + 1]]
    entries += [value for row in cross for value in row]
    low = [(value + 2**63) % 2**64 - 2**63 for value in entries]
    high = [(value - word) >> 64 for value, word in zip(entries, low, strict=True)]
    parts = [b"".join(word.to_bytes(8, "little", signed=True) for word in w) for w in (low, high)]
    shape = f"k={len(gram)} c={len(cross[0])} bits={bits} target_bits={target_bits} n={n}"
    text = f"efface.statistics.v1 {shape}".encode() + hashlib.sha256(parts[0]).digest()
    if any(high):
        text += hashlib.sha256(parts[1]).digest()
    return hashlib.sha256(text).hexdigest()


def ridge_system(
    rows: np.ndarray, targets: np.ndarray, mu: float, scale: ArrayLike, target_scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """``(S G S / n + μ I)`` and ``S B T / n`` of compact rows, formed in full in float64."""
    features = rows * (np.ones(rows.shape[1]) * np.asarray(scale))
    n, k = rows.shape
    return features.T @ features / n + mu * np.eye(k), features.T @ (targets * target_scale) / n


def ridge_from_rows(
    rows: np.ndarray, targets: np.ndarray, mu: float, scale: ArrayLike, target_scale: float
) -> np.ndarray:
    """Weights of compact rows from their singular values: well conditioned however small μ is."""
    features = rows * (np.ones(rows.shape[1]) * np.asarray(scale))
    u, s, vt = np.linalg.svd(features, full_matrices=False)
    gains = s / (s**2 + len(rows) * mu)
    return np.asarray(vt.T @ (gains[:, None] * (u.T @ (targets * target_scale))))


# --- the tangent model: explicit Jacobians and the formulas of the ridge problem -------------------


def explicit_jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """J_i = ∂f(x_i; θ)/∂θ as one matrix, (n, c, d), the parameters in the module's own order."""
    params = {name: p.detach() for name, p in module.named_parameters()}

    def run(p: dict[str, Tensor]) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(module, p, (x.clone(),))

    parts = jacrev(run)(params)
    return torch.cat([parts[name].flatten(2) for name in params], dim=2)


def ridge_loss(f: Tensor, jac: Tensor, y: Tensor, mu: float, w: Tensor) -> float:
    """1/(2n) Σ_i ‖f_i + J_i w − y_i‖² + μ/2 ‖w‖², sample by sample."""
    total = 0.0
    for fi, ji, yi in zip(f, jac, y, strict=True):
        residual = fi + ji @ w - yi
        total += float(residual @ residual) / 2
    return total / len(f) + mu / 2 * float(w @ w)


def ridge_gradient(f: Tensor, jac: Tensor, y: Tensor, mu: float, w: Tensor) -> Tensor:
    """1/n Σ_i J_iᵀ (f_i + J_i w − y_i) + μ w."""
    total = torch.zeros_like(w)
    for fi, ji, yi in zip(f, jac, y, strict=True):
        total += ji.T @ (fi + ji @ w - yi)
    return total / len(f) + mu * w


def ridge_hessian(jac: Tensor, mu: float) -> Tensor:
    """1/n Σ_i J_iᵀ J_i + μ I."""
    n, _, d = jac.shape
    total = torch.zeros(d, d, dtype=jac.dtype)
    for ji in jac:
        total += ji.T @ ji
    return total / n + mu * torch.eye(d, dtype=jac.dtype)


def ridge_solution(f: Tensor, jac: Tensor, y: Tensor, mu: float) -> Tensor:
    """argmin of :func:`ridge_loss`, by a dense solve."""
    zero = torch.zeros(jac.shape[2], dtype=jac.dtype)
    return torch.linalg.solve(ridge_hessian(jac, mu), -ridge_gradient(f, jac, y, mu, zero))


def theorem_constants(f: Tensor, jac: Tensor, y: Tensor, mu: float) -> tuple[float, float]:
    """(max_i λ_max(J_iᵀJ_i) + μ, max_i ½‖f_i − y_i‖²), sample by sample."""
    tops = [float(torch.linalg.eigvalsh(ji @ ji.T)[-1]) + mu for ji in jac]
    losses = [float((fi - yi) @ (fi - yi)) / 2 for fi, yi in zip(f, y, strict=True)]
    return max(tops), max(losses)


# --- K-FAC: the two factors of one layer, one sample, output and position at a time ---------------


def layer_rows(tail: nn.Module, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs a (n, s, k) and output gradients g (n, c, s, o) of the layer ``name``, of a network whose
    layers run once a pass; for a convolution, k are the patches it sees."""
    module, kept = tail.get_submodule(name), {}

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        kept["a"], kept["y"] = inputs[0].detach().clone(), output
        return output.clone()

    handle = module.register_forward_hook(keep)
    inputs, gradients = [], []
    for i in range(len(x)):
        with sdpa_kernel(SDPBackend.MATH):
            logits = tail(x[i : i + 1].clone().requires_grad_(True))[0]
        pulled = [torch.autograd.grad(f, kept["y"], retain_graph=True)[0] for f in logits]
        a, g = kept["a"], torch.stack(pulled)[:, 0]
        if isinstance(module, nn.Conv2d):
            options = (module.kernel_size, module.dilation, module.padding, module.stride)
            a, g = nn.functional.unfold(a, *options).transpose(1, 2), g.flatten(2).transpose(1, 2)
        inputs.append(a.reshape(-1, a.shape[-1]))
        gradients.append(g.reshape(len(logits), -1, g.shape[-1]))
    handle.remove()
    return torch.stack(inputs), torch.stack(gradients)


def kronecker_block(a: Tensor, g: Tensor) -> Tensor:
    """B ⊗ A of :func:`layer_rows`, in the order of the weight's entries (o, k)."""
    n, c, s, o = g.shape
    left = torch.zeros(o, o, dtype=g.dtype)
    right = torch.zeros(a.shape[2], a.shape[2], dtype=a.dtype)
    for i in range(n):
        for t in range(s):
            right += torch.outer(a[i, t], a[i, t]) / (n * s)
            for k in range(c):
                left += torch.outer(g[i, k, t], g[i, k, t]) / n
    return torch.kron(left, right)


# --- compact features: one sample and one layer at a time -----------------------------------------


def feature_gradients(tail: nn.Module, name: str, x: Tensor) -> Tensor:
    """∂(1ᵀh(x_i))/∂W of the layer ``name``, h the tail's pooled features: (n, outputs, width)."""
    weight = tail.get_parameter(f"{name}.weight").detach()

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tail = tail

        def forward(self, xi: Tensor) -> Tensor:
            return self.tail.features(xi[None].clone()).sum()

    def total(w: Tensor, xi: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(Features(), {f"tail.{name}.weight": w}, (xi,))

    return torch.stack([grad(total)(weight, xi).flatten(1) for xi in x])


@dataclass(frozen=True)
class Ridge:
    """1/(2n) Σ (x_iᵀw − y_i)² + μ/2 ‖w‖², small enough to solve exactly."""

    x: np.ndarray  # (n, d)
    y: np.ndarray  # (n,)
    mu: float

    def hessian(self) -> np.ndarray:
        return self.x.T @ self.x / len(self.y) + self.mu * np.eye(self.x.shape[1])

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self.x.T @ (self.x @ w - self.y) / len(self.y) + self.mu * w

    def minimiser(self) -> np.ndarray:
        return np.linalg.solve(self.hessian(), self.x.T @ self.y / len(self.y))

    def without(self, b: int) -> Ridge:
        return Ridge(self.x[b:], self.y[b:], self.mu)

    def only(self, b: int) -> Ridge:
        return Ridge(self.x[:b], self.y[:b], self.mu)

    def beta(self) -> float:
        return float(np.max(np.sum(self.x**2, axis=1)) + self.mu)

    def sigma_l(self) -> float:
        """mean ℓ̂_i(w*) − mean min ℓ̂_i; min of ½(xᵀw − y)² + μ/2 ‖w‖² is ½ y² μ/(μ + ‖x‖²)."""
        w = self.minimiser()
        at_optimum = (self.x @ w - self.y) ** 2 / 2 + self.mu * w @ w / 2
        lowest = self.y**2 / 2 * self.mu / (self.mu + np.sum(self.x**2, axis=1))
        return float(np.mean(at_optimum - lowest))


def cross_validated_ridge(
    rows: np.ndarray, targets: np.ndarray, fold: np.ndarray, ridges: Sequence[float]
) -> float:
    """The ridge λ of least squared error on held-out folds, each by (ΨᵀΨ + λI)⁻¹ ΨᵀT."""
    errors = []
    for ridge in ridges:
        total = 0.0
        for held_out in sorted(set(fold.tolist())):
            seen, unseen = fold != held_out, fold == held_out
            system = rows[seen].T @ rows[seen] + ridge * np.eye(rows.shape[1])
            theta = np.linalg.solve(system, rows[seen].T @ targets[seen])
            total += float(((rows[unseen] @ theta - targets[unseen]) ** 2).sum())
        errors.append(total)
    return ridges[errors.index(min(errors))]


# --- features --------------------------------------------------------------------------------------


def second_moments(rows: np.ndarray) -> list[float]:
    """Σ_s a_i(s) a_j(s) for i ≤ j, row after row, in Python's numbers: (s, r) -> r(r + 1)/2."""
    places, size = rows.shape
    return [
        sum(rows[s, i].item() * rows[s, j].item() for s in range(places))
        for i in range(size)
        for j in range(i, size)
    ]


def rounded_root(value: Fraction) -> float:
    """√value rounded once to float64, half to even, by integer square roots: value ≥ 0."""
    if value == 0:
        return 0.0
    shift = 0
    while value * Fraction(4) ** shift < Fraction(4) ** 80:
        shift += 1
    scaled = value * Fraction(4) ** shift  # at least 4^80, so that its root has more than 80 bits
    root = math.isqrt(scaled.numerator // scaled.denominator)
    sticky = (
        0 if Fraction(root) ** 2 == scaled else 1
    )  # what is cut off only matters as "not nothing"
    return float(Fraction(2 * root + sticky, 2) / Fraction(2) ** shift)


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


# --- fine-tuning ----------------------------------------------------------------------------------


def plain_fine_tuning(
    backbone: Backbone, records: Records, settings: FineTuning
) -> tuple[dict[str, Tensor], list[float]]:
    """All views of an epoch in memory, SGD written out, one loop: the weights and the epochs' losses."""
    network = network_of(backbone, len(records.classes)).requires_grad_(True)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.train(not settings.frozen_statistics)
    view = Augmentation(backbone.preprocess, settings.size, settings.scale, settings.flip)
    weights, n, losses = dict(network.named_parameters()), len(records), []
    velocity = {name: torch.zeros_like(w) for name, w in weights.items()}
    labels, num_batches = torch.from_numpy(records.labels), -(-n // settings.batch_size)
    for epoch in range(settings.epochs):
        drawn = [draws(settings.seed, epoch, i) for i in range(n)]
        views = [view(record.image(), d) for record, d in zip(records, drawn, strict=True)]
        images, total = torch.from_numpy(np.stack(views)), 0.0
        order = torch.tensor(shuffled(settings.seed, epoch, n))
        for step, index in enumerate(order.tensor_split(num_batches)):
            t = (epoch * num_batches + step + 0.5) / (settings.epochs * num_batches)
            loss = nn.functional.cross_entropy(network(images[index]), labels[index])
            gradients = torch.autograd.grad(loss, list(weights.values()))
            for (name, w), gradient in zip(weights.items(), gradients, strict=True):
                rate = settings.head_rate if name.startswith("classifier") else settings.rate
                with torch.no_grad():
                    change = gradient + settings.weight_decay * w
                    velocity[name] = settings.momentum * velocity[name] + change
                    w -= settings.annealing(t) * rate * velocity[name]
            total += float(loss.detach()) * len(index)
        losses.append(total / n)
    return network.state_dict(), losses
