"""The paper's readout functions: what somebody with the model can see of the forgotten records.

An ideal method gives the values that the retrained model gives. Everything here is a pure function of logits
(n, c), labels (n,) or weights, so readouts can be taken in any order and never change the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import largest_eigenvalue, minibatches


def error(logits: Tensor, labels: Tensor) -> float:
    """The share of samples that are misread."""
    return float((logits.argmax(1) != labels).double().mean())


def activation_distance(logits: Tensor, retrained: Tensor) -> float:
    """mean ‖softmax(f_w(x)) − softmax(f_{w_r}(x))‖₁, to the *retrained* model; between 0 and 2."""
    difference = logits.double().softmax(1) - retrained.double().softmax(1)
    return float(difference.abs().sum(1).mean())


def entropy(logits: Tensor) -> Tensor:
    """−Σ p log p of the softmax, in nats, (n,)."""
    log_p = logits.double().log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def entropy_attack(retained: Tensor, test: Tensor, forgotten: Tensor) -> float:
    """The share of forgotten samples that look like training data, by the entropy of the output.

    The attacker knows retained (members) and test samples (not), takes the threshold that tells these
    apart best (balanced accuracy), and calls a forgotten sample a member if its entropy is at most that.
    All three are logits. A population attack, and a weak one: see ``attacks`` for stronger.
    """
    inside, outside = entropy(retained).numpy(), entropy(test).numpy()
    return float((entropy(forgotten).numpy() <= _best_threshold(inside, outside)).mean())


def _best_threshold(inside: np.ndarray, outside: np.ndarray) -> float:
    candidates = np.unique(np.concatenate([inside, outside]))
    hits = np.searchsorted(np.sort(inside), candidates, side="right") / len(inside)
    alarms = np.searchsorted(np.sort(outside), candidates, side="right") / len(outside)
    return float(candidates[int(np.argmax(hits - alarms))])


# --- relearn time ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relearn:
    """SGD on some training samples, the forgotten ones among them, until these are learned again.

    The step is 1/λmax(H), momentum ``momentum``. ``max_iterations`` ends a run that never gets there.
    """

    batch_size: int = 64
    momentum: float = 0.9
    max_iterations: int = 300
    seed: int = 0

    def iterations(
        self,
        problem: RidgeProblem,
        start: Tensor,
        loss: Callable[[Tensor], float],
        threshold: float,
        rate: float | None = None,
    ) -> int:
        """The number of steps until ``loss(w)`` ≤ ``threshold``; 0 if it is so at ``start``.

        Args:
            problem: the samples to learn from, the forgotten ones included.
            start: the weights under audit; they are copied, never changed.
            loss: of the forgotten samples alone, at some weights.
            threshold: what counts as learned; ``relearn_threshold`` has the usual one.
            rate: the step size, if it is known already.
        """
        w, velocity = (
            start.to(problem.dtype, copy=True),
            torch.zeros_like(start, dtype=problem.dtype),
        )
        rate = 1.0 / largest_eigenvalue(problem) if rate is None else rate
        generator = torch.Generator().manual_seed(self.seed)
        batches: list[Tensor] = []
        for step in range(self.max_iterations):
            if loss(w) <= threshold:
                return step
            batches = batches or minibatches(problem.n, self.batch_size, False, generator)
            velocity.mul_(self.momentum).add_(problem.minibatch_gradient(w, batches.pop()))
            w.add_(velocity, alpha=-rate)
        return self.max_iterations


def relearn_threshold(original: float, retrained: float, share: float = 0.9) -> float:
    """Learned = ``share`` of the way from the retrained model's loss on D_f down to the original's."""
    return retrained + share * (original - retrained)


# --- repeated seeds -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds (0 for one)."""

    mean: float
    std: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("no values to average")
        if not all(map(math.isfinite, values)):
            return cls(math.inf, 0.0, len(values))
        std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return cls(float(np.mean(values)), std, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.std:.1g}" if self.num > 1 else f"{self.mean:.3g}"
