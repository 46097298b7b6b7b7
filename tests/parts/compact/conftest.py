"""The core that the tests of the compact part share."""

from __future__ import annotations

import pytest
from tests.parts.compact.compacts import CLASSES, CORE_RECORDS

from efface.network.core import Core
from efface.network.training import Stage


@pytest.fixture(scope="module")
def core() -> Core:
    """Barely trained, so that there is something left for the user part to learn."""
    return Core("cnn", classes=CLASSES).fit(CORE_RECORDS, [Stage("all", epochs=2, batch_size=4)])
