"""Which features a compact part has where nobody says: by what its network puts out.

Images through rectified layers (ResNets and other networks with ReLU, no LayerNorm): energies and
roots of covariances, which were best on photos of birds and of objects (docs/method.md, "Features:
covariances and roots"). Pooled features are then counts, so to speak, none of them far below 0. Of other
networks they have either sign, and on the texts of our tests roots made them worse; these keep gradients as
they are. Not measured on photos: there is no such pretrained network here.
"""

from __future__ import annotations

from torch import nn

from efface.data.preprocess import Preprocess
from efface.errors import EffaceError
from efface.linear.projection import COVARIANCES, GRADIENTS, MAPS
from efface.network import blocks
from efface.network.core import Core

USUAL = "usual"
ROOTS = 0.5  # the power of covariances: they come with fixed ones (``power_map.powers_of``)
RECTIFIED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, blocks.LeakyReLU6)


def resolved(
    core: Core, layer_features: str | None, power: float | str | None
) -> tuple[str | None, float | None]:
    """The two settings, "usual" being what it is for this core."""
    usual = usual_features(core) if USUAL in (layer_features, power) else (None, None)
    kind = usual[0] if layer_features == USUAL else layer_features
    found = usual[1] if power == USUAL else None if power is None else float(power)
    if layer_features == COVARIANCES and power == USUAL:
        found = ROOTS
    if kind == COVARIANCES and found != ROOTS:
        if layer_features != USUAL:
            raise EffaceError(
                f"covariances have roots of their own, and no power {power!r:.20}.",
                "leave the power out, or take maps (--layer-features maps).",
            )
        kind = MAPS
    return kind, found


def usual_features(core: Core) -> tuple[str, float]:
    """``layer_features`` and ``power``."""
    modules = [*core.prefix.modules(), *core.tail.modules()]
    rectified = any(isinstance(m, RECTIFIED) for m in modules)
    signed = any(isinstance(m, nn.LayerNorm) for m in modules)
    images = isinstance(core.backbone.preprocess, Preprocess)
    return (COVARIANCES, ROOTS) if images and rectified and not signed else (GRADIENTS, 1.0)
