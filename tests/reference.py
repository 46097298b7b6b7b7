"""Slow twins: each says in the plainest way what a fast path of the package must equal."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

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
    module = copy.deepcopy(module)  # torch.func leaves something of itself in tied weights
    params = {name: p.detach() for name, p in module.named_parameters()}

    def run(p: dict[str, Tensor]) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(module, p, (x.clone(),))

    parts = jacrev(run)(params)
    return torch.cat([parts[name].flatten(2) for name in params], dim=2)


def pooled_products(slopes: Tensor, moved: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_d B_ncd V_cd, (n, c), and Σ_n u_nc B_ncd, (c, d), number by number in float64."""
    b, v, n, c = slopes.double(), moved.double(), len(slopes), slopes.shape[1]
    forward = torch.stack([torch.stack([b[i, j] @ v[j] for j in range(c)]) for i in range(n)])
    backward = torch.zeros(slopes.shape[1:], dtype=torch.float64)
    for i in range(n):
        for j in range(c):
            backward[j] += float(u[i, j]) * b[i, j]
    return forward, backward


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


def integer_roots(rows: Sequence[Sequence[int]]) -> list[float]:
    """About √(C / tr C) on and above the diagonal, C = m Σ_s a aᵀ − (Σ_s a)(Σ_s a)ᵀ, by Newton and Schulz in
    Python's integers: Y, Z and M in units of 2^-20, every one of their products summed without a rounding."""
    size, places, unit = len(rows[0]), len(rows), 2**20
    every = range(size)
    total = [sum(row[i] for row in rows) for i in every]
    c = [
        [places * sum(row[i] * row[j] for row in rows) - total[i] * total[j] for j in every]
        for i in every
    ]
    trace = sum(c[i][i] for i in every) or 1
    one = [[int(i == j) for j in every] for i in every]

    def times(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
        return [[sum(a[i][k] * b[k][j] for k in every) for j in every] for i in every]

    def rounded(x: list[list[int]], divisor: int) -> list[list[int]]:
        return [[round(Fraction(v, divisor)) for v in row] for row in x]

    # The quotient is a float64 before it is rounded to 2^-20, as everywhere.
    y = [[round(Fraction(v / trace) * unit) for v in row] for row in c]
    z = [[unit * v for v in row] for row in one]
    for _ in range(5):
        zy = times(z, y)
        m = rounded([[3 * unit**2 * one[i][j] - zy[i][j] for j in every] for i in every], 2 * unit)
        y, z = rounded(times(y, m), unit), rounded(times(m, z), unit)
    return [y[i][j] / unit for i in every for j in range(i, size)]


def rarest(images: Tensor, share: float) -> tuple[list[float], float]:
    """Of each image the number that ``share`` of its numbers reach, signs left out; the largest of all."""
    ordered = [sorted(map(abs, image.flatten().tolist()), reverse=True) for image in images]
    reached = [numbers[max(1, math.ceil(share * len(numbers))) - 1] for numbers in ordered]
    return reached, max(numbers[0] for numbers in ordered)


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
