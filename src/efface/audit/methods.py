"""Forgetting methods: the one table that `audit`, `compare`, `reproduce` and the experiments take them from.

A method gets a scene and the weights that were trained on everybody, and returns weights that should look
as if the forgotten records had never been there: ``scene.forget`` must go, ``scene.retained`` stays. A new
one is a class with ``forget`` and an entry in the table::

    @dataclass(frozen=True)
    class Mine(Method):
        def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
            ...

    register(Mine("mine", "what it does"))

SGD steps with 1/λmax(H_r), H_r being the curvature of the loss on what is retained: the rates printed in the
paper belong to its own problem, and on another would only be a handicap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from efface.audit.scene import Scene
from efface.errors import EffaceError
from efface.guarantee import noise
from efface.linear.last_layer import ridge
from efface.parts.tangent.forgetting import PaperForgetting, SolvedForgetting
from efface.parts.tangent.sgd import SGD

REFERENCE = "retrain"  # the method that the others are compared with
UNTOUCHED = "original"  # the one that does nothing
FISHER_LOGIT_NOISE = 0.1  # of the target scale, root mean square over the retained samples


class Claim(StrEnum):
    """What a method promises about what it leaves of the forgotten records."""

    NOTHING = "nothing"
    EXACT = "exact"  # the weights of a model never given them
    CERTIFIED = "certified"  # (ε, δ), by the scene's guarantee


class Prominence(IntEnum):
    """Where reports show a method; each also in the places before."""

    TABLE = 0
    CURVE = 1
    CARD = 2


@dataclass(frozen=True, eq=False)
class NewWeights:
    """``weights`` are released; ``state`` is what they were before noise that hides them was added.

    ``distance_bound`` ≥ ‖state − w*_r‖, where the method proves one itself.
    """

    weights: Tensor
    state: Tensor
    distance_bound: float | None = None


@dataclass(frozen=True)
class Method(ABC):
    """A way to forget. Subclasses are final; what can be set differently is a field of theirs.

    ``kinds`` are the user parts it works on, ``own_of`` those whose requests `efface forget` itself carries
    out in this way.
    """

    name: str
    title: str
    prominence: Prominence = Prominence.TABLE

    claim: ClassVar[Claim] = Claim.NOTHING
    kinds: ClassVar[tuple[str, ...]] = ("compact", "tangent")
    own_of: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor | NewWeights:
        """New weights; the old ones are left as they are. A bare tensor is released without noise."""

    def __call__(self, scene: Scene, weights: Tensor, seed: int = 0) -> NewWeights:
        result = self.forget(scene, weights, seed)
        return result if isinstance(result, NewWeights) else NewWeights(result, result)

    def having(self, **settings: Any) -> Self:
        """The same method with other settings."""
        return replace(self, **settings)

    def epsilon(self, scene: Scene) -> float | None:
        """What an attack on membership may prove at most, if the claim is true."""
        return {Claim.NOTHING: None, Claim.EXACT: 0.0}.get(self.claim, scene.pair_epsilon)


@dataclass(frozen=True)
class Untouched(Method):
    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
        return weights


@dataclass(frozen=True)
class Retrained(Method):
    claim = Claim.EXACT

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
        return scene.solve(scene.retained)


@dataclass(frozen=True)
class RetrainedBySgd(Method):
    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
        return SGD(lr=scene.step, seed=seed).solve(scene.retained_problem).value


@dataclass(frozen=True)
class PaperSgd(Method):
    """The paper's forgetting: a few epochs of SGD from the trained weights.

    Args:
        complete: compute the gradient on the retained data once, in full; False is plain fine-tuning.
        step: the learning rate; None is 1/λmax(H_r).
        dtype: of the residual at the end; None is faster, and for results that nothing is certified from.
    """

    momentum: float = 0.9
    epochs: int = 3
    complete: bool = True
    step: float | None = None
    dtype: torch.dtype | None = torch.float64

    def solver(self, step: float, seed: int = 0) -> PaperForgetting:
        return PaperForgetting(
            epochs=self.epochs,
            lr=step,
            momentum=self.momentum,
            complete=self.complete,
            seed=seed,
            dtype=self.dtype,
        )

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
        step = scene.step if self.step is None else self.step
        return self.solver(step, seed).solve(scene.retained_problem, weights).value


@dataclass(frozen=True)
class FisherNoise(Method):
    """w + s F^{−1/4} ξ, F the diagonal of the Fisher information on the retained data.

    For squared error F is the diagonal of H_r. s² Σ_j F_j^{−1/2} (F_j − μ) / c is the mean variance of a
    logit; s makes its root ``FISHER_LOGIT_NOISE`` of the target scale. ``hides``: count the noise as that of
    a release, so that the state is w itself.
    """

    hides: bool = False

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> NewWeights:
        diagonal = scene.curvature
        spread = diagonal.pow(-0.25)
        outputs = scene.train.offset.shape[1]
        variance = float((spread.square() * (diagonal - scene.retained_problem.mu)).sum()) / outputs
        scale = FISHER_LOGIT_NOISE * scene.user.target_scale / max(variance, 1e-300) ** 0.5
        noisy = weights + scale * spread * normal(len(weights), seed)
        return NewWeights(noisy, weights if self.hides else noisy)


def _by_diagonal(scene: Scene, gradient: Tensor) -> Tensor:
    return gradient / scene.curvature


@dataclass(frozen=True)
class NewtonStep(Method):
    """w − t P⁻¹ g_r(w), P a cheap form of H_r, t the best step along that direction: gᵀp / pᵀH_r p.

    ``invert`` is P⁻¹: the diagonal of H_r, or its Kronecker factors layer by layer (K-FAC). The compact part
    is one linear layer whose features all classes share: H_r = A ⊗ I + μI is itself a Kronecker product,
    t = 1, and for squared loss the K-FAC step is exact. Between the layers of a tail K-FAC sees nothing, and
    the step is as good as that.
    """

    invert: Callable[[Scene, Tensor], Tensor] = _by_diagonal

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
        problem = scene.retained_problem
        gradient = problem.gradient(weights, torch.float64)
        direction = self.invert(scene, gradient)
        curvature = float(direction @ problem.product(direction))
        length = float(gradient @ direction) / curvature if curvature > 0 else 0.0
        return weights - length * direction


@dataclass(frozen=True)
class RefittedHead(Method):
    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
        samples = scene.train.select(scene.retained)
        rows = scene.head_rows(samples)  # (n, p + 1)
        no_head = torch.zeros(rows.shape[1], scene.train.offset.shape[1], dtype=torch.float64)
        outputs = scene.logits(scene.with_head(weights, no_head), samples) - samples.offset
        theta = ridge(rows, scene.targets(samples) - outputs, scene.retained_problem.mu)
        return scene.with_head(weights, theta)


@dataclass(frozen=True)
class Solved(Method):
    """Conjugate gradients until the gradient is as small as the certificate asks, then its noise.

    Args:
        by: the solver's budget and preconditioner.
        strict: refuse to go on from a solve that stopped short of the certificate.
        on_grid: noise on the certificate's grid, as in a real release; False is ideal normal noise of the
            same σ. Both are repeatable here; a real release draws its own.
    """

    by: SolvedForgetting = SolvedForgetting(max_passes=5000)  # noqa: RUF009 - frozen
    strict: bool = True
    on_grid: bool = True

    claim = Claim.CERTIFIED
    own_of = ("tangent",)

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> NewWeights:
        problem = scene.retained_problem
        tolerance = scene.guarantee.gradient_tolerance(problem.mu, scene.operator.d)
        solution = self.by.solver(tolerance).solve(problem, weights)
        if self.strict and not solution.ok:
            raise EffaceError(
                f"the certificate was not reached ({solution}).", "raise mu or sigma."
            )
        released = self._released(scene, solution.value, seed)
        return NewWeights(released, solution.value, solution.distance_bound)

    def _released(self, scene: Scene, state: Tensor, seed: int) -> Tensor:
        g = scene.guarantee
        if not self.on_grid:
            return state + g.sigma * normal(len(state), seed)
        key = seed.to_bytes(8, "little")
        return torch.tensor(
            noise.release_on_grid(state.numpy(), g.sigma, g.grid, test_seed=key).values
        )


@dataclass(frozen=True)
class Exact(Method):
    """The compact part's own way: sums of everybody's integers, minus those of the forgotten."""

    claim = Claim.EXACT
    kinds = ("compact",)
    own_of = ("compact",)

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
        return scene.view.weights_without(scene.train, scene.targets(scene.train), scene.forget)


def normal(size: int, seed: int) -> Tensor:
    """Standard normal noise that is the same for the same seed, (size,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64)


