"""Forgetting methods behind one interface: a scene and the trained weights in, new weights out.

A new method is one function::

    @method("mine", "what it does")
    def mine(scene: Scene, weights: Tensor, seed: int) -> Tensor:
        ...

``scene.forget`` must go, ``scene.retained`` stays; ``weights`` were trained on both and are not changed.
SGD steps with 1/λmax(H_r): the paper's rates belong to its problem, and on another would only be a handicap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from efface.audit.scene import Scene
from efface.errors import EffaceError
from efface.guarantee import noise
from efface.linear.last_layer import ridge
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.forgetting import PaperForgetting
from efface.parts.tangent.sgd import SGD

FISHER_LOGIT_NOISE = 0.1  # of the target scale, root mean square over the retained samples


class Claim(StrEnum):
    """What a method promises about what it leaves of the forgotten records."""

    NOTHING = "nothing"
    EXACT = "exact"  # the weights of a model never given them
    CERTIFIED = "certified"  # (ε, δ), by the scene's guarantee


@dataclass(frozen=True, eq=False)
class Forgotten:
    """``weights`` are released; ``state`` is what they were before noise that hides them was added."""

    weights: Tensor
    state: Tensor


Forget = Callable[[Scene, Tensor, int], Tensor | Forgotten]


@dataclass(frozen=True)
class Method:
    name: str
    title: str
    run: Forget
    claim: Claim
    kinds: tuple[str, ...]  # user parts it works on

    def __call__(self, scene: Scene, weights: Tensor, seed: int = 0) -> Forgotten:
        result = self.run(scene, weights, seed)
        return result if isinstance(result, Forgotten) else Forgotten(result, result)

    def epsilon(self, scene: Scene) -> float | None:
        """What an attack on membership may prove at most, if the claim is true."""
        return {Claim.NOTHING: None, Claim.EXACT: 0.0}.get(self.claim, scene.pair_epsilon)


METHODS: dict[str, Method] = {}


def method(
    name: str,
    title: str,
    claim: Claim = Claim.NOTHING,
    kinds: tuple[str, ...] = ("compact", "tangent"),
) -> Callable[[Forget], Forget]:
    """Register a forgetting method under ``name``."""

    def register(run: Forget) -> Forget:
        METHODS[name] = Method(name, title, run, claim, kinds)
        return run

    return register


def methods_for(kind: str, names: list[str] | None = None) -> list[Method]:
    """The methods of a user part, all of them or those named."""
    for name in names or ():
        if name not in METHODS or kind not in METHODS[name].kinds:
            known = ", ".join(m.name for m in METHODS.values() if kind in m.kinds)
            raise EffaceError(f"no method {name!r} for the {kind} user part.", f"use {known}.")
    return [m for m in METHODS.values() if kind in m.kinds and (names is None or m.name in names)]


@method("original", "nothing is done")
def original(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    return weights


@method("retrain", "minimiser on the retained data", Claim.EXACT)
def retrain(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    return scene.solve(scene.retained)


@method("retrain-sgd", "the paper's training: 50 epochs of SGD from zero")
def retrain_sgd(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    solver = SGD(lr=scene.step, seed=seed)
    return solver.solve(scene.retained_problem).value


@method("fine-tune", "3 epochs of SGD on the retained data")
def fine_tune(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    tuning = PaperForgetting(lr=scene.step, momentum=0.9, complete=False, seed=seed)
    return tuning.solve(scene.retained_problem, weights).value


@method("fisher", "noise by the Fisher information (Golatkar 2020)")
def fisher(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    """w + s F^{−1/4} ξ, F the diagonal of the Fisher information on the retained data.

    For squared error F is the diagonal of H_r. s² Σ_j F_j^{−1/2} (F_j − μ) / c is the mean variance of a
    logit; s makes its root ``FISHER_LOGIT_NOISE`` of the target scale.
    """
    diagonal = scene.curvature
    spread = diagonal.pow(-0.25)
    outputs = scene.train.offset.shape[1]
    variance = float((spread.square() * (diagonal - scene.retained_problem.mu)).sum()) / outputs
    scale = FISHER_LOGIT_NOISE * scene.user.target_scale / max(variance, 1e-300) ** 0.5
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(weights), generator=generator, dtype=torch.float64)
    return weights + scale * spread * drawn


@method("influence", "one Newton step with diagonal curvature")
def influence(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    """w − t D⁻¹ g_r(w), D = diag H_r, and t the best step along that direction: gᵀp / pᵀH_r p."""
    return _newton(scene, weights, lambda gradient: gradient / scene.curvature)


@method("influence-kfac", "one Newton step with K-FAC curvature")
def influence_kfac(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    """w − t P⁻¹ g_r(w), P the Kronecker-factored H_r of every layer, t as for ``influence``.

    The compact part is one linear layer whose features all classes share: H_r = A ⊗ I + μI is itself a
    Kronecker product, t = 1, and for squared loss the step is exact. Between the layers of a tail K-FAC
    sees nothing, and the step is as good as that.
    """
    return _newton(scene, weights, scene.kfac)


def _newton(scene: Scene, weights: Tensor, invert: Callable[[Tensor], Tensor]) -> Tensor:
    """One step along p = P⁻¹ g_r(w), ``invert`` being P⁻¹, of the length that lowers L_r most."""
    problem = scene.retained_problem
    gradient = problem.gradient(weights, torch.float64)
    direction = invert(gradient)
    curvature = float(direction @ problem.product(direction))
    length = float(gradient @ direction) / curvature if curvature > 0 else 0.0
    return weights - length * direction


@method("last-layer", "the head refitted on the retained data, the rest kept")
def last_layer(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    samples = scene.train.select(scene.retained)
    rows = scene.head_rows(samples)  # (n, p + 1)
    classes = scene.train.offset.shape[1]
    headless = scene.with_head(weights, torch.zeros(rows.shape[1], classes, dtype=torch.float64))
    outputs = scene.logits(headless, samples) - samples.offset
    theta = ridge(rows, scene.targets(samples) - outputs, scene.retained_problem.mu)
    return scene.with_head(weights, theta)


@method("paper-0.9", "the paper's forgetting, 3 epochs of SGD, momentum 0.9")
def paper(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    return _paper(scene, weights, 0.9, seed)


@method("paper-0.999", "the same with momentum 0.999, as printed")
def paper_as_printed(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    return _paper(scene, weights, 0.999, seed)


def _paper(scene: Scene, weights: Tensor, momentum: float, seed: int) -> Tensor:
    procedure = PaperForgetting(lr=scene.step, momentum=momentum, seed=seed)
    return procedure.solve(scene.retained_problem, weights).value


@method("solved", "conjugate gradients to the certificate, and its noise", Claim.CERTIFIED)
def solved(scene: Scene, weights: Tensor, seed: int) -> Forgotten:
    g = scene.guarantee
    problem = scene.retained_problem
    tolerance = g.gradient_tolerance(problem.mu, scene.operator.d)
    solution = ConjugateGradient(absolute=tolerance, max_passes=5000).solve(problem, weights)
    if not solution.ok:
        raise EffaceError(f"the certificate was not reached ({solution}).", "raise mu or sigma.")
    key = seed.to_bytes(8, "little")  # an audit is repeatable; a real release draws its own
    released = noise.release_on_grid(solution.value.numpy(), g.sigma, g.grid, test_seed=key)
    return Forgotten(torch.tensor(released.values), solution.value)


@method("exact", "compact: subtract the integers, solve", Claim.EXACT, ("compact",))
def exact(scene: Scene, weights: Tensor, seed: int) -> Tensor:
    """The compact part's own way: sums of everybody's integers, minus those of the forgotten."""
    return scene.view.weights_without(scene.train, scene.targets(scene.train), scene.forget)
