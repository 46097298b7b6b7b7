"""From user settings, as a config has them, to the arguments of the tangent part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from efface.linear.scales import scales_of_core
from efface.network.activations import ActivationCache
from efface.network.core import Core
from efface.parts.tangent.reading import Reading
from efface.parts.tangent.sgd import SGD


def arguments_of(
    core: Core, given: Mapping[str, Any], cache: ActivationCache | None
) -> dict[str, Any]:
    """Ridge and rate for our loss, the solver, and scales from core records where they are wanted."""
    reading, num_classes = Reading(given["loss"]), len(core.classes)
    own = ("solver", "scales", "loss", "rate", "epochs")  # the rest stands as it is
    found = {name: value for name, value in given.items() if name not in own}
    if "mu" in found:
        found["mu"] = reading.ridge(found["mu"], num_classes)
    solver = given["solver"]
    if isinstance(solver, SGD):
        epochs, rate = given["epochs"] or solver.epochs, given["rate"] or solver.lr
        solver = replace(solver, epochs=epochs, lr=reading.rate(rate, num_classes))
    if given["scales"] == "balanced":
        found["scales"] = scales_of_core(core, cache)
    return found | {"solver": solver}
