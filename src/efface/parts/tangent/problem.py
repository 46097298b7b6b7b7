"""The convex problem of the user weights, with the one normalisation used everywhere:

    L_D(w) = 1/(2n) Σ_i ‖f_i + J_i w − y_i‖² + μ/2 ‖w‖²
    g_D(w) = 1/n Σ_i J_iᵀ (f_i + J_i w − y_i) + μ w
    H_D    = 1/n Σ_i J_iᵀ J_i + μ I

n is the size of the set D itself, so removing samples changes it (the paper mixes a mean loss with a
summed Hessian, errata 1). The problem's data are the stored boundary activations; J is their float64
evaluation, and float32 is only a faster way to the same solution.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from efface.linear.operator import Prepared, TangentOperator
from efface.network.activations import Activations


class RidgeProblem:
    """Products over a whole set of samples; ``passes`` counts how often it was gone through.

    ``activations`` (n, …) may be a memory map; ``targets`` (n, c). The primal side is prepared once
    and kept if it fits ``cache_bytes``, otherwise rebuilt in every pass. ``batch_size`` defaults to what
    fills about 100 MB: large enough for full-speed products, small enough for any machine.
    """

    def __init__(
        self,
        operator: TangentOperator,
        activations: Activations,
        targets: Tensor,
        mu: float,
        *,
        batch_size: int | None = None,
        dtype: torch.dtype = torch.float32,
        cache_bytes: int = 6 << 30,
    ) -> None:
        if len(activations) != len(targets):
            raise ValueError(f"{len(activations)} activations for {len(targets)} targets")
        if mu <= 0:
            raise ValueError(f"mu must be positive (strong convexity), got {mu}")
        self.operator, self.mu = operator, mu
        self.activations, self.targets = activations, targets.double()
        self.dtype, self.cache_bytes = dtype, cache_bytes
        self.pooled = False  # the form in which the primal side is kept: see ``pool``
        self.batch_size = batch_size or self._default_batch()
        self.passes = 0.0
        self._cache: list[Prepared] | None = None

    def _default_batch(self, batch_bytes: int = 100 << 20) -> int:
        if len(self.activations) == 0:
            return 1
        one = self.operator.prepare(self.activations[:1], self.dtype, lean=True)
        return max(16, min(1024, batch_bytes // max(one.num_bytes, 1)))

    @property
    def n(self) -> int:
        return len(self.targets)

    @property
    def d(self) -> int:
        return self.operator.d

    def zeros(self) -> Tensor:
        return torch.zeros(self.d, dtype=torch.float64)

    def subset(self, index: Tensor) -> RidgeProblem:
        """The same problem on some samples: n, and so every mean, is that of the subset."""
        return RidgeProblem(
            self.operator,
            self.activations[index],
            self.targets[index],
            self.mu,
            batch_size=self.batch_size,
            dtype=self.dtype,
            cache_bytes=self.cache_bytes,
        )

    def product(self, v: Tensor) -> Tensor:
        """H_D v in float64 accumulation, one pass."""
        total = self.zeros()
        for batch, _ in self._batches():
            total += self.operator.product(batch, v)
        return total / max(self.n, 1) + self.mu * v

    def gradient(self, w: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """g_D(w), one pass. float32 has a floor near 1e-5: certify with ``dtype=torch.float64``."""
        total = self.zeros()
        for batch, targets in self._batches(dtype):
            residual = batch.outputs + self.operator.jvp(batch, w) - targets.to(batch.outputs.dtype)
            total += self.operator.vjp(batch, residual)
        return total / max(self.n, 1) + self.mu * w

    def residual(self, w: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """f_i + J_i w − y_i of every sample, (n, c), and g_D(w); one pass."""
        rows, total = torch.empty_like(self.targets), self.zeros()
        for part, batch in self._parts(dtype):
            targets = self.targets[part].to(batch.outputs.dtype)
            residual = batch.outputs + self.operator.jvp(batch, w) - targets
            rows[part] = residual.double()
            total += self.operator.vjp(batch, residual)
        return rows, total / max(self.n, 1) + self.mu * w

    def push(self, v: Tensor, *, outputs: bool = False) -> Tensor:
        """J_i v of every sample, (n, c) in float64; half a pass. ``outputs``: f_i + J_i v."""
        rows = torch.empty_like(self.targets)
        for part, batch in self._parts(cost=0.5):
            rows[part] = self.operator.jvp(batch, v).double()
            if outputs:
                rows[part] += batch.outputs.double()
        return rows

    def pull(self, u: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Σ_i J_iᵀ u_i for u (n, c), in float64; half a pass."""
        total = self.zeros()
        for part, batch in self._parts(dtype, cost=0.5):
            total += self.operator.vjp(batch, u[part])
        return total

    def loss(self, w: Tensor) -> float:
        """L_D(w), one pass."""
        total = 0.0
        for batch, targets in self._batches():
            residual = batch.outputs + self.operator.jvp(batch, w) - targets.to(batch.outputs.dtype)
            total += float(residual.double().square().sum())
        return total / (2 * max(self.n, 1)) + self.mu / 2 * float(w @ w)

    def samples(self, index: Tensor) -> tuple[Prepared, Tensor]:
        """Prepared primal side and targets of some samples, for stochastic solvers."""
        self.passes += len(index) / max(self.n, 1)
        targets = self.targets[index].to(self.dtype)
        cache = self._cached()
        if cache is not None:
            return cache[0].select(index), targets
        return self.operator.prepare(self.activations[index], self.dtype, lean=True), targets

    def minibatch_gradient(self, w: Tensor, index: Tensor) -> Tensor:
        """1/B Σ_{i in batch} J_iᵀ(f_i + J_i w − y_i) + μ w, unbiased for g_D(w)."""
        batch, targets = self.samples(index)
        residual = batch.outputs + self.operator.jvp(batch, w) - targets
        return self.operator.vjp(batch, residual).div_(len(index)).add_(w, alpha=self.mu)

    def minibatch_product(self, v: Tensor, index: Tensor) -> Tensor:
        """1/B Σ_{i in batch} J_iᵀJ_i v + μ v, unbiased for H_D v."""
        batch, _ = self.samples(index)
        return self.operator.product(batch, v).div_(len(index)).add_(v, alpha=self.mu)

    def _batches(self, dtype: torch.dtype | None = None) -> Iterator[tuple[Prepared, Tensor]]:
        for part, batch in self._parts(dtype):
            yield batch, self.targets[part]

    def _parts(
        self, dtype: torch.dtype | None = None, cost: float = 1.0
    ) -> Iterator[tuple[slice, Prepared]]:
        self.passes += cost
        dtype = dtype or self.dtype
        cache = self._cached() if dtype == self.dtype else None
        for start in range(0, self.n, self.batch_size):
            part = slice(start, min(start + self.batch_size, self.n))
            if cache is not None:
                yield part, cache[0].select(part)
            else:
                yield part, self.operator.prepare(self.activations[part], dtype, lean=True)

    def pool(self) -> None:
        """For many passes to come: keep pooled slopes (``linear/pooled.py``), if there are and they fit.

        They take longer to make, and random minibatches of them longer to copy, than they save in a few.
        """
        numbers = self.operator.pooled_numbers
        if numbers and not self.pooled and 4 * numbers * self.n <= self.cache_bytes:
            self.pooled, self._cache = True, None

    @property
    def kept(self) -> Prepared | None:
        """The whole primal side, if it is kept."""
        cache = self._cached()
        return cache[0] if cache else None

    def _cached(self) -> list[Prepared] | None:
        """The whole primal side, prepared batch by batch into one tree; None if too large."""
        if self._cache is None:
            self._cache = self._fill()
        return self._cache or None

    def _fill(self) -> list[Prepared]:
        if self.n == 0:
            return []
        first = self.operator.prepare(self.activations[:1], self.dtype, lean=not self.pooled)
        if first.num_bytes * self.n > self.cache_bytes:
            return []
        return [self._assemble(first)]

    def _assemble(self, first: Prepared) -> Prepared:
        from torch.utils._pytree import tree_leaves, tree_map

        def allocate(t: Tensor) -> Tensor:
            return t.new_empty((self.n, *t.shape[1:]))

        whole = Prepared(allocate(first.outputs), tree_map(allocate, first.saved), first.layer)
        for start in range(0, self.n, self.batch_size):
            part = slice(start, min(start + self.batch_size, self.n))
            batch = self.operator.prepare(self.activations[part], self.dtype, lean=not self.pooled)
            whole.outputs[part] = batch.outputs
            pairs = zip(tree_leaves(whole.saved), tree_leaves(batch.saved), strict=True)
            for target, source in pairs:
                target[part] = source
        return whole
