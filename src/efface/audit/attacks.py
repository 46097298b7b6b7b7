"""Attacks on membership: was this record in the data before it was forgotten?

One game serves them all. In each of K worlds the owner of the model

1. takes a random part of the user data that is nobody's target, and all replayed data: the base;
2. adds each target with probability ½ (a coin of its own), and trains;
3. forgets every target that is in, by the method under attack; the attacker gets the new weights.

The attacker knows the data, the base, the training and the method, but not the coins. A method that forgets
exactly leaves nothing that depends on them. ``scores`` functions turn what was seen into one number a world
and target; high means "was in".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efface.audit.methods import Method
from efface.audit.metrics import Verdict, judge
from efface.audit.scene import Samples, Scene
from efface.errors import EffaceError
from efface.progress import Progress

Floats = NDArray[np.float64]
# τ of the joint decoders (tangent), for unit directions: chosen among a few powers of ten on digits. It
# decides how strong an attack is, not whether it is fair.
WEIGHT_RIDGE, GRADIENT_RIDGE = 0.1, 1e-3


@dataclass(frozen=True)
class World:
    """One throw of the coins and what training made of it. Positions are in the scene's training set."""

    base: Tensor
    included: NDArray[np.bool_]  # (t,)
    trained: Tensor  # weights with the included targets
    reference: Tensor  # weights of the base alone


@dataclass(frozen=True, eq=False)
class Worlds:
    """The worlds of a game, trained once and used against every method."""

    scene: Scene
    targets: Tensor  # (t,)
    worlds: tuple[World, ...]
    directions: Tensor  # (t, d): where each target moves the weights

    @property
    def included(self) -> NDArray[np.bool_]:
        return np.stack([world.included for world in self.worlds])  # (K, t)


@dataclass(frozen=True, eq=False)
class Game:
    """What the attacker saw: one row a world, one column a target (or a population sample)."""

    included: NDArray[np.bool_]  # (K, t)
    margins: Floats  # (K, t): logit of the label minus the largest other, after forgetting
    before: Floats  # (K, t): the same before forgetting
    confidence: Floats  # (K, t): softmax of the label
    population: Floats  # (K, z): softmax of the label of test samples
    projections: Floats  # (K, t): of w' − w*_base on the targets' directions
    gradients: Floats  # (K, t): of H(w' − w*_base), the base's gradient at w', on the same


def build_worlds(
    scene: Scene,
    num_worlds: int,
    num_targets: int,
    *,
    seed: int = 0,
    mislabelled: bool = False,
    base_share: float = 0.95,
    progress: Progress | None = None,
) -> Worlds:
    """Choose targets among the user samples and train every world.

    ``mislabelled`` gives the targets wrong labels: canaries, which a model can only know by having seen
    them. ``base_share`` of the other user samples is in each base; 1 is the whole of them, always. At most
    half of the user samples are targets: a base has to be left, and core may be empty.
    """
    rng = np.random.default_rng(seed)
    most = scene.num_user // 2
    if most == 0:
        message = "with fewer than two user records there is nothing to attack."
        raise EffaceError(message, "measure readouts alone: --worlds 0 --canaries 0.")
    chosen = np.sort(rng.choice(scene.num_user, min(num_targets, most), replace=False))
    targets = torch.from_numpy(chosen)
    if mislabelled:
        classes = scene.train.offset.shape[1]
        shift = torch.from_numpy(rng.integers(1, classes, len(chosen)))
        scene = scene.relabelled(targets, (scene.train.labels[targets] + shift) % classes)
    others = np.setdiff1d(np.arange(scene.num_user), chosen)
    replayed = np.arange(scene.num_user, len(scene.train))
    worlds = []
    for k in range(num_worlds):
        taken = others[rng.random(len(others)) < base_share] if base_share < 1 else others
        base = torch.from_numpy(np.concatenate([taken, replayed]))
        included = rng.random(len(chosen)) < 0.5
        members = torch.cat([base, targets[torch.from_numpy(included)]])
        worlds.append(World(base, included, scene.solve(members), scene.solve(base)))
        if progress is not None:
            progress((k + 1) / num_worlds, f"world {k + 1}/{num_worlds}")
    return Worlds(scene, targets, tuple(worlds), _directions(scene, targets, worlds[0]))


