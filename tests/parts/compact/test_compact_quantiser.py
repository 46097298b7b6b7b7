"""The quantiser rounds to the nearest step, counts what it clips, and keeps the bias exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from efface.errors import EffaceError, FormatError, RecordError
from efface.parts.compact.quantiser import Quantiser, integer_limit, power_of_two_at_least

BITS = [2, 6, 8, 12, 16]
rows_of_three = arrays(np.float64, (9, 3), elements=st.floats(-1e6, 1e6))


@pytest.mark.parametrize("bits", BITS)
@given(core=rows_of_three)
def test_core_rows_come_back_within_half_a_step(bits: int, core: np.ndarray) -> None:
    quantiser = Quantiser.fit(core, bits, headroom=1.0)
    integers, num_saturated = quantiser.quantise(core)
    assert num_saturated == 0
    assert integers.dtype == (np.int8 if bits <= 8 else np.int16)
    assert np.abs(integers.astype(int)).max() <= integer_limit(bits)
    slack = 1e-15 * np.abs(core).max()  # rounding of x - centre and of the way back
    error = np.abs(quantiser.dequantise(integers) - core)
    assert (error <= quantiser.scale / 2 + slack).all()


@pytest.mark.parametrize("bits", BITS)
@given(core=rows_of_three)
def test_the_scale_is_the_least_power_of_two_that_fits(bits: int, core: np.ndarray) -> None:
    quantiser = Quantiser.fit(core, bits, headroom=1.5)
    reach = 1.5 * np.abs(core - quantiser.centre).max(axis=0)
    varied = reach > 1e-100  # far above the least scale there is
    top = quantiser.scale * integer_limit(bits)
    assert (np.log2(quantiser.scale) % 1 == 0).all()
    assert (top >= reach * (1 - 1e-15))[varied].all()
    assert (top / 2 < reach * (1 + 1e-15))[varied].all()
    assert (quantiser.scale[reach == 0] == 1).all()


@pytest.mark.parametrize("value", [0.25, 1.0, 3.0, 4.0, np.nextafter(4.0, 5.0), 1e-300])
def test_power_of_two_at_least(value: float) -> None:
    power = power_of_two_at_least(np.array([value]))[0]
    assert power / 2 < value <= power or value < 2.0**-400 == power


def test_saturation_is_clipped_and_counted() -> None:
    quantiser = Quantiser(np.zeros(3), np.array([1.0, 0.5, 2.0]), bits=8)
    integers, num_saturated = quantiser.quantise([[127.4, 63.5, -254.0], [128.0, -64.0, 1e308]])
    np.testing.assert_array_equal(integers, [[127, 127, -127], [127, -127, 127]])
    assert num_saturated == 3


def test_the_least_scale_saturates_instead_of_overflowing() -> None:
    quantiser = Quantiser(np.zeros(1), np.array([2.0**-400]))
    integers, num_saturated = quantiser.quantise([[-1e300]])
    assert integers.tolist() == [[-127]]
    assert num_saturated == 1


@pytest.mark.parametrize("bits", BITS)
def test_the_bias_is_the_integer_one_and_comes_back_exactly(bits: int) -> None:
    core = np.column_stack([np.linspace(-3, 5, 7), np.ones(7), np.full(7, 0.1)])
    for quantiser in (
        Quantiser.fit(core, bits, bias=1),
        Quantiser.from_scale(core.mean(0), core.std(0), bits, bias=1),
    ):
        integers, _ = quantiser.quantise(core)
        assert (integers[:, 1] == 1).all()
        assert (quantiser.dequantise(integers)[:, 1] == 1.0).all()
        assert (quantiser.scale * integers)[:, 1].tolist() == [1.0] * 7


def test_a_constant_feature_is_zero_with_scale_one() -> None:
    quantiser = Quantiser.fit(np.full((3, 1), 0.1))
    integers, _ = quantiser.quantise(np.full((2, 1), 0.1))
    assert quantiser.scale.tolist() == [1.0]
    assert integers.tolist() == [[0], [0]]
    assert quantiser.dequantise(integers).tolist() == [[0.1], [0.1]]


def test_a_quantile_ignores_outliers() -> None:
    core = np.append(np.tile([-1.0, 1.0], 500), 1e6)[:, None]
    robust, plain = Quantiser.fit(core, quantile=0.9), Quantiser.fit(core)
    # The outlier still moves the mean, to about 1,000; without it the scale reaches 2 x 1,000.
    assert robust.scale[0] <= 2 * 2 * 1000 / 127 < plain.scale[0]


def test_from_scale_reaches_the_asked_deviations() -> None:
    quantiser = Quantiser.from_scale([10.0, 0.0], [1.0, 0.0], bits=8, num_std=6)
    assert quantiser.scale.tolist() == [2.0**-4, 1.0]  # 6 / 127 = 0.047
    assert quantiser.quantise([[4.0, 0.0], [16.0, 0.0]])[1] == 0


def test_uniform_serves_target_residuals() -> None:
    quantiser = Quantiser.uniform(4, max_abs=40.0)
    targets = np.random.default_rng(0).uniform(-40, 40, (50, 4))
    integers, num_saturated = quantiser.quantise(targets)
    assert num_saturated == 0
    assert len(set(quantiser.scale)) == 1
    np.testing.assert_allclose(quantiser.dequantise(integers), targets, atol=2.0**-9 / 2)


@given(core=rows_of_three)
def test_arrays_and_back(core: np.ndarray) -> None:
    quantiser = Quantiser.fit(core, 12)
    again = Quantiser.from_arrays(quantiser.to_arrays())
    assert again.bits == 12
    np.testing.assert_array_equal(again.centre, quantiser.centre)
    np.testing.assert_array_equal(again.scale, quantiser.scale)


def test_it_cannot_be_changed() -> None:
    scale = np.ones(2)
    quantiser = Quantiser(np.zeros(2), scale)
    scale[0] = 4.0
    assert quantiser.scale[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        quantiser.scale[0] = 2.0


def test_a_row_that_is_not_finite_is_named() -> None:
    quantiser = Quantiser(np.zeros(2), np.ones(2))
    rows = [[0.0, 1.0], [np.nan, 0.0]]
    with pytest.raises(RecordError, match="row 1"):
        quantiser.quantise(rows)
    with pytest.raises(RecordError, match=r"cat\.png"):
        quantiser.quantise(rows, ids=["dog.png", "cat.png"])


@pytest.mark.parametrize("bits", [1, 17, 0, -8])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(EffaceError, match="Choose 2 to 16"):
        Quantiser(np.zeros(1), np.ones(1), bits)


@pytest.mark.parametrize("scale", [0.0, -1.0, 3.0, np.inf, np.nan])
def test_a_scale_that_is_no_power_of_two_is_refused(scale: float) -> None:
    with pytest.raises(EffaceError, match="power of two"):
        Quantiser(np.zeros(1), np.array([scale]))
    with pytest.raises(FormatError, match="power of two"):
        Quantiser.from_arrays(
            {"centre": np.zeros(1), "scale": np.array([scale]), "bits": np.array(8)}
        )


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(EffaceError, match="3 features"):
        Quantiser(np.zeros(3), np.ones(3)).quantise(np.zeros((2, 4)))
    with pytest.raises(EffaceError, match="one entry per feature"):
        Quantiser(np.zeros(3), np.ones(4))
    with pytest.raises(EffaceError, match="at least one core row"):
        Quantiser.fit(np.zeros((0, 3)))
    with pytest.raises(FormatError, match="scale"):
        Quantiser.from_arrays({"centre": np.zeros(1), "bits": np.array(8)})
