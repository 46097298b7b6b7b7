"""The scene of an audit: a linear problem, who is in it, who must go, and samples to look at.

Both user parts are f(x) = offset(x) + J(x) w with a ridge. For the compact one J(x) is x ⊗ I on the
quantised features, so one problem, and one set of forgetting methods, serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface.data.records import Records
from efface.guarantee.promise import Guarantee, sigma_for
from efface.linear.last_layer import ridge, with_ones
from efface.linear.operator import TangentOperator
from efface.model.mixed_linear import MixedLinear
from efface.network.targets import one_hot
from efface.parts.part import UserPart, require_training_data
from efface.parts.table import view_of
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.dense import jacobian_rows
from efface.parts.tangent.kfac import Kfac
from efface.parts.tangent.primal import SharedRows
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import largest_eigenvalue
from efface.parts.view import LinearView, Samples

OUTPUT_BYTES = 2 << 30  # kept of samples whose outputs are looked at often
EXPLICIT_BYTES = 2 << 30  # of Jacobian rows that are built at once
LOGIT_NOISE = 0.02  # of the target scale: how far the noise of a release moves a logit


@dataclass(frozen=True, eq=False)
class Scene:
    """``forget`` are positions in ``train``; the first ``num_user`` samples there can be forgotten.

    ``mu`` is the ridge, or ``total_ridge`` / n where the compact part fixed the total. A scene is a value:
    methods and attacks read it and return weights.
    """

    user: UserPart
    operator: TangentOperator
    train: Samples
    test: Samples
    forget: Tensor  # (b,)
    num_user: int
    mu: float | None
    total_ridge: float | None
    guarantee: Guarantee
    solver: Callable[[RidgeProblem], Tensor] | None = (
        None  # instead of conjugate gradients from zero
    )

    @classmethod
    def of(
        cls,
        model: MixedLinear,
        forget: np.ndarray,
        test: Records,
        *,
        guarantee: Guarantee | None = None,
    ) -> Scene:
        """The scene of a fitted model, the user records at ``forget``, and test records.

        Without a ``guarantee`` it is that of ``efface plan``: ε = 1, δ = 1e-5, σ from core samples.
        """
        data = require_training_data(model.data)
        position = torch.from_numpy(np.asarray(forget, dtype=np.int64))
        user, view = model.user, view_of(model.user)
        train = view.training(data)
        shown = view.samples(model.activations(test), model.core.labels(test))
        operator, ridges = view.operator(), (user.mu, user.total_ridge)
        if guarantee is None:
            core = slice(len(data.records) if len(data) > len(data.records) else 0, len(data))
            guarantee = Guarantee.plan(1.0, 1e-5, _sigma(user, train.inputs[core]), operator.d)
        num_user = len(data.records)
        return cls(user, operator, train, shown, position, num_user, *ridges, guarantee)

    # --- sets -------------------------------------------------------------------------------------

    @cached_property
    def view(self) -> LinearView[Any]:
        return view_of(self.user)

    @property
    def shared(self) -> bool:
        """Whether all classes share the features, so that the minimiser has a closed form."""
        return self.view.closed_form

    @property
    def kind(self) -> str:
        return str(self.user.kind)

    @cached_property
    def retained(self) -> Tensor:
        keep = torch.ones(len(self.train), dtype=torch.bool)
        keep[self.forget] = False
        return keep.nonzero()[:, 0]

    @property
    def everyone(self) -> Tensor:
        return torch.arange(len(self.train))

    def forgetting(self, forget: Tensor) -> Scene:
        return replace(self, forget=forget)

    def restricted(self, index: Tensor, forget: Tensor) -> Scene:
        """The scene in which only ``index`` were trained on; ``forget`` are positions among all."""
        place = torch.full((len(self.train),), -1)
        place[index] = torch.arange(len(index))
        if bool((place[forget] < 0).any()):
            raise ValueError("what is to be forgotten must have been trained on")
        users = int((index < self.num_user).sum())
        return replace(self, train=self.train.select(index), forget=place[forget], num_user=users)

    def relabelled(self, index: Tensor, labels: Tensor) -> Scene:
        """The scene in which these training samples bear other labels: canaries."""
        changed = self.train.labels.clone()
        changed[index] = labels
        return replace(self, train=replace(self.train, labels=changed))

    # --- the problem ------------------------------------------------------------------------------

    def ridge(self, n: int) -> float:
        if self.mu is not None:
            return self.mu
        assert self.total_ridge is not None
        return self.total_ridge / max(n, 1)

    def targets(self, samples: Samples) -> Tensor:
        """What J w (and the operator's own output) should be, (n, c)."""
        full = one_hot(samples.labels, samples.offset.shape[1], self.user.target_scale)
        return full - samples.offset

    def problem(self, index: Tensor) -> RidgeProblem:
        """The ridge problem of some training samples: n, and so every mean, is theirs."""
        return self._problem_of(self.train.select(index))

    def _problem_of(self, samples: Samples, **options: Any) -> RidgeProblem:
        dtype = torch.float64 if self.shared else torch.float32
        targets, ridge_ = self.targets(samples), self.ridge(len(samples))
        return RidgeProblem(self.operator, samples.inputs, targets, ridge_, dtype=dtype, **options)

    @cached_property
    def retained_problem(self) -> RidgeProblem:
        """Of what stays; kept, since most methods go through it."""
        return self.problem(self.retained)

    @cached_property
    def curvature(self) -> Tensor:
        """diag H_r = diag(1/n Σ J_iᵀJ_i) + μ, (d,), from explicit rows of J; probed where these are large."""
        problem = self.retained_problem
        if self.shared:
            squares = problem.activations[slice(None)].double().square().mean(0)  # (k,)
            return squares.repeat(problem.targets.shape[1]) + problem.mu
        if 32 * problem.targets.shape[1] * problem.d * 8 > EXPLICIT_BYTES:
            return probed_diagonal(problem) + problem.mu
        total = problem.zeros()
        for start in range(0, problem.n, 32):
            inputs = problem.activations[slice(start, start + 32)]
            batch = self.operator.prepare(inputs, torch.float64)
            total += jacobian_rows(problem, batch).square().sum(0)
        return total / problem.n + problem.mu

    def kfac(self, v: Tensor) -> Tensor:
        """P⁻¹ v, P the K-FAC curvature of the retained data. For shared features P = A ⊗ I + μI, and one
        Cholesky of A + μI is cheaper than its eigenvectors."""
        problem = self.retained_problem
        if not self.shared:
            kfac = Kfac.build(self.operator, problem.activations, problem.mu, dtype=torch.float64)
            return kfac.apply(v)
        rows = problem.activations[slice(None)].double()  # (n, k)
        factor = torch.linalg.cholesky(
            rows.T @ rows / problem.n + problem.mu * torch.eye(rows.shape[1], dtype=rows.dtype)
        )
        per_class = v.view(-1, rows.shape[1])  # (c, k)
        return torch.cholesky_solve(per_class.T, factor).T.reshape(-1)

    @cached_property
    def step(self) -> float:
        """1/λmax(H_r): the largest step that SGD with momentum is sure to survive."""
        return 1.0 / largest_eigenvalue(self.retained_problem)

    def solve(self, index: Tensor, tolerance: float = 1e-6) -> Tensor:
        """The minimiser of L on these samples: closed form where there is one, else CG from zero.

        It depends on the samples alone, not on any other weights: this is what retraining means. A
        ``solver`` of the scene's own is used instead of conjugate gradients.
        """
        if self.shared:
            samples = self.train.select(index)
            theta = ridge(samples.inputs, self.targets(samples), self.ridge(len(index)))  # type: ignore[arg-type]
            return theta.T.reshape(-1)
        if self.solver is not None:
            return self.solver(self.problem(index))
        solver = ConjugateGradient(tolerance=tolerance, max_passes=3000)
        return solver.solve(self.problem(index)).value

    def logits(self, weights: Tensor, samples: Samples, batch_size: int = 256) -> Tensor:
        """offset + f + J w in float64, (n, c)."""
        if isinstance(samples.inputs, SharedRows):  # prepared already
            return samples.offset + self._problem_of(samples).push(weights, outputs=True)
        out = [torch.zeros(0, samples.offset.shape[1], dtype=torch.float64)]
        dtype = torch.float64 if self.shared else torch.float32
        for start in range(0, len(samples), batch_size):
            batch = self.operator.prepare(samples.inputs[slice(start, start + batch_size)], dtype)
            out.append((batch.outputs + self.operator.jvp(batch, weights)).double())
        return samples.offset + torch.cat(out)

    def outputs(self, samples: Samples) -> Callable[[Tensor], Tensor]:
        """``logits`` of many weights on the same samples: what does not depend on them is computed once."""
        problem = self._problem_of(samples, cache_bytes=OUTPUT_BYTES)
        first = problem.push(problem.zeros(), outputs=True)
        return lambda weights: samples.offset + first + problem.push(weights)

    def loss(self, weights: Tensor, samples: Samples) -> float:
        """mean ½‖f − y‖², without the ridge."""
        return self.loss_of(self.logits(weights, samples), samples)

    def loss_of(self, logits: Tensor, samples: Samples) -> float:
        targets = one_hot(samples.labels, samples.offset.shape[1], self.user.target_scale)
        return float((logits - targets).square().sum(1).mean() / 2)

    # --- the head ---------------------------------------------------------------------------------

    def head_rows(self, samples: Samples) -> Tensor:
        """The inputs of the head's weights, (n, p + 1)."""
        pooled = self.user.core.tail.head.in_features
        if self.shared:
            return samples.inputs[slice(None)][:, : pooled + 1].double()
        scales = self.operator.scales
        rows = with_ones(self.user.core.features_of(samples.inputs)) * scales["classifier.weight"]
        rows[:, -1] = scales["classifier.bias"]
        return rows

    def with_head(self, weights: Tensor, theta: Tensor) -> Tensor:
        """The weights with those of the head replaced by θ (p + 1, c)."""
        changed = weights.clone()
        views = self.operator.layout.views(changed)
        if self.shared:
            views["classifier.weight"][:, : len(theta)] = theta.T
        else:
            views["classifier.weight"].copy_(theta[:-1].T)
            views["classifier.bias"].copy_(theta[-1])
        return changed

    # --- what is claimed --------------------------------------------------------------------------

    @property
    def pair_epsilon(self) -> float:
        """ε between two certified releases whose forgotten sets differ: both are within m of the same
        retrained model, so within 2 m of each other. Attacks on membership are held against this."""
        g, d = self.guarantee, self.operator.d
        return g.epsilon_bound(2 * g.planned_shift(d), d)


def probed_diagonal(problem: RidgeProblem, probes: int = 8, batch_size: int = 16) -> Tensor:
    """An estimate of diag(1/n Σ J_iᵀJ_i), (d,), in ``probes`` backward passes; never negative.

    For independent u_i with E u_i u_iᵀ = I the mean of (Σ_i J_iᵀu_i)², taken entry by entry, is the diagonal
    of Σ_i J_iᵀJ_i. Its relative standard deviation is about √(2 · batch_size / (probes · n)).
    """
    generator, total = torch.Generator().manual_seed(0), problem.zeros()
    for start in range(0, problem.n, batch_size):
        inputs = problem.activations[slice(start, start + batch_size)]
        batch = problem.operator.prepare(inputs, problem.dtype)
        for _ in range(probes):
            u = torch.randn(batch.outputs.shape, generator=generator, dtype=problem.dtype)
            total += problem.operator.vjp(batch, u).double().square()
    return total / (probes * problem.n)


def _sigma(user: UserPart, inputs: Tensor) -> float:
    """The noise of a release, from core samples where they are replayed."""
    square = view_of(user).mean_jacobian_square(inputs)
    return sigma_for(square, len(user.core.classes), LOGIT_NOISE * user.target_scale)