def _directions(scene: Scene, targets: Tensor, world: World) -> Tensor:
    """H⁻¹ Jᵀ(y − f) of each target at the base's weights, to first order the way it moves them, (t, d).

    Without a closed form a solve for each target would cost too much. Then it is Jᵀ(y − f), and H is
    applied to w' − w*_base instead, which undoes the H⁻¹ in how targets moved the weights. Unit length.
    """
    samples = scene.train.select(targets)
    wanted = _targets(scene, samples)
    residual = wanted - scene.logits(world.reference, samples)  # (t, c)
    if scene.shared:
        base = scene.train.select(world.base)
        x = base.inputs[slice(None)].double()
        hessian = x.T @ x / len(x)
        hessian.diagonal().add_(scene.ridge(len(x)))
        solved = torch.linalg.solve(hessian, samples.inputs[slice(None)].double().T).T  # (t, k)
        rows = torch.einsum("tc,tk->tck", residual, solved).flatten(1)
    else:
        rows = torch.stack([_gradient(scene, samples, residual, i) for i in range(len(samples))])
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)


def _gradient(scene: Scene, samples: Samples, residual: Tensor, i: int) -> Tensor:
    batch = scene.operator.prepare(samples.inputs[slice(i, i + 1)], torch.float64)
    return scene.operator.vjp(batch, residual[i : i + 1])


def _targets(scene: Scene, samples: Samples) -> Tensor:
    return scene.targets(samples) + samples.offset


def play(
    worlds: Worlds, method: Method, progress: Progress | None = None, *, seed: int = 0
) -> Game:
    """Let the method forget the included targets in every world, and write down what can be seen.

    ``seed`` is the method's in the first world; every world has the next.
    """
    scene, targets = worlds.scene, worlds.targets
    samples = scene.train.select(targets)
    seen: dict[str, list[Floats]] = {f.name: [] for f in fields(Game) if f.name != "included"}
    for k, world in enumerate(worlds.worlds):
        gone = targets[torch.from_numpy(world.included)]
        inside = scene.restricted(torch.cat([world.base, gone]), gone)
        weights = method(inside, world.trained, seed + k).weights
        logits = scene.logits(weights, samples)
        shown = scene.logits(weights, scene.test)
        seen["margins"].append(margins(logits, samples.labels))
        seen["before"].append(margins(scene.logits(world.trained, samples), samples.labels))
        seen["confidence"].append(confidence(logits, samples.labels))
        seen["population"].append(confidence(shown, scene.test.labels))
        moved = weights - world.reference
        seen["projections"].append(_shares(worlds, moved, WEIGHT_RIDGE))
        curved = inside.retained_problem.product(moved)
        seen["gradients"].append(_shares(worlds, curved, GRADIENT_RIDGE))
        if progress is not None:
            progress((k + 1) / len(worlds.worlds), f"{method.name} {k + 1}/{len(worlds.worlds)}")
    return Game(worlds.included, **{name: np.stack(rows) for name, rows in seen.items()})


def _shares(worlds: Worlds, moved: Tensor, tau: float) -> Floats:
    """How much of each target is in ``moved``, (t,).

    Compact: ⟨moved, u_t⟩; the H⁻¹ in the directions damps what targets have in common. Tangent: the
    gradients overlap much, so the shares are found together, (U Uᵀ + τI) a = U moved.
    """
    directions = worlds.directions
    if worlds.scene.shared:
        return (directions @ moved).numpy()
    overlap = directions @ directions.T
    overlap.diagonal().add_(tau)
    return torch.linalg.solve(overlap, directions @ moved).numpy()


def margins(logits: Tensor, labels: Tensor) -> Floats:
    """f_y − max_{j≠y} f_j, (n,)."""
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).max(1).values
    return (own - others).double().numpy()


def confidence(logits: Tensor, labels: Tensor) -> Floats:
    """softmax(f)_y, (n,)."""
    return logits.double().softmax(1).gather(1, labels[:, None])[:, 0].numpy()


