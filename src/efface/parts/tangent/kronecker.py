"""The tangent kernel as two Kronecker products: a preconditioner for the problem's dual form.

Between sample i with output a and sample j with output b the kernel is K[(i,a),(j,b)] = J_ia · J_jb. The
head's share is (h_i · h_j) for a = b and nothing else, exactly. What the layers below add is approximated
by a matrix between samples times one between outputs:

    K + nμI  ≈  P  =  (G_h + nμI) ⊗ I  +  G ⊗ A,

    G_ij = Σ_a J_ia · J_ja  (layers below the head),    A_ab = Σ_i J_ia · J_ib, divided by its trace.

Unlike a sketch of a few hundred directions, P has full rank, and meets the small eigenvalues as well as the
large: at the ridges of the paper the kernel has tens of thousands of eigenvalues above nμ. With
G_h + nμI = L Lᵀ and the eigenvectors L⁻¹ G L⁻ᵀ = Q Σ Qᵀ, A = U Λ Uᵀ, all in one basis T = L⁻ᵀQ,

    P⁻¹ R = T [ (Tᵀ R U) / (1 + σ λᵀ) ] Uᵀ,    R (n, c).

G comes from one forward pass and ``probes`` backward passes: Jᵀu for a random sign vector u that all samples
share, each layer's gradient Σ_s g(s) a(s)ᵀ projected on both sides by random matrices, which keeps
inner products in expectation. Where every sample's pooled slopes are kept (``linear/pooled.py``) both G and
A are exact instead: J_ia = (W_ac b_ic)_c, so G = Σ_c ‖w_c‖² B_c B_cᵀ and A = Σ_c ‖B_c‖² w_c w_cᵀ, with w_c
the head's weights of channel c and B_c (n, d) the samples' rows.

It is a picture of the samples of the problem, so it is built from what is retained, held in memory, and
dropped with the solve. Exact inner products live as long as the samples that were prepared for them: a
request prepares its own, of those that stay; experiments share theirs (``primal.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from efface.linear.layers import Chain
from efface.linear.pooled import PooledLayer
from efface.linear.taps import LayerTap, recording
from efface.network.backbone import forward_ad_kernels
from efface.parts.tangent.head import head_rows
from efface.parts.tangent.kfac import parameters_of, used_once
from efface.parts.tangent.primal import Primal
from efface.parts.tangent.problem import RidgeProblem

HEAD = "classifier"


@dataclass(frozen=True, eq=False)
class KroneckerKernel:
    """P⁻¹ for matrices R of one row a sample and one column an output."""

    basis: Tensor  # T, (n, n)
    samples: Tensor  # σ, (n,)
    outputs: Tensor  # λ, (c,)
    rotation: Tensor  # U, (c, c)

    @classmethod
    def build(
        cls, problem: RidgeProblem, *, side: int = 64, probes: int = 2, seed: int = 0
    ) -> KroneckerKernel:
        """From the samples of ``problem``; ``side``² numbers a sample, layer and probe.

        Counted as passes by its products: 1 + ``probes`` of the 4 that a layer has in a pass, and those of A;
        exact matrices count as one pass.
        """
        exact = _pooled(problem)
        if exact is None:
            sketch = _Sketch(problem, side, probes, seed)
            head, below = sketch.grams()
            problem.passes += (1 + probes) / 4
            between = between_outputs(problem, seed=seed)
        else:
            head, below, between = exact
            problem.passes += 1
        head.diagonal().add_(problem.n * problem.mu)
        factor = torch.linalg.cholesky(head)
        half = torch.linalg.solve_triangular(factor, below, upper=False)
        whitened = torch.linalg.solve_triangular(factor, half.T, upper=False)
        values, vectors = torch.linalg.eigh((whitened + whitened.T) / 2)
        basis = torch.linalg.solve_triangular(factor.T, vectors, upper=True)
        weights, rotation = torch.linalg.eigh(between / between.trace().clamp_min(1e-300))
        made = (basis, values.clamp_min(0), weights.clamp_min(0), rotation)
        return cls(*(part.to(problem.dtype) for part in made))

    def apply(self, r: Tensor) -> Tensor:
        """P⁻¹ R, (n, c), computed in the precision of the problem's products: a preconditioner need not be
        more precise than what it is for."""
        inside = self.basis.T @ (r.to(self.basis.dtype) @ self.rotation)
        inside /= 1 + torch.outer(self.samples, self.outputs)
        return ((self.basis @ inside) @ self.rotation.T).to(r.dtype)


@dataclass(frozen=True, eq=False)
class _Gram:
    """Inner products of all samples of a primal side, from which those of some of them are read."""

    features: Tensor  # (n, p): the head's inputs
    below: Tensor  # G, (n, n)
    lengths: Tensor  # ‖b_ic‖², (n, channels)


def _pooled(problem: RidgeProblem) -> tuple[Tensor, Tensor, Tensor] | None:
    """G_h, G and A from every sample's pooled slopes, where these are kept; None elsewhere.

    Problems that share a primal side share its inner products, too: a problem takes those of its own samples.
    """
    primal, rows = problem.primal, problem.rows
    if primal not in _GRAMS:
        made = _gram(primal)
        if made is None:
            return None
        _GRAMS[primal] = made
    gram, operator = _GRAMS[primal], problem.operator
    rows = torch.arange(len(primal)) if rows is None else rows
    head = operator.tail.get_parameter(f"{HEAD}.weight").detach().double()  # (outputs, channels)
    between = (head * gram.lengths[rows].double().sum(0)) @ head.T
    own = head_rows(operator, gram.features[rows])
    return own @ own.T, gram.below[rows[:, None], rows].double(), between


_GRAMS: WeakKeyDictionary[Primal, _Gram] = WeakKeyDictionary()


def _gram(primal: Primal) -> _Gram | None:
    kept, operator = primal.kept, primal.operator
    layers = kept.layer.layers if kept is not None and isinstance(kept.layer, Chain) else []
    at = next((i for i, one in enumerate(layers) if isinstance(one, PooledLayer)), None)
    if kept is None or at is None or at != len(layers) - 2:
        return None
    pooled, (features,) = kept.saved[at][0], kept.saved[-1]  # (n, c, d), (n, c)
    scaled = operator.scaled(torch.ones(operator.d, dtype=primal.dtype))
    weight, norm, bias = (scaled[name] for name in layers[at].names)
    each = torch.cat(
        [weight.flatten(1)[:, :1].expand(-1, pooled.shape[2] - 2), norm[:, None], bias[:, None]], 1
    )
    head = operator.tail.get_parameter(f"{HEAD}.weight").detach().to(primal.dtype)
    n, lengths = len(primal), []
    below = torch.zeros(n, n, dtype=primal.dtype)
    for first in range(0, pooled.shape[1], 32):
        channels = slice(first, first + 32)
        rows = pooled[:, channels].to(primal.dtype) * each[channels]
        lengths.append(rows.square().sum(2))
        rows = rows.mul_(head[:, channels].square().sum(0).sqrt()[:, None]).flatten(1)
        for start in range(0, n, 512):  # what is right of the diagonal alone
            end = min(start + 512, n)
            below[start:end, start:].addmm_(rows[start:end], rows[start:].T)
    return _Gram(features, below.triu_().add_(below.triu(1).T), torch.cat(lengths, 1))


def between_outputs(
    problem: RidgeProblem, *, probes: int = 4, most_samples: int = 256, seed: int = 0
) -> Tensor:
    """A = Σ_i J_i J_iᵀ of the layers below the head, (c, c): E (J_i v)(J_i v)ᵀ for v ~ N(0, I)."""
    operator, c = problem.operator, problem.targets.shape[1]
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(c, c, dtype=torch.float64)
    chosen = torch.arange(0, problem.n, max(1, -(-problem.n // most_samples)))
    for index in chosen.split(max(1, min(problem.batch_size, 64))):
        batch = operator.prepare(problem.activations[index], problem.dtype)
        for _ in range(probes):
            v = torch.randn(operator.d, generator=generator, dtype=problem.dtype)
            for name, view in operator.layout.views(v).items():
                if name.startswith(f"{HEAD}."):
                    view.zero_()
            moved = operator.jvp(batch, v).double()
            total += moved.T @ moved / probes
    problem.passes += probes * len(chosen) / (2 * max(problem.n, 1))
    return total


class _Sketch:
    """Every sample's pooled features, and its projected gradients of a few outputs' sums."""

    def __init__(self, problem: RidgeProblem, side: int, probes: int, seed: int) -> None:
        self.problem, self.operator = problem, problem.operator
        self.dtype = next(self.operator.tail.parameters()).dtype
        taps = used_once(self.operator, problem.activations[:1])
        self.head = next((t for t in taps if t.name == HEAD), None)
        self.taps = [t for t in taps if t is not self.head]
        generator = torch.Generator().manual_seed(seed)
        self.signs = self._signs(probes, generator)
        self.bases = {t.name: self._bases(t, side, generator) for t in self.taps}

    def _signs(self, probes: int, generator: torch.Generator) -> Tensor:
        shape = (probes, self.problem.targets.shape[1])
        return torch.randint(0, 2, shape, generator=generator).to(self.dtype) * 2 - 1

    def _bases(self, t: LayerTap, side: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random matrices R with E R Rᵀ = I, for a layer's inputs (with its scale) and its gradients."""
        scale = self.operator.scales[parameters_of(t)[0]]
        made = []
        for width, factor in ((t.width, scale), (t.outputs, 1.0)):
            drawn = torch.randn(width, side, generator=generator, dtype=self.dtype)
            made.append(drawn * (factor / side**0.5))
        return made[0], made[1]

    def grams(self) -> tuple[Tensor, Tensor]:
        """G_h and G, (n, n) in float64."""
        n = self.problem.n
        features, rows = [], []
        for start in range(0, n, 32):
            h, psi = self._batch(self.problem.activations[slice(start, min(start + 32, n))])
            features.append(h)
            rows.append(psi)
        pooled, sketched = torch.cat(features), torch.cat(rows)
        head = torch.zeros(n, n, dtype=torch.float64)
        if self.head is not None:
            own = head_rows(self.operator, pooled)
            head = own @ own.T
        return head, (sketched @ sketched.T).double() / len(self.signs)

    def _batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled features (m, p) and the sketch (m, probes · layers · side²) of m samples."""
        m, every = len(x), [*self.taps, *([self.head] if self.head else [])]
        with torch.enable_grad(), forward_ad_kernels(), recording(every) as seen:
            x = x.detach().to(self.dtype).requires_grad_(True)
            logits = self.operator.tail(x.clone())  # a clone, because the tail may begin in place
            ends = [seen[t.name][1] for t in self.taps]
            parts = []
            for u in self.signs if ends else ():
                given = u.expand_as(logits)
                pulled = torch.autograd.grad(
                    logits, ends, given, retain_graph=True, allow_unused=True
                )
                for t, g in zip(self.taps, pulled, strict=True):
                    if g is not None:
                        parts.append(self._projected(t, seen[t.name][0], g, m))
        features = seen[HEAD][0].flatten(1) if self.head is not None else x.new_zeros(m, 0)
        empty = torch.zeros(m, 0, dtype=self.dtype)
        return features, torch.cat([empty, *parts], dim=1).detach()

    def _projected(self, t: LayerTap, inputs: Tensor, gradient: Tensor, m: int) -> Tensor:
        left, right = self.bases[t.name]
        a = t.project(inputs, left, m)  # (m, s, side)
        b = t.gradient_rows(gradient, m) @ right
        return (b.transpose(1, 2) @ a).flatten(1)
