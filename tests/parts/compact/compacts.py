"""Small compact models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tests import cases

from efface.data.record import Split
from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.parts.compact.user import CompactUser

CLASSES = ["a", "b", "c"]

FEATURES = 150

TEST = cases.tiny_records(30, 9, split=Split.TEST)

CORE_RECORDS = cases.tiny_records(12, 0, split=Split.CORE)


def user_records(n: int = 45, seed: int = 1) -> Records:
    return cases.tiny_records(n, seed)


def model_of(core: Core, **options: Any) -> MixedLinear:
    return MixedLinear(core, "compact", **{"features": FEATURES, **options})


def calibrated(core: Core, **options: Any) -> CompactUser:
    user = CompactUser(core, **{"features": FEATURES, **options})
    user.calibrate(core.activations(CORE_RECORDS), core.labels(CORE_RECORDS))
    return user


def digests(user: CompactUser) -> tuple[str, str]:
    return user.statistics_digest, user.weights_digest


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
