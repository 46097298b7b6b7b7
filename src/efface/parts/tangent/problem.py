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
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from efface.linear.operator import Prepared, TangentOperator
from efface.network.activations import Activations
from efface.parts.tangent.primal import Primal, SharedRows


@dataclass(frozen=True, eq=False)
class _Part:
    """A batch of samples, some of which belong to the problem."""

    where: slice | Tensor  # the problem's rows that these are
    inside: Tensor | None  # which samples of the batch; None: all
    batch: Prepared

    def of(self, rows: Tensor) -> Tensor:
        """The problem's share of one row a sample of the batch."""
        return rows if self.inside is None else rows[self.inside]

    def spread(self, rows: Tensor) -> Tensor:
        """The problem's rows, with zeros for the other samples of the batch."""
        if self.inside is None:
            return rows
        return rows.new_zeros(len(self.batch), rows.shape[1]).index_copy_(0, self.inside, rows)


class RidgeProblem:
    """Products over a whole set of samples; ``passes`` counts how often it was gone through.

    ``activations`` (n, …) may be a memory map, or ``SharedRows`` of a primal side that other problems use,
    too; ``targets`` (n, c). The other options are those of ``Primal``; shared rows have theirs.
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
        self.rows: Tensor | None = None  # of the primal side; None: all
        if isinstance(activations, SharedRows):
            self.primal, self.rows = activations.primal, activations.index
        else:
            options = {"batch_size": batch_size, "dtype": dtype, "cache_bytes": cache_bytes}
            self.primal = Primal(operator, activations, **options)  # type: ignore[arg-type]
        self.passes = 0.0

    @property
    def dtype(self) -> torch.dtype:
        return self.primal.dtype

    @property
    def floor(self) -> float:
        """Of a residual that a solver carries along: below this share of what it began with, rounding in the
        products has made it meaningless."""
        if self.dtype != torch.float32:
            return 0.0
        return 1e-3 if self.primal.half else 1e-5

    @property
    def batch_size(self) -> int:
        return self.primal.batch_size

    @property
    def pooled(self) -> bool:
        return self.primal.pooled

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
            cache_bytes=self.primal.cache_bytes,
        )

    def product(self, v: Tensor) -> Tensor:
        """H_D v in float64 accumulation, one pass."""
        total = self.zeros()
        for part in self._parts():
            total += self._pulled(part, self._pushed(part, v))
        return total / max(self.n, 1) + self.mu * v

    def gradient(self, w: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """g_D(w), one pass. float32 has a floor near 1e-5: certify with ``dtype=torch.float64``."""
        return self.residual(w, dtype)[1]

    def residual(self, w: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """f_i + J_i w − y_i of every sample, (n, c), and g_D(w); one pass."""
        rows, total = torch.empty_like(self.targets), self.zeros()
        for part in self._parts(dtype):
            residual = self._residual(part, w)
            rows[part.where] = residual.double()
            total += self._pulled(part, residual)
        return rows, total / max(self.n, 1) + self.mu * w

    def push(self, v: Tensor, *, outputs: bool = False) -> Tensor:
        """J_i v of every sample, (n, c) in float64; half a pass. ``outputs``: f_i + J_i v."""
        rows = torch.empty_like(self.targets)
        for part in self._parts(cost=0.5):
            pushed = self._pushed(part, v).double()
            rows[part.where] = pushed + part.of(part.batch.outputs).double() if outputs else pushed
        return rows

    def pull(self, u: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Σ_i J_iᵀ u_i for u (n, c), in float64; half a pass."""
        total = self.zeros()
        for part in self._parts(dtype, cost=0.5):
            total += self._pulled(part, u[part.where])
        return total

    def loss(self, w: Tensor) -> float:
        """L_D(w), one pass."""
        squares = [self._residual(part, w).double().square().sum() for part in self._parts()]
        return float(sum(squares)) / (2 * max(self.n, 1)) + self.mu / 2 * float(w @ w)

    def _pushed(self, part: _Part, v: Tensor) -> Tensor:
        return part.of(self.operator.jvp(part.batch, v))

    def _pulled(self, part: _Part, u: Tensor) -> Tensor:
        return self.operator.vjp(part.batch, part.spread(u.to(part.batch.outputs.dtype)))

    def _residual(self, part: _Part, w: Tensor) -> Tensor:
        outputs = part.of(part.batch.outputs)
        return outputs + self._pushed(part, w) - self.targets[part.where].to(outputs.dtype)

    def samples(self, index: Tensor) -> tuple[Prepared, Tensor]:
        """Prepared primal side and targets of some samples, for stochastic solvers."""
        self.passes += len(index) / max(self.n, 1)
        targets = self.targets[index].to(self.dtype)
        batch = self.primal.some(index if self.rows is None else self.rows[index])
        if batch is None:
            batch = self.operator.prepare(self.activations[index], self.dtype, lean=True)
        return batch, targets

    def minibatch_gradient(self, w: Tensor, index: Tensor) -> Tensor:
        """1/B Σ_{i in batch} J_iᵀ(f_i + J_i w − y_i) + μ w, unbiased for g_D(w)."""
        batch, targets = self.samples(index)
        residual = batch.outputs + self.operator.jvp(batch, w) - targets
        return self.operator.vjp(batch, residual).div_(len(index)).add_(w, alpha=self.mu)

    def minibatch_product(self, v: Tensor, index: Tensor) -> Tensor:
        """1/B Σ_{i in batch} J_iᵀJ_i v + μ v, unbiased for H_D v."""
        batch, _ = self.samples(index)
        return self.operator.product(batch, v).div_(len(index)).add_(v, alpha=self.mu)

    def batches(self, dtype: torch.dtype | None = None) -> Iterator[tuple[Prepared, Tensor]]:
        """The prepared primal side and the targets of the problem's samples, batch by batch; one pass."""
        for part in self._parts(dtype):
            batch = part.batch if part.inside is None else part.batch.select(part.inside)
            yield batch, self.targets[part.where]

    def _parts(self, dtype: torch.dtype | None = None, cost: float = 1.0) -> Iterator[_Part]:
        self.passes += cost
        dtype = dtype or self.dtype
        kept = self.primal.kept if dtype == self.dtype else None
        if kept is not None:
            yield from self._kept_parts(kept)
            return
        for start in range(0, self.n, self.batch_size):
            part = slice(start, min(start + self.batch_size, self.n))
            batch = self.operator.prepare(self.activations[part], dtype, lean=True)
            yield _Part(part, None, batch)

    def _kept_parts(self, kept: Prepared) -> Iterator[_Part]:
        """Slices of what is kept, which are views; samples of others are computed in vain and left out,
        unless they are the most."""
        size, num = self.primal.rows_at_once, len(self.primal)
        for start in range(0, num, size):
            part = slice(start, min(start + size, num))
            if self._sorted is None:
                yield _Part(part, None, kept.select(part))
                continue
            rows, order = self._sorted
            first, last = torch.searchsorted(rows, torch.tensor([part.start, part.stop])).tolist()
            inside, where = rows[first:last] - start, order[first:last]
            if len(inside) == part.stop - start:
                yield _Part(where, None, kept.select(part))
            elif 2 * len(inside) > part.stop - start:
                yield _Part(where, inside, kept.select(part))
            elif len(inside):
                batch = self.primal.some(rows[first:last])
                assert batch is not None
                yield _Part(where, None, batch)

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor] | None:
        """The problem's rows of the primal side in its order, and where in the problem they are."""
        if self.rows is None:
            return None
        found = self.rows.sort()
        return found.values, found.indices

    def pool(self, *, half: bool = False) -> None:
        """For many passes to come: see ``Primal.pool``."""
        self.primal.pool(half=half)
