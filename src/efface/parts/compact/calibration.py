"""What is fixed before training, from core data or from none: where it came from, and the ridge."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

RIDGES = (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.6, 1.0, 2.0, 5.0, 10.0)
DEFAULT_RIDGE = 0.2  # λ where there is nothing to choose it on; see docs/method.md


class Calibration(StrEnum):
    """Where bases and scales came from. Never from user data."""

    CORE = "core records"
    GIVEN = "given records"
    STATISTICS = "the network's normalisation statistics"
    SYNTHETIC = "synthetic images"

    @property
    def headroom(self) -> float:
        """How far beyond what was seen user data may reach unsaturated; see ``Quantiser.fit``."""
        return 2.0 if self in (Calibration.CORE, Calibration.GIVEN) else 4.0


def choose_ridge(
    features: np.ndarray, targets: np.ndarray, labels: np.ndarray, folds: int = 5
) -> float:
    """The λ of least ``folds``-fold squared error, features (n, k) to targets (n, c), on core data.

    Core data are few: the squared error, which is what ridge minimises, is a far steadier guide than
    the number of right answers. The targets are fitted directly: the core was trained on these very
    records, so its logits would leak their labels into the validation folds.
    """
    position = folds_of(labels, folds)
    if len(np.unique(position)) < 2:
        return DEFAULT_RIDGE
    error = np.zeros(len(RIDGES))
    for fold in np.unique(position):
        train, test = position != fold, position == fold
        kernel = features[train] @ features[train].T
        across = features[test] @ features[train].T
        for i, ridge in enumerate(RIDGES):
            dual = np.linalg.solve(kernel + ridge * np.eye(len(kernel)), targets[train])
            error[i] += np.square(across @ dual - targets[test]).sum()
    return RIDGES[int(error.argmin())]


def folds_of(labels: np.ndarray, folds: int) -> np.ndarray:
    """A fold for each sample, the classes spread evenly: the i-th sample of a class goes to i mod f."""
    position = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        position[members] = np.arange(len(members)) % folds
    return position
