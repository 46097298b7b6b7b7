"""Our own procedure on the paper's model, as the figures run it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from efface.audit.methods import Claim, Method, NewWeights, normal
from efface.audit.scene import Scene
from efface.parts.tangent.preconditioners import Preconditioner
from efface.progress import Progress
from efface.reproduce.minimiser import minimise
from efface.reproduce.multipliers import Multipliers


@dataclass(frozen=True)
class SolvedByDistance(Method):
    """Solved until the distance to the retrained model is proved to be as the guarantee asks; then noise."""

    max_passes: int = 500
    preconditioner: Preconditioner | None = None
    progress: Progress | None = None
    multipliers: Multipliers | None = None

    claim = Claim.CERTIFIED
    kinds = ("tangent",)

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> NewWeights:
        g = scene.guarantee
        distance = g.shift(scene.operator.d) * g.sigma
        problem, known = scene.retained_problem, self.multipliers
        solution = minimise(
            problem,
            weights,
            distance=distance,
            max_passes=self.max_passes,
            preconditioner=self.preconditioner,
            multipliers=known.near(problem) if known is not None else None,
            progress=self.progress,
        )
        if known is not None:
            known.keep(problem, solution)
        released = solution.value + g.sigma * normal(len(weights), seed)
        return NewWeights(released, solution.value, solution.distance_bound)
