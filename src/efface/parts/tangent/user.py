"""The tangent user part: user weights w for f_core(x) + J(x) w, fitted by a solver of choice.

Forgetting is a Newton step on the retained data, w ← w − H_r⁻¹ g_r(w), and fresh noise on what is served.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from efface import files
from efface.data.pictures import Shown
from efface.digests import tensors_digest
from efface.errors import EffaceError, FormatError
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import Certificate
from efface.guarantee.check import Check
from efface.guarantee.promise import Guarantee, sigma_for
from efface.linear.frozen import final_names
from efface.linear.gemm import let_go
from efface.linear.operator import TangentOperator
from efface.linear.scales import mean_jacobian_square
from efface.linear.solution import Solution, Status
from efface.network.activations import ActivationCache, Activations
from efface.network.core import Core
from efface.network.targets import one_hot
from efface.parts.exported import LOGITS, Exported
from efface.parts.part import Agreement, Change, UserPart, within_rounding
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.chain import TangentChain
from efface.parts.tangent.head import best_head
from efface.parts.tangent.kfac import Kfac
from efface.parts.tangent.preconditioners import Identity, Nystrom, Preconditioner
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.procedure import ProcedureChoice
from efface.parts.tangent.release import Outcome, Procedure, release
from efface.parts.tangent.settings import arguments_of
from efface.parts.tangent.stability import TangentOutlook
from efface.parts.tangent.theorem import theorem_constants
from efface.parts.tangent.verification import recertify
from efface.parts.training_set import TrainingSet, joined, select
from efface.progress import Progress

STATE = "state.safetensors"  # weights without noise
ROUNDING = 1e-3  # activations computed anew, with other kernels, may differ by this
LAYERS = ("all", "final")
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


class TangentUser(UserPart):
    """User weights of all parameters of the tail; zero until fitted, so the model is the core's.

    Args:
        mu: the ridge μ, part of the loss (not a weight decay of the optimiser).
        target_scale: targets are one-hot times this.
        solver: how to minimise; conjugate gradients by default.
        scales: one number a parameter tensor, from core data (``balanced_scales``); None is the paper.
        layers: which layers of the tail have user weights: ``all``, or ``final`` (the last convolution with
            its BatchNorm, and the head: far fewer weights and far faster products).
    """

    kind = "tangent"
    noisy = True
    keeps_activations = float64 = True
    secret_file = STATE
    outlook = TangentOutlook()
    options = ("solver", "scales", "loss", "rate", "epochs", "layers")

    mu: float

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
        layers: str = "all",
    ) -> None:
        if layers not in LAYERS:
            raise EffaceError(f"unknown layers {layers!r:.80}.", f"use {' or '.join(LAYERS)}.")
        self.core, self.mu, self.target_scale, self.layers = core, mu, target_scale, layers
        self.solver: Solver = solver if solver is not None else ConjugateGradient()
        self.batch_size, self.fast = batch_size, fast
        names = final_names(core.tail) if layers == "final" else None
        how: dict[str, Any] = {"fast": fast, "scales": scales, "place": core.place, "names": names}
        self.operator = TangentOperator(core.tail, **how)
        self.reset()

    @property
    def settings(self) -> dict[str, Any]:
        """What the loss and the predictions' bits depend on; the solver is the caller's."""
        return {
            "kind": self.kind,
            "mu": self.mu,
            "target_scale": self.target_scale,
            "scales": self.operator.scales,
            "fast": self.fast,
            **({} if self.layers == "all" else {"layers": self.layers}),
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
        """Solve; the status says whether it got there. Conjugate gradients start from the best head alone,
        which has a closed form, other solvers from zero, as in the paper: to the same minimiser."""
        warm = isinstance(self.solver, ConjugateGradient)
        start = self.best_head(activations, labels) if warm else None
        problem = self.problem(activations, labels)
        solution = self.solver.solve(problem, start, progress=progress)
        self.state = self.weights = solution.value
        return solution

    def best_head(self, activations: Activations, labels: Tensor) -> Tensor:
        """The weights that minimise L_D when only those of the head may differ from zero."""
        targets = one_hot(labels, len(self.core.classes), self.target_scale)
        features = self.core.features_of(activations)
        missing = targets - self.core.logits_of(activations)
        return best_head(self.operator, features, missing, self.mu)

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
            return Nystrom.build(self.unlabelled(activations), rank)
        return Kfac.build(self.operator, activations, self.mu) if kind == "kfac" else Identity()

    def activations(
        self,
        records: Shown,
        cache: ActivationCache | None = None,
        *,
        progress: Progress | None = None,
    ) -> Activations:
        return self.core.activations(records, cache, progress=progress)

    def core_logits(self, activations: Activations) -> Tensor:
        return self.core.logits_of(activations)

    def logits(self, activations: Activations) -> Tensor:
        """f_core + J w in float32, one by one, (n, c). With w = 0 the core's logits bit for bit."""
        logits, weights = self.core.logits_of(activations), self.weights.float()
        if not weights.any():
            return logits

        def moved(x: Tensor) -> Tensor:
            return self.operator.jvp(self.operator.prepare(x), weights)

        return logits + self.core.each(moved, activations, len(self.core.classes))

    def exported(self) -> Exported:
        directions = self.operator.scaled(self.weights.float())
        module = TangentChain(self.core, directions).eval()
        image, rounding = self.core.image_shape, "that of float32: the check says what it came to"
        return Exported(module, image, (LOGITS,), batched=False, bit_equal=False, rounding=rounding)

    def reset(self) -> None:
        """Forget everything: w = 0. ``state`` is the noiseless twin that later requests start from."""
        self.weights = torch.zeros(self.operator.d, dtype=torch.float64)
        self.state = self.weights
        let_go()

    def unlabelled(self, activations: Activations) -> RidgeProblem:
        """For what only needs the curvature: H has no labels."""
        return self.problem(activations, torch.zeros(len(activations), dtype=torch.int64))

    @classmethod
    def kept_bytes(cls, core: Core, num_records: int, given: Mapping[str, Any]) -> int:
        """Boundary activations in float32."""
        return 4 * num_records * math.prod(core.boundary_shape)

    @classmethod
    def arguments(
        cls, core: Core, given: Mapping[str, Any], cache: ActivationCache | None
    ) -> dict[str, Any]:
        return arguments_of(core, given, cache)

    # --- requests ---------------------------------------------------------------------------------

    def samples(self, data: TrainingSet, activations: Activations) -> TrainingSet:
        return replace(data, activations=activations)

    def learn(self, data: TrainingSet, progress: Progress | None = None) -> Solution:
        assert data.activations is not None
        return self.fit(data.activations, data.labels, progress)

    def forget(
        self,
        data: TrainingSet,
        positions: np.ndarray,
        guarantee: Guarantee | None,
        *,
        procedure: Procedure | ProcedureChoice | None = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Change:
        assert guarantee is not None
        if isinstance(procedure, ProcedureChoice):
            procedure = procedure.build(len(self.core.classes))
        options: dict[str, Any] = {"procedure": procedure, "test_seed": test_seed}
        outcome = self.outcome(data, positions, guarantee, progress=progress, **options)
        return self._take_over(outcome, data.without(positions))

    def add(
        self,
        data: TrainingSet,
        new: TrainingSet,
        guarantee: Guarantee | None,
        *,
        cache: ActivationCache | None = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Change:
        """Solve again from the present state.

        Once a release had to hide something, so has every later one: then the solve goes as far as the
        guarantee asks, noise is added, and the certificate says so. Before the first request there is
        nothing to hide and no certificate.
        """
        data = data.plus(new, joined(data, new, cache))
        assert data.activations is not None
        if self.shifts:
            assert guarantee is not None
            nobody = np.zeros(0, dtype=np.int64)
            options: dict[str, Any] = {"num_added": len(new), "test_seed": test_seed}
            outcome = self.outcome(data, nobody, guarantee, progress=progress, **options)
            return self._take_over(outcome, data)
        problem = self.problem(data.activations, data.labels)
        solution = self.solver.solve(problem, self.state, progress=progress)
        if solution.status is Status.DIVERGED:
            raise EffaceError("the solver diverged; nothing was changed.", solution.advice)
        self.state = self.weights = solution.value
        return Change(data, None, solution)

    def outcome(
        self,
        data: TrainingSet,
        forget: np.ndarray,
        guarantee: Guarantee,
        *,
        num_added: int = 0,
        **options: Any,
    ) -> Outcome:
        """What forgetting would do: new weights and their certificate. Nothing of the part is changed."""
        assert data.activations is not None
        keep = data.retained(forget)
        labels = data.labels[torch.from_numpy(keep)]
        retained = self.problem(select(data.activations, keep), labels)
        constants = theorem_constants(self.problem(data.activations, data.labels))
        history = self.history.with_request(len(data), len(forget) + num_added, *constants)
        return release(
            retained,
            self.state,
            guarantee,
            num_forgotten=len(forget),
            earlier_shifts=self.shifts,
            history=history,
            **options,
        )

    def _take_over(self, outcome: Outcome, data: TrainingSet) -> Change:
        """What is remembered of the solution has no noiseless weights where the state has none."""
        self.state, self.weights = outcome.state, outcome.release
        self.shifts = (*self.shifts, outcome.certificate.planned_shift)
        self.history = outcome.history
        let_go()
        return Change(data, outcome.certificate, replace(outcome.solution, value=outcome.state))

    def plan(
        self,
        epsilon: float,
        delta: float,
        sigma: float | None,
        state: StatePolicy | str,
        core_activations: Callable[[], Activations | None],
        logit_noise: float = 0.02,
    ) -> Guarantee:
        """Without ``sigma`` it is chosen so that the noise moves a logit by ``logit_noise`` · target scale
        in the root mean square over the core samples."""
        if sigma is None:
            activations = core_activations()
            if activations is not None:
                square = self.mean_jacobian_square(activations)
                outputs = len(self.core.classes)
                sigma = sigma_for(square, outputs, logit_noise * self.target_scale)
        return self.promise(epsilon, delta, sigma, self.operator.d, state)

    @classmethod
    def promise(
        cls, epsilon: float, delta: float, sigma: float | None, d: int, state: StatePolicy | str
    ) -> Guarantee:
        if sigma is None:
            raise EffaceError("sigma is chosen on core records, and there are none.", "give sigma.")
        return Guarantee.plan(epsilon, delta, sigma, d, state)

    def mean_jacobian_square(self, inputs: Activations, probes: int = 2) -> float:
        """By random probes: an estimate."""
        return mean_jacobian_square(self.operator, inputs, probes)

    # --- what is proved ---------------------------------------------------------------------------

    @property
    def statistics_digest(self) -> str:
        """There are no sums."""
        return hashlib.sha256(b"").hexdigest()

    @property
    def weights_digest(self) -> str:
        return tensors_digest(self.tensors)

    def verify(self, data: TrainingSet, certificate: Certificate | None) -> Iterator[Check]:
        assert data.activations is not None
        problem = self.problem(data.activations, data.labels)
        yield from recertify(problem, self.weights, self.state, certificate)

    def agreement(self, data: TrainingSet, at: np.ndarray, again: TrainingSet) -> Agreement:
        """Activations computed with other kernels may differ by their rounding."""
        assert data.activations is not None
        assert again.activations is not None
        stored = np.stack([data.activations[slice(i, i + 1)].numpy()[0] for i in at])
        anew = again.activations[slice(0, len(at))].numpy()
        equal, within = within_rounding(stored, anew, ROUNDING * float(np.abs(stored).max()))
        return Agreement(equal, within, everywhere=False)

    # --- files ------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls, core: Core, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> TangentUser:
        options = {name: value for name, value in settings.items() if name != "kind"}
        part = cls(core, **options)
        part.load_tensors(tensors)
        return part

    def save_private(self, folder: Path) -> None:
        """The weights without noise, unless they are the release."""
        if not torch.equal(self.state, self.weights):
            files.write_tensors(folder / STATE, {"state": self.state})

    def load_private(self, folder: Path) -> None:
        if (folder / STATE).is_file():
            with files.as_saved(folder / STATE):
                state = files.read_tensors(folder / STATE)["state"]
            self.state = state.clone()  # not a map of a file that will be deleted

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"weights": self.weights}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        weights = tensors.get("weights")
        if weights is None or weights.shape != self.weights.shape:
            raise FormatError(
                f"the user weights in the file are not the {self.operator.d} of this model.",
                "restore user.safetensors from the save that core.safetensors comes from.",
            )
        self.state = self.weights = weights.double()
