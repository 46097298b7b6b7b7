"""Forgetting procedures as the figures run them: a trial, a scene and weights in, new weights out."""

from __future__ import annotations

import torch
from bench import Procedure, Trial
from torch import Tensor

from efface.audit.baselines import Forgotten, fisher
from efface.audit.scene import Scene
from efface.parts.tangent.forgetting import PaperForgetting


def paper(epochs: int, *, momentum: float = 0.9, complete: bool = True) -> Procedure:
    """The paper's SGD at the rate 1/λmax(H); ``complete=False`` is fine-tuning."""

    def run(trial: Trial, scene: Scene, weights: Tensor) -> Forgotten:
        how = PaperForgetting(
            epochs=epochs,
            lr=trial.rate,
            momentum=momentum,
            complete=complete,
            seed=trial.spot.seed,
            dtype=None,  # what is certified is recomputed on the last state
        )
        state = how.solve(scene.retained_problem, weights).value
        return Forgotten(state, state)

    return run


def original(trial: Trial, scene: Scene, weights: Tensor) -> Forgotten:
    return Forgotten(weights, weights)


def fisher_noise(trial: Trial, scene: Scene, weights: Tensor) -> Forgotten:
    """Noise on the release; the state does not move."""
    return Forgotten(fisher(scene, weights, trial.spot.seed), weights)


def solved(trial: Trial, scene: Scene, weights: Tensor) -> Forgotten:
    """Conjugate gradients to the guarantee; as far as the budget goes where it is not reached."""
    state = trial.solver().solve(scene.retained_problem, weights).value
    generator = torch.Generator().manual_seed(trial.spot.seed)  # repeatable: this is an experiment
    noise = torch.randn(len(state), generator=generator, dtype=torch.float64)
    return Forgotten(state + trial.guarantee.sigma * noise, state)
