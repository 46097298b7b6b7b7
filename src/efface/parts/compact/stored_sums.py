"""The compact part as its files have it: it forgets, and needs no network for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from efface.arithmetic.kinds import ARITHMETIC, FLOAT
from efface.parts.compact.quantiser import Quantiser
from efface.parts.compact.summed import Facts, Summed


class StoredSums(Summed):
    """The compact part as its files have it, without the network: it forgets, and cannot predict.

    Args:
        settings: of the user part, as they were saved.
        arrays: of the user part: bases, scales and Θ.
        classes: the core's, in order.
        core_digest, preprocess: for certificates.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        arrays: Mapping[str, np.ndarray],
        classes: Sequence[str],
        core_digest: str,
        preprocess: Mapping[str, Any],
    ) -> None:
        form = (settings.get("form") or {}).get("kind", FLOAT)
        self._facts = Facts(ARITHMETIC[form], core_digest, preprocess)
        self._settings, self._classes = settings, tuple(classes)
        self._arrays = {name: array for name, array in arrays.items() if name != "theta"}
        self.theta = arrays.get("theta")
        self.weights_proved = None
        self.mu, self.total_ridge = settings["mu"], settings["total_ridge"]
        self.target_scale = settings["target_scale"]
        begin = "quantiser."
        scales = {n.removeprefix(begin): a for n, a in arrays.items() if n.startswith(begin)}
        self.quantiser = Quantiser.from_arrays(scales) if scales else None
        self.statistics = None

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def settings(self) -> dict[str, Any]:
        return self._settings

    @property
    def calibration_tensors(self) -> Mapping[str, np.ndarray]:
        return self._arrays

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What predictions need: bases, scales and Θ."""
        theta = {} if self.theta is None or not self._arrays else {"theta": self.theta}
        return self._arrays | theta
