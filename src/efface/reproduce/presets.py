"""How large an experiment is: ``paper`` is the paper's, ``small`` has coarser grids and one seed.

Both take all images at the network's own size; nothing is judged on thumbnails.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from efface.errors import EffaceError

# The paper's appendix: a fourth epoch for the fine-grained sets.
FINE_GRAINED = ("mit67", "cub", "aircraft")


@dataclass(frozen=True)
class Preset:
    """Numbers of one run of ``efface reproduce``; all of them are kept with the results.

    The model is the paper's in each: BatchNorm kept, weights as they are, targets × 5, and its printed weight
    decays and rates, read for a loss that is averaged over the classes (docs/errata.md, 28).

    Args:
        limit: training images used, equally many a class; None takes all.
        side: images are scaled and cropped to this many pixels; None is the network's own size.
        layers: which layers of the last block are linearised: ``final`` (its last convolution with its
            BatchNorm) or ``all``; the head always is. The paper says "only the final layers".
        passes: budget of conjugate gradients for training, and for one solved request.
        precision: a model counts as trained when ‖w − w*‖ is proved to be at most this share of ‖w‖.
        nearer: the retrained model that others are compared with comes nearer by this factor than the
            guarantee (ε = 1) asks of a request.
        sgd_epochs: what one retraining costs the paper; only its time is extrapolated from one epoch.
        epochs: of a request, for info-vs-epochs; the paper's own number is always among them.
        sigmas: noise in units of the σ that moves a logit by 2 % of the target scale.
        decay: the weight decay of the forgetting figures, as printed; None: the paper's for such data.
            ``mus`` are in units of the ridge that follows from it.
        accuracy_decay: that of error-comparison (the paper, too, has a far smaller one there).
    """

    name: str
    limit: int | None = None
    test_limit: int | None = None
    side: int | None = None
    seeds: int = 3
    decay: float | None = None
    accuracy_decay: float = 1e-5
    requests: int = 10
    share: float = 0.01
    core_fraction: float = 0.3
    features: int = 4096
    layers: str = "final"
    passes: int = 500
    precision: float = 0.01
    nearer: float = 3.0
    sgd_epochs: int = 50
    tune_epochs: int = 50
    epochs: tuple[int, ...] = (1, 2, 3, 4, 6, 10)
    sigmas: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    mus: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
    core_fractions: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5)
    sizes: tuple[float, ...] = (0.25, 0.5, 1.0)
    relearn: int = 300
    canaries: int = 200
    noise_draws: int = 3

    def paper_epochs(self, data: str) -> int:
        """Of a request."""
        return 4 if _fine_grained(data) else 3

    def paper_rate(self, data: str) -> float:
        """The first learning rate of a request, as printed."""
        return 0.025 if _fine_grained(data) else 0.01

    def paper_decay(self, data: str) -> float:
        """The weight decay of the forgetting figures, as printed."""
        if self.decay is not None:
            return self.decay
        return 1e-3 if _fine_grained(data) else 5e-4

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _fine_grained(data: str) -> bool:
    return any(name in data for name in FINE_GRAINED)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("paper"),
        Preset(
            "small",
            seeds=1,
            tune_epochs=20,
            epochs=(1, 2, 8),
            sigmas=(1e-2, 0.1, 1.0, 3.0, 10.0, 100.0),
            mus=(0.1, 1.0, 10.0),
            core_fractions=(0.0, 0.1, 0.3),
            relearn=60,
            canaries=100,
            noise_draws=2,
        ),
        Preset(
            "tiny",
            layers="all",
            decay=1e-5,
            limit=250,
            test_limit=100,
            seeds=1,
            requests=3,
            share=0.02,
            features=256,
            passes=60,
            tune_epochs=2,
            epochs=(1,),
            sigmas=(1e-2, 1.0),
            mus=(1.0, 10.0),
            core_fractions=(0.0, 0.3),
            sizes=(0.5, 1.0),
            relearn=20,
            canaries=60,
            noise_draws=1,
        ),
    )
}

# The built-in network is a thousand times cheaper: everything, and finer grids, still take minutes.
_SMALL_CNN: dict[str, Any] = {
    "layers": "all",
    "seeds": 2,
    "passes": 500,
    "epochs": (1, 2, 6, 10),
    "sigmas": Preset.sigmas,
    "mus": (0.1, 1.0, 10.0, 100.0),
    "core_fractions": Preset.core_fractions,
    "noise_draws": 3,
    "relearn": 200,
    "canaries": 200,
    "features": 600,
}


def resolve(name: str, backbone: str, **changes: int | None) -> Preset:
    """A preset by name for a network, with what the caller wants otherwise (a limit of 0 is none)."""
    if name not in PRESETS:
        raise EffaceError(f"no preset {name!r}.", f"use {', '.join(PRESETS)}.")
    preset = PRESETS[name]
    if name == "small" and backbone == "cnn":
        preset = replace(preset, **_SMALL_CNN)
    given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    if given.get("limit") == 0:
        given["limit"] = None
    return replace(preset, **given)
