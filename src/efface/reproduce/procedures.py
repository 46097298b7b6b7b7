"""The forgetting methods of the figures: those of the table in ``efface.audit.methods``, as run here.

SGD has the largest step that is sure to be stable, which is the paper's best chance. Nothing is
certified from a state in between, so SGD does not compute its residual in float64, and a solve that ran out
of its budget goes on with what it has; what it proved is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from efface.audit.methods import METHODS, Claim, Method, NewWeights, normal
from efface.audit.scene import Scene
from efface.parts.tangent.preconditioners import Preconditioner
from efface.reproduce.minimiser import minimise
from efface.reproduce.specimen import Choice, Run, Specimen


@dataclass(frozen=True)
class Procedure:
    """One method in a figure.

    Args:
        name: what a finished run is kept under.
        choice: the method, for a specimen.
        released: what it returns is looked at as it is; other methods get the planned noise first.
        together: all requests are carried out as one.
    """

    name: str
    choice: Choice
    released: bool = False
    together: bool = False

    def run(self, specimen: Specimen) -> Run:
        """All requests, from the trained weights."""
        if self.together:
            return specimen.at_once(self.name, self.choice)
        return specimen.run(self.name, self.choice)


def _sgd(method: str, epochs: int) -> Choice:
    return lambda specimen: METHODS[method].having(epochs=epochs, step=specimen.rate, dtype=None)


def paper(epochs: int) -> Procedure:
    """The paper's SGD with momentum 0.9."""
    return Procedure(f"paper-{epochs}", _sgd("paper-0.9", epochs))


def paper_as_printed(epochs: int) -> Procedure:
    """The paper's SGD with momentum 0.999."""
    return Procedure(f"paper-{epochs}-0.999", _sgd("paper-0.999", epochs))


def fine_tuned(epochs: int) -> Procedure:
    """The same steps with the gradient of each minibatch alone."""
    return Procedure(f"fine-tune-{epochs}", _sgd("fine-tune", epochs))


@dataclass(frozen=True)
class SolvedByDistance(Method):
    """Solved until the distance to the retrained model is proved to be as the guarantee asks; then noise."""

    max_passes: int = 500
    preconditioner: Preconditioner | None = None

    claim = Claim.CERTIFIED
    kinds = ("tangent",)

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> NewWeights:
        g = scene.guarantee
        distance = g.shift(scene.operator.d) * g.sigma
        solution = minimise(
            scene.retained_problem,
            weights,
            distance=distance,
            max_passes=self.max_passes,
            preconditioner=self.preconditioner,
        )
        released = solution.value + g.sigma * normal(len(weights), seed)
        return NewWeights(released, solution.value, solution.distance_bound)


def _solved(specimen: Specimen) -> Method:
    passes = 2 * specimen.bench.preset.passes
    by: dict[str, Any] = {"max_passes": passes, "preconditioner": specimen.preconditioner}
    return SolvedByDistance("solved", METHODS["solved"].title, **by)


ORIGINAL = Procedure("original", lambda specimen: METHODS["original"], released=True)
# The answer does not depend on the way: one solve for all requests leaves what ten in a row would.
SOLVED = Procedure("solved", _solved, released=True, together=True)
# Noise does not add up to forgetting: Fisher's is put on once, for all requests together.
FISHER = Procedure(
    "fisher", lambda specimen: METHODS["fisher"].having(hides=True), released=True, together=True
)
