"""Settings by name, for ``efface train --preset``: what the file and the options do not say otherwise.

``paper`` is the paper's model with the numbers printed in its appendix: BatchNorm kept, LeakyReLU (the slope
is not printed: 0.01), weights as they are, targets times 5, explicit L2, and SGD for 50 epochs. The printed
numbers are read for a loss that is averaged over the classes, too (docs/errata.md, 28).
"""

from __future__ import annotations

import copy
from typing import Any

from efface.errors import EffaceError

PRINTED = {
    "kind": "sgd",
    "epochs": 50,
    "batch_size": 64,
    "lr": 0.05,
    "momentum": 0.9,
    "milestones": [25, 40],
    "factor": 0.1,
}


def _paper(weight_decay: float) -> dict[str, dict[str, Any]]:
    return {
        "core": {"fold_batchnorm": False, "leaky_slope": 0.01},
        "user": {
            "kind": "tangent",
            "scales": "plain",
            "target_scale": 5.0,
            "loss": "paper",
            "mu": weight_decay,
            "solver": PRINTED,
        },
    }


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": _paper(1e-5),  # the comparison of errors
    "paper-forgetting": _paper(1e-3),  # requests on fine-grained sets; on others 5e-4
}


def preset_values(name: str | None) -> dict[str, dict[str, Any]]:
    """The settings of a preset, by section; none for None."""
    if name is None:
        return {}
    if name not in PRESETS:
        raise EffaceError(f"no preset {name!r}.", f"use one of {', '.join(PRESETS)}.")
    return copy.deepcopy(PRESETS[name])
