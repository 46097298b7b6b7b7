"""Power normalisation: numbers rounded as IEEE 754 prescribes, parts brought to norms set on core data."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import rounded_root

from efface.errors import EffaceError, FormatError
from efface.parts.compact.power_map import ENERGY_POWER, POWERS, PowerMap, signed_power

SIZES = (3, 2, 4)  # with the constant after the first part: ten features
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def slow_power(x: float, power: float) -> float:
    """sign(x) |x|^p by correctly rounded roots of fractions, and one rounded product."""
    size = Fraction(abs(x))
    root = rounded_root(size)
    fourth = rounded_root(Fraction(root))
    found = {0.25: fourth, 0.5: root, 1.0: float(size)}
    # Python divides and multiplies fractions exactly and rounds once.
    found[0.75] = float(Fraction(root) * Fraction(fourth))
    found[0.375] = float(Fraction(fourth) * Fraction(rounded_root(Fraction(fourth))))
    return -found[power] if x < 0 else found[power]


def rows(n: int = 20, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((n, 10)) * 10.0 ** np.arange(-4, 6)
    values[:, 3] = 1.0
    return values.astype(np.float32).astype(np.float64)


@settings(max_examples=200, deadline=None)
@given(floats, st.sampled_from((*POWERS, ENERGY_POWER)))
def test_a_power_is_rounded_as_roots_of_fractions_are(x: float, power: float) -> None:
    many = np.full(67, x)  # so many that the vectorised kernel is the one that is asked
    assert signed_power(many, power).tolist() == [slow_power(x, power)] * 67


@pytest.mark.parametrize("power", [*POWERS, ENERGY_POWER])
def test_whole_numbers_have_rounded_powers(power: float) -> None:
    """torch's float64 root is off for 51, the first of many."""
    numbers = np.arange(-300.0, 301.0)
    assert signed_power(numbers, power).tolist() == [slow_power(v, power) for v in numbers.tolist()]


def test_powers_draw_numbers_together_and_keep_their_order_and_sign() -> None:
    x = np.array([-100.0, -4.0, -0.25, 0.0, 0.25, 4.0, 100.0])
    for power in POWERS:
        found = signed_power(x, power)
        assert (np.diff(found) > 0).all()
        assert (np.sign(found) == np.sign(x)).all()
        assert found[-1] / found[-2] == pytest.approx(25**power)


@pytest.mark.parametrize("power", POWERS)
def test_parts_have_their_norms_on_core_data(power: float) -> None:
    core = rows()
    found = PowerMap.fit(core, power, SIZES)(core)
    assert (found[:, 3] == 1).all()
    for part, norm in ((found[:, :3], 1), (found[:, 4:6], 0.25), (found[:, 6:], 0.25)):
        assert np.square(part).sum(1).mean() == pytest.approx(norm**2)


def test_parts_may_have_powers_and_weights_of_their_own() -> None:
    core = np.abs(rows())
    powers, weights = (0.375, 0.375, 1.0), (1.0, 1.0, 0.7)
    power_map = PowerMap.fit(core, powers, SIZES, weights=weights)
    found, divisors = power_map(core), power_map.divisors
    assert (found[:, 3] == 1).all()
    for part, norm in zip((found[:, :3], found[:, 4:6], found[:, 6:]), weights, strict=True):
        assert np.square(part).sum(1).mean() == pytest.approx(norm**2)
    for i, (j, part) in itertools.product(range(len(core)), [(0, 0), (2, 0), (4, 1), (6, 2)]):
        assert found[i, j] == slow_power(core[i, j], powers[part]) / divisors[part]


def test_a_row_does_not_depend_on_others_nor_its_place() -> None:
    power_map, some = PowerMap.fit(rows(), 0.5, SIZES), rows(50, 1)
    together = power_map(some)
    for i, width in itertools.product((0, 7, 49), (1, 5)):
        part = some[i : i + width]
        assert np.array_equal(power_map(part), together[i : i + width])
        assert np.array_equal(power_map(np.asfortranarray(part)), together[i : i + width])


def test_a_part_that_core_data_do_not_have_stays_zero() -> None:
    core = rows()
    core[:, 4:6] = 0
    power_map = PowerMap.fit(core, 0.5, SIZES)
    assert power_map.divisors[1] == 1
    assert (power_map(core)[:, 4:6] == 0).all()


def test_rows_are_left_as_they_were() -> None:
    before = rows()
    given_rows = before.copy()
    for power in POWERS:
        PowerMap.fit(given_rows, power, SIZES)(given_rows)
    assert np.array_equal(before, given_rows)


@pytest.mark.parametrize("power", [0.0, 2.0, 0.3, -0.5, float("nan")])
def test_other_powers_are_refused(power: float) -> None:
    with pytest.raises(EffaceError, match=r"use one of 0\.25, 0\.5, 0\.75, 1"):
        PowerMap.fit(rows(), power, SIZES)


@pytest.mark.parametrize(
    "divisors",
    [[1.0, 1.0], [1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0], [[1.0] * 3]],
)
def test_divisors_that_cannot_be_are_refused(divisors: list[float]) -> None:
    with pytest.raises(FormatError, match="divisors"):
        PowerMap(0.5, SIZES, np.array(divisors))