METHODS: dict[str, Method] = {}


def register(method: Method) -> None:
    """Put a method into the table; every command then knows it by its name."""
    METHODS[method.name] = method


for _method in (
    Untouched(UNTOUCHED, "nothing is done", Prominence.CARD),
    Retrained(REFERENCE, "minimiser on the retained data", Prominence.CURVE),
    RetrainedBySgd("retrain-sgd", "the paper's training: 50 epochs of SGD from zero"),
    PaperSgd("fine-tune", "3 epochs of SGD on the retained data", Prominence.CURVE, complete=False),
    FisherNoise("fisher", "noise by the Fisher information (Golatkar 2020)", Prominence.CURVE),
    NewtonStep("influence", "one Newton step with diagonal curvature"),
    NewtonStep("influence-kfac", "one Newton step with K-FAC curvature", invert=Scene.kfac),
    RefittedHead("last-layer", "the head refitted on the retained data, the rest kept"),
    PaperSgd("paper-0.9", "the paper's forgetting, 3 epochs of SGD, momentum 0.9", Prominence.CARD),
    PaperSgd("paper-0.999", "the same with momentum 0.999, as printed", momentum=0.999),
    Solved("solved", "conjugate gradients to the certificate, and its noise", Prominence.CARD),
    Exact("exact", "compact: subtract the integers, solve", Prominence.CARD),
):
    register(_method)


def methods_for(kind: str, names: list[str] | None = None) -> list[Method]:
    """The methods of a user part, all of them or those named."""
    for name in names or ():
        if name not in METHODS or kind not in METHODS[name].kinds:
            known = ", ".join(m.name for m in METHODS.values() if kind in m.kinds)
            raise EffaceError(f"no method {name!r} for the {kind} user part.", f"use {known}.")
    return [m for m in METHODS.values() if kind in m.kinds and (names is None or m.name in names)]


def own_method(kind: str) -> Method:
    """The method by which `efface forget` itself carries out requests of a user part."""
    return next(m for m in METHODS.values() if kind in m.own_of)


def prominent(least: Prominence) -> list[str]:
    """Names of the methods that reports show there, the reference last."""
    names = [m.name for m in METHODS.values() if m.prominence >= least]
    return sorted(names, key=lambda name: name == REFERENCE)
