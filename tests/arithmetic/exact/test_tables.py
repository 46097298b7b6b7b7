"""Table entries are the rounded values of their functions, whatever the machine's library says."""

from __future__ import annotations

import dataclasses

import mpmath
import numpy as np
import pytest
import torch

from efface.arithmetic.exact import tables
from efface.arithmetic.exact.tables import (
    DIGITS,
    FRACTION_BITS,
    FUNCTIONS,
    FunctionTable,
    entry,
    table,
)

every_function = pytest.mark.parametrize("name", FUNCTIONS)


@every_function
def test_a_sample_of_entries_against_many_digits(name: str) -> None:
    f, values = FUNCTIONS[name], table(name).values.tolist()
    chosen = np.random.default_rng(0).choice(len(values), 1000, replace=False)
    for i in (0, len(values) - 1, *chosen):
        x = f.lo + int(i) / 2**f.k
        assert values[i] == entry(f, x) / 2**FRACTION_BITS


@every_function
def test_entries_do_not_depend_on_the_library(name: str) -> None:
    """A library that errs by up to 2^-46, to either side at random, gives the same table."""
    f, rng = FUNCTIONS[name], np.random.default_rng(1)
    shaken = dataclasses.replace(
        f, fast=lambda x: f.fast(x) + rng.uniform(-1, 1, x.shape) * 2.0**-46
    )
    assert np.array_equal(tables.entries(shaken), table(name).values.numpy())


@every_function
def test_between_entries_the_error_is_that_of_the_chord(name: str) -> None:
    """h² max|f''| / 8, at most 6e-8, the precision of float32; beyond the ends the function is constant."""
    f = FUNCTIONS[name]
    x = np.random.default_rng(2).uniform(f.lo - 4, f.hi + (4 if f.hi else 0), 300)
    found = table(name)(torch.from_numpy(x)).tolist()
    with mpmath.workdps(DIGITS):
        worst = max(abs(f.slow(mpmath.mpf(p)) - q) for p, q in zip(x.tolist(), found, strict=True))
    assert worst < 6e-8


def test_places_of_the_grid_give_their_entries() -> None:
    f = FunctionTable(
        -1,
        1,
        1,
        torch.tensor([3.0, 5, 4, 8, 1]).double(),
        torch.tensor([2.0, -1, 4, -7, 0]).double(),
    )
    x = torch.tensor([-9.0, -1, -0.5, 0, 0.25, 0.5, 1, 9], dtype=torch.float64)
    assert f(x).tolist() == [3, 3, 5, 4, 6, 8, 1, 1]
    assert f(x.view(2, 4).T).tolist() == torch.tensor(f(x).tolist()).view(2, 4).T.tolist()
