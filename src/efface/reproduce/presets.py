"""How large an experiment is. ``paper`` is what the paper printed; ``small`` is what two cores finish."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from efface.errors import EffaceError

# The paper's appendix: a fourth epoch for the fine-grained sets.
FINE_GRAINED = ("mit67", "cub", "aircraft")


@dataclass(frozen=True)
class Preset:
    """Numbers of one run of ``efface reproduce``; all of them are kept with the results.

    Args:
        limit: training images used, equally many a class; None takes all.
        side: images are scaled and cropped to this many pixels; None is the network's own size.
        passes: budget of conjugate gradients for training, and for one solved request.
        rank: of the Nyström preconditioner of conjugate gradients, from core images.
        sgd_epochs: what one retraining costs the paper; only its time is extrapolated from one epoch.
        epochs: of a request, for info-vs-epochs; the paper's own number is always among them.
        sigmas: noise in units of the σ that moves a logit by 2 % of the target scale.
        mu: the ridge of the forgetting figures, layers being balanced; ``mus`` are in units of it.
        accuracy_mu: the ridge of error-comparison (the paper, too, has a far smaller one there).
    """

    name: str
    limit: int | None = None
    test_limit: int | None = None
    side: int | None = None
    seeds: int = 3
    mu: float = 1e-3
    accuracy_mu: float = 1e-4
    requests: int = 10
    share: float = 0.01
    core_fraction: float = 0.3
    features: int = 4096
    passes: int = 500
    rank: int = 50
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
        return 4 if _fine_grained(data) else 3

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
            limit=200,
            test_limit=500,
            seeds=1,
            features=2048,
            passes=60,
            tune_epochs=20,
            epochs=(1, 2, 6),
            sigmas=(1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0),
            mus=(0.1, 1.0, 10.0),
            relearn=60,
            canaries=0,
        ),
        Preset(
            "tiny",
            mu=1e-4,
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
    "limit": None,
    "test_limit": None,
    "seeds": 2,
    "mu": 1e-4,
    "accuracy_mu": 1e-5,
    "passes": 500,
    "epochs": (1, 2, 6, 10),
    "sigmas": Preset.sigmas,
    "mus": (0.1, 1.0, 10.0, 100.0),
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
