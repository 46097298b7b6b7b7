"""The tangent user part: user weights w for f_core(x) + J(x) w, fitted by a solver of choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from efface.errors import EffaceError, FormatError
from efface.linear.last_layer import ridge, with_ones
from efface.linear.operator import TangentOperator
from efface.linear.solution import Solution
from efface.network.activations import Activations
from efface.network.core import Core
from efface.network.targets import one_hot
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.kfac import Kfac
from efface.parts.tangent.preconditioners import Identity, Nystrom, Preconditioner
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import Progress

PRECONDITIONERS = ("none", "nystrom", "kfac")


class Solver(Protocol):
    """Anything with ``solve``: SGD, ConjugateGradient, Cholesky, or your own."""

    def solve(
        self,
        problem: RidgeProblem,
        start: Tensor | None = None,
        *,
        progress: Progress | None = None,
    ) -> Solution: ...


class TangentUser:
    """User weights of all parameters of the tail; zero until fitted, so the model is the core's.

    Args:
        mu: the ridge μ, part of the loss (not a weight decay of the optimiser).
        target_scale: targets are one-hot times this.
        solver: how to minimise; conjugate gradients by default.
        scales: one number a parameter tensor, from core data (``balanced_scales``); None is the paper.
    """

    kind = "tangent"

    def __init__(
        self,
        core: Core,
        *,
        mu: float = 1e-2,
        target_scale: float = 5.0,
        solver: Solver | None = None,
        scales: Mapping[str, float] | None = None,
        batch_size: int | None = None,
        fast: bool = True,
    ) -> None:
        self.core, self.mu, self.target_scale = core, mu, target_scale
        self.solver: Solver = solver if solver is not None else ConjugateGradient()
        self.batch_size, self.fast = batch_size, fast
        self.operator = TangentOperator(core.tail, fast=fast, scales=scales)
        self.reset()

    @property
    def settings(self) -> dict:
        """What the loss and the predictions' bits depend on; the solver is the caller's."""
        return {
            "kind": self.kind,
            "mu": self.mu,
            "target_scale": self.target_scale,
            "scales": self.operator.scales,
            "fast": self.fast,
        }

    @property
    def num_weights(self) -> int:
        return self.operator.d

    def problem(self, activations: Activations, labels: Tensor, **options: object) -> RidgeProblem:
        """The ridge problem of these samples around the core."""
        targets = one_hot(labels, len(self.core.classes), self.target_scale)
        options.setdefault("batch_size", self.batch_size)
        return RidgeProblem(self.operator, activations, targets, self.mu, **options)  # type: ignore[arg-type]

    def fit(
        self, activations: Activations, labels: Tensor, progress: Progress | None = None
    ) -> Solution:
        """Solve. The solution's status says whether it got there.

        Conjugate gradients start from the best head alone, which has a closed form; other solvers start
        from zero, as in the paper. The minimiser is the same.
        """
        warm = isinstance(self.solver, ConjugateGradient)
        start = self.best_head(activations, labels) if warm else None
        problem = self.problem(activations, labels)
        solution = self.solver.solve(problem, start, progress=progress)
        self.state = self.weights = solution.value
        return solution

    def best_head(self, activations: Activations, labels: Tensor) -> Tensor:
        """The weights that minimise L_D when only those of the head may differ from zero.

        The head's tangent is (s_w h, s_b) for every class, so they solve one ridge of size p + 1.
        """
        names = ("classifier.weight", "classifier.bias")
        scale_w, scale_b = (self.operator.scales[name] for name in names)
        features = with_ones(self.core.features_of(activations)) * scale_w
        features[:, -1] = scale_b
        targets = one_hot(labels, len(self.core.classes), self.target_scale)
        theta = ridge(features, targets - self.core.logits_of(activations), self.mu)  # (p + 1, c)
        start = torch.zeros(self.operator.d, dtype=torch.float64)
        views = self.operator.layout.views(start)
        views[names[0]].copy_(theta[:-1].T)
        views[names[1]].copy_(theta[-1])
        return start

    def preconditioner(
        self, kind: str, activations: Activations, *, rank: int = 50
    ) -> Preconditioner:
        """P ≈ H for conjugate gradients, from samples that never have to be forgotten: core samples,
        or at most those that stay.

        ``nystrom`` takes ``rank`` passes over them and keeps rank · d numbers, ``kfac`` about 8 and two
        matrices a layer; ``none`` is the identity. No labels are needed: H has none.
        """
        if kind not in PRECONDITIONERS:
            known = ", ".join(PRECONDITIONERS)
            raise EffaceError(f"unknown preconditioner {kind!r}.", f"use one of {known}.")
        if kind == "nystrom":
            labels = torch.zeros(len(activations), dtype=torch.int64)
            return Nystrom.build(self.problem(activations, labels), rank)
        return Kfac.build(self.operator, activations, self.mu) if kind == "kfac" else Identity()

    def logits(self, activations: Activations) -> Tensor:
        """f_core + J w in float32, (n, c). With w = 0 these are the core's logits bit for bit."""
        if not self.weights.any():
            return self.core.logits_of(activations)
        weights = self.weights.float()
        out = [torch.zeros(0, len(self.core.classes))]
        for start in range(0, len(activations), 64):
            x = activations[start : start + 64]
            batch = self.operator.prepare(x)
            out.append(self.core.logits_of(x) + self.operator.jvp(batch, weights))
        return torch.cat(out)

    def reset(self) -> None:
        """Forget everything: w = 0. ``state`` is the noiseless twin that later requests start from."""
        self.weights = torch.zeros(self.operator.d, dtype=torch.float64)
        self.state = self.weights

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"weights": self.weights}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        weights = tensors.get("weights")
        if weights is None or weights.shape != self.weights.shape:
            raise FormatError(
                f"the user weights in the file are not the {self.operator.d} of this model.",
                "restore user.safetensors from the save that core.safetensors comes from.",
            )
        self.state = self.weights = weights.double()
