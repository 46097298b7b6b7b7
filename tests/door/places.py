"""Small data and networks for the front door's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests import cases
from torch import nn

from efface.data.preprocess import Preprocess
from efface.door.classifier import ForgettingClassifier
from efface.door.homes import Home

NAMES = np.array(["ape", "bee", "cat"])
IMAGES, NUMBERS = cases.blobs(45, 1)
LABELS = NAMES[NUMBERS]
OWNERS = np.array([f"u{i // 5}" for i in range(45)])
COHORTS = np.array([f"week{i % 2}" for i in range(45)])
CORE_IMAGES, CORE_NUMBERS = cases.blobs(18, 7)
CORE = (CORE_IMAGES, NAMES[CORE_NUMBERS])
TEST_IMAGES, TEST_NUMBERS = cases.blobs(30, 9)
TEST_LABELS = NAMES[TEST_NUMBERS]
SMALL = Preprocess(0, 0, 1, (0.5,), (0.5,))


def classifier(**options: Any) -> ForgettingClassifier:
    return ForgettingClassifier("cnn", **{"features": 60, **options})


def fitted(keep: Any = slice(None), **options: Any) -> ForgettingClassifier:
    """With core data, on some of the images."""
    given = {"owners": OWNERS[keep], "cohorts": COHORTS[keep]}
    return classifier(**options).fit(IMAGES[keep], LABELS[keep], **given, core=CORE)


def network() -> nn.Module:
    """Stands for a pretrained one: random weights, the same every time."""
    return cases.randomised(cases.named_sequential())


def without_core(**options: Any) -> ForgettingClassifier:
    chosen = {"linearize": "block", "features": 40, "preprocess": SMALL, **options}
    return ForgettingClassifier(network(), **chosen)


def digests(clf: ForgettingClassifier) -> tuple[str, str, str]:
    """Of the weights, and of all that they are relative to."""
    home: Home = clf._home
    user = home.model.user
    given = user.given
    return user.weights_digest, given.classes_digest, given.core_digest + given.calibration_digest
