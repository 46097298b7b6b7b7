"""Projections of every tail."""

from __future__ import annotations

from functools import cache

import pytest
from tests import cases
from torch import Tensor

from efface.linear.projection import (
    Projection,
)
from efface.network.tail import Tail

# A layer used twice has no single input and output gradient.
NOT_TAPPED = {"tied weights"}


TAPPED = [case.name for case in cases.CASES if case.name not in NOT_TAPPED]

every_case = pytest.mark.parametrize("name", TAPPED)


@cache
def float_tail(name: str) -> Tail:
    return cases.BY_NAME[name].build().float()  # type: ignore[return-value]


def inputs(name: str, n: int = 6, seed: int = 1) -> Tensor:
    return cases.BY_NAME[name].inputs(n, seed)


@cache
def built(name: str = "cnn", num_features: int = 200) -> Projection:
    return Projection.build(float_tail(name), inputs(name, 30, seed=5).float(), num_features)


def split(projection: Projection, rows: Tensor) -> list[Tensor]:
    """(pooled, constant, ψ_1, ψ_2, …)."""
    pairs = zip(projection.inputs, projection.gradients, strict=True)
    sizes = [a.shape[1] * g.shape[1] for a, g in pairs]
    return list(rows.split([projection.num_pooled, 1, *sizes], dim=1))
