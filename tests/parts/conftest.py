"""The core that the tests of user parts share."""

from __future__ import annotations

import pytest
from tests.parts.forgetters import CORE_RECORDS, build_core

from efface.network.core import Core


@pytest.fixture(scope="module")
def core() -> Core:
    """243 weights in its tail: few enough for dense references."""
    return build_core(CORE_RECORDS)
