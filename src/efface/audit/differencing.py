"""The differencing attack: with the releases before and after a request, which images were deleted?

The attacker knows no neighbours: nobody's membership, no sums, no Hessian. He has candidates with labels
and asks both releases about each. Deleting a record (ψ, t) from a ridge problem with H = G + λI moves the
weights by Θ' − Θ = −H'⁻¹ψ eᵀ, e = t − Θᵀψ. So at the record itself the outputs move *exactly* against what is
left to explain there: f' − f = −ℓ (t − f'), ℓ = ψᵀH⁻¹ψ > 0 (its leverage); elsewhere in some other direction.
The score of a candidate is the cosine between the two. It needs predictions only.

No certificate of exactness says anything against this: each release is what it should be, and their
difference is the person. What noise and rounding do to it: ``experiments/differencing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efface.audit.scene import Scene
from efface.network.targets import one_hot

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Identified:
    """``found`` of the ``deleted`` images are among the first ``deleted`` of ``candidates`` by score.

    ``by_chance`` is how many would be, on average, if the order were random.
    """

    found: int
    deleted: int
    candidates: int

    @property
    def by_chance(self) -> float:
        return self.deleted**2 / max(self.candidates, 1)


def scores(before: Floats, after: Floats, targets: Floats) -> Floats:
    """−cos(f' − f, t − f') of every candidate, (n,); outputs and targets are (n, c). High: deleted."""
    moved, left = after - before, targets - after
    sizes = np.linalg.norm(moved, axis=1) * np.linalg.norm(left, axis=1)
    return -(moved * left).sum(1) / np.maximum(sizes, 1e-300)


def projections(before: Floats, after: Floats, targets: Floats) -> Floats:
    """−⟨f' − f, t − f'⟩/‖t − f'‖, (n,): where classes do not share their features (tangent), the outputs
    move by a matrix times the residual, and how far they move against it tells more than the angle."""
    moved, left = after - before, targets - after
    return -(moved * left).sum(1) / np.maximum(np.linalg.norm(left, axis=1), 1e-300)


def identify(ranking: Floats, deleted: NDArray[np.int64]) -> Identified:
    """Count how many of the ``deleted`` positions have the highest scores of ``ranking``."""
    gone = set(deleted.tolist())
    first = np.argsort(-ranking, kind="stable")[: len(gone)]
    return Identified(len(gone & set(first.tolist())), len(gone), len(ranking))


def ranking_in(scene: Scene, before: Tensor, after: Tensor) -> Floats:
    """The scores of all user records of a scene, by two releases."""
    candidates = scene.train.select(torch.arange(scene.num_user))
    full = one_hot(candidates.labels, candidates.offset.shape[1], scene.user.target_scale)
    one, other = (scene.logits(weights, candidates).numpy() for weights in (before, after))
    score = scores if scene.shared else projections
    return score(one, other, full.numpy())


def identify_in(scene: Scene, before: Tensor, after: Tensor) -> Identified:
    """The attack on two releases of a scene: all its user records are candidates, ``forget`` are deleted."""
    return identify(ranking_in(scene, before, after), scene.forget.numpy())
