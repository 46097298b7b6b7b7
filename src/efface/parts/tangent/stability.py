"""How large a learning rate may be: known from a few samples before any epoch is run.

With momentum m, full-gradient steps on a quadratic are stable up to 2(1 + m)/λmax(H), and minibatches only
allow for less: beyond it SGD leaves every bound. λmax is found by power iteration, from below, so that a rate
that is refused here would really not have ended well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from efface.errors import EffaceError
from efface.network.activations import Activations
from efface.parts.part import Outlook
from efface.parts.tangent.forgetting import PaperForgetting
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import SGD, largest_eigenvalue
from efface.parts.training_set import TrainingSet, select

ITERATIONS = 8


@dataclass(frozen=True)
class Stability:
    """λmax(H) on ``num_samples`` samples, an estimate, and what follows for a momentum."""

    eigenvalue_estimate: float
    num_samples: int
    momentum: float

    @property
    def largest_rate(self) -> float:
        return 2 * (1 + self.momentum) / self.eigenvalue_estimate

    def allows(self, rate: float) -> bool:
        return rate < self.largest_rate

    def describe(self, rate: float) -> str:
        return (
            f"λmax(H) is about {self.eigenvalue_estimate:.3g} ({self.num_samples} images): SGD with "
            f"momentum {self.momentum:g} is stable below a rate of {self.largest_rate:.2g}, and "
            f"{rate:.2g} is asked for"
        )

    def advice(self, rate: float) -> str:
        """By how much to divide, whatever the reading of the loss that the rate was given in."""
        return f"divide --rate by {rate / self.largest_rate:.2g} or more."

    def require(self, rate: float) -> str:
        """``describe``, or an error if the rate is beyond what is stable."""
        text = self.describe(rate)
        if not self.allows(rate):
            raise EffaceError(
                f"{text}: it would diverge, so nothing was started.", self.advice(rate)
            )
        return text


def stability(problem: RidgeProblem, momentum: float) -> Stability:
    """From all samples of ``problem``: give it a few, ``Outlook.most_samples`` are plenty."""
    return Stability(largest_eigenvalue(problem, ITERATIONS), problem.n, momentum)


class TangentOutlook(Outlook):
    """SGD: λmax(H) and the rates that are stable. Other solvers need no rate."""

    def of_fit(self, part: Any, core_sample: Callable[[], Activations | None]) -> tuple[str, ...]:
        """From core samples: nothing that is decided here has to be forgotten."""
        if not isinstance(part.solver, SGD):
            return ()
        some = core_sample()
        if some is None:
            return ("no core records: which rates are stable is not known beforehand",)
        return (stability(part.unlabelled(some), part.solver.momentum).require(part.solver.lr),)

    def of_request(
        self, part: Any, data: TrainingSet, positions: np.ndarray, procedure: Any
    ) -> tuple[str, ...]:
        """From samples that stay."""
        chosen = procedure.build(len(part.core.classes))
        if not isinstance(chosen, PaperForgetting):
            return ()
        assert data.activations is not None
        stay = data.retained(positions)
        some = select(data.activations, stay[:: -(-len(stay) // self.most_samples)])
        return (stability(part.unlabelled(some), chosen.momentum).require(chosen.lr),)
