"""Slow twins: each says in the plainest way what a fast path of the package must equal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel


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
