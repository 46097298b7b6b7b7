"""The strongest attack there is on the served weights themselves, and the strongest of a study.

Training is deterministic here, so the weights that should be served, w_r, and those before the request, w_D,
can be computed. What is left of the forgotten records in weights w is the share

    α = ⟨w − w_r, w_D − w_r⟩ / ‖w_D − w_r‖²,

1 if nothing was done, 0 if all of it is gone. An attack on outputs (LiRA) hardly sees a tenth; this sees
what rounding lets it see. Each record's own share is ⟨w − w_r, u_x⟩/‖u_x‖², u_x = H_r⁻¹J_xᵀe_x/n the way it
would move the weights; those of forgotten records are compared with those of records that were never in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import norm
from torch import Tensor

from efface.audit.metrics import auc, chance_interval
from efface.audit.scene import Samples, Scene

RESOLUTION = 1e-7  # of α: two float64 solves of one system agree far better


@dataclass(frozen=True)
class Influence:
    """``share`` is α; ``resolution`` what can be told from rounding, or from the noise that was planned.

    ``auc`` is that of the records' own shares against those of test records, with its interval by chance;
    None where they were not computed (tangent).
    """

    share: float
    resolution: float
    auc: float | None = None
    chance: list[float] | None = None

    @property
    def found(self) -> bool:
        """Whether something is left that rounding, or the noise, does not explain."""
        return abs(self.share) > self.resolution


def influence_left(
    scene: Scene, weights: Tensor, trained: Tensor, retrained: Tensor, sigma: float = 0.0
) -> Influence:
    """Attack the served ``weights``; ``sigma`` is that of the noise in them, if any was planned."""
    moved, undone = weights - retrained, trained - retrained
    size = max(float(undone.norm()), 1e-300)
    share = float(moved @ undone) / size**2
    resolution = max(RESOLUTION, _rounding(weights, undone) / size, 5 * sigma / size)
    if not scene.shared:
        return Influence(share, resolution)
    wanted = min(len(scene.forget), len(scene.test))
    factor = _factor(scene)
    inside = _shares(scene, factor, scene.train.select(scene.forget), moved, retrained)
    outside = _shares(scene, factor, scene.test.select(torch.arange(wanted)), moved, retrained)
    values = (inside.numpy(), outside.numpy())
    return Influence(share, resolution, auc(*values), list(chance_interval(*values)))


def _rounding(weights: Tensor, undone: Tensor) -> float:
    """Six deviations of what float32 weights are off along ``undone``: each by at most 2⁻²⁴ of itself."""
    if not torch.equal(weights, weights.float().double()):
        return 0.0
    along = undone / undone.norm().clamp_min(1e-300)
    return 6 * 2.0**-24 * float((weights * along).norm()) / math.sqrt(3)


def _factor(scene: Scene) -> Tensor:
    """The Cholesky factor of n H, H the Hessian of what stays that all classes share, (k, k)."""
    rows = scene.train.select(scene.retained).inputs[slice(None)].double()
    hessian = rows.T @ rows
    hessian.diagonal().add_(len(rows) * scene.ridge(len(rows)))
    return torch.linalg.cholesky(hessian)


def _shares(
    scene: Scene, factor: Tensor, samples: Samples, moved: Tensor, retrained: Tensor
) -> Tensor:
    """⟨w − w_r, u_x⟩/‖u_x‖² of every sample, (n,): with Θ shared by classes, u_x = (H⁻¹ψ) eᵀ."""
    features = samples.inputs[slice(None)].double()  # (n, k)
    pulled = torch.cholesky_solve(features.T, factor).T  # (n, k)
    left = scene.targets(samples) - features @ retrained.view(-1, features.shape[1]).T  # (n, c)
    along = torch.einsum("nk,ck,nc->n", pulled, moved.view(-1, features.shape[1]), left)
    return along / (pulled.square().sum(1) * left.square().sum(1)).clamp_min(1e-300)


def strongest(method: Mapping[str, Any], *, covered: bool = True) -> dict[str, Any] | None:
    """The attack of a study that is furthest from chance, of those a certificate speaks about.

    Attacks are compared by deviations z of their AUC from ½: an AUC alone says little without its trials.
    """
    best: dict[str, Any] | None = None
    for game in ("canary", "attacks"):
        for name, verdict in method.get(game, {}).items():
            if covered and not verdict["covered"]:
                continue
            half = (verdict["chance"][1] - 0.5) / float(norm.ppf(0.975))
            z = (verdict["auc"] - 0.5) / max(half, 1e-12)
            if best is None or z > best["deviations"]:
                best = {"attack": name, "game": game, "auc": verdict["auc"], "deviations": z}
                best |= {key: verdict[key] for key in ("chance", "epsilon_bound", "at_chance")}
    return best