# --- attacks: from a game to scores of its trials -------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """``trials`` gives scores and coins, of equal shape. ``covered``: a certificate speaks about it."""

    name: str
    title: str
    trials: Callable[[Game], tuple[Floats, NDArray[np.bool_]]]
    min_worlds: int = 1
    covered: bool = True

    def verdict(self, game: Game, delta: float = 0.0) -> Verdict:
        return judge(*self.trials(game), delta=delta)


def likelihood_ratio(game: Game) -> tuple[Floats, NDArray[np.bool_]]:
    """log N(s; in) − log N(s; out) for each target, the Gaussians fitted on half of the worlds.

    The other half is attacked. (Leaving one world out instead would bias the null: the mean of its own
    side moves away from the world that was left out.)
    """
    half = len(game.included) // 2
    fit, coins = game.margins[:half], game.included[:half]
    mean_in, mean_out, deviation = _moments(fit, coins)
    seen = game.margins[half:]
    scores = ((seen - mean_out) ** 2 - (seen - mean_in) ** 2) / (2 * deviation**2)
    return scores, game.included[half:]


def _moments(values: Floats, coins: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Means of either side and the pooled standard deviation, a target each; safe if a side is empty."""
    n_in, n_out = coins.sum(0), (~coins).sum(0)
    mean_in = np.where(coins, values, 0).sum(0) / np.maximum(n_in, 1)
    mean_out = np.where(coins, 0, values).sum(0) / np.maximum(n_out, 1)
    known = (n_in > 0) & (n_out > 0)
    mean_in, mean_out = np.where(known, mean_in, 0.0), np.where(known, mean_out, 0.0)
    left = values - np.where(coins, mean_in, mean_out)
    deviation = np.sqrt((left**2).sum(0) / np.maximum(len(values) - 2, 1))
    # A constant score has no spread; the floor only keeps the division finite.
    return mean_in, mean_out, np.maximum(deviation, 1e-9 * (1 + np.abs(values).max()))


def relative(game: Game, gamma: float = 1.0) -> tuple[Floats, NDArray[np.bool_]]:
    """RMIA: the share of population samples z with (p(x|w)/p(x)) / (p(z|w)/p(z)) ≥ γ.

    p(·) is the mean over the reference half of the worlds, the other half is attacked.
    """
    half = len(game.included) // 2
    own = game.confidence[half:] / np.maximum(game.confidence[:half].mean(0), 1e-12)  # (K, t)
    other = game.population[half:] / np.maximum(game.population[:half].mean(0), 1e-12)  # (K, z)
    scores = (own[:, :, None] >= gamma * other[:, None, :]).mean(2)
    return scores, game.included[half:]


def white_box(game: Game) -> tuple[Floats, NDArray[np.bool_]]:
    """⟨w' − w*_base, u_x⟩: how far the weights still lie in the direction that the record pulls them.

    For the compact part, under isotropic noise, the best test for one record up to crosstalk.
    """
    return game.projections, game.included


def gradient(game: Game) -> tuple[Floats, NDArray[np.bool_]]:
    """⟨g_base(w'), u_x⟩: the base's gradient at w' is H(w' − w*_base), a sum over what is still in there.

    Sharper than ``white_box`` for weights that were solved for; the least jitter of SGD in directions of
    high curvature drowns it, so chance here says little if ``white_box`` is not at chance as well.
    """
    return game.gradients, game.included


def loss(game: Game) -> tuple[Floats, NDArray[np.bool_]]:
    """The margin itself: the plain attack that needs no other models."""
    return game.margins, game.included


def differencing(game: Game) -> tuple[Floats, NDArray[np.bool_]]:
    """margin before − margin after, for somebody who has the release before the request too."""
    return game.before - game.margins, game.included


ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("lira", "per-sample likelihood ratio", likelihood_ratio, min_worlds=8),
        Attack("rmia", "relative membership (RMIA)", relative, min_worlds=8),
        Attack("loss", "margin", loss),
        Attack("white-box", "projection of the weights", white_box),
        Attack("gradient", "projection of the gradient", gradient),
        Attack("difference", "before minus after", differencing, covered=False),
    )
}
