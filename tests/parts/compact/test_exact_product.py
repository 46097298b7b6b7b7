"""Products of integers and float32 weights have one rounding, wherever they are computed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fractions_reference import rational_product

from efface.errors import EffaceError
from efface.parts.compact.exact_product import exact_product


def random_product(
    n: int, k: int, c: int, bits: int, spread: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    integers = rng.integers(-(2**bits), 2**bits, (n, k), endpoint=True)
    weights = rng.normal(size=(k, c)) * 2.0 ** rng.integers(-spread, spread, (k, c), endpoint=True)
    weights[rng.random((k, c)) < 0.2] = 0.0
    scale = 2.0 ** rng.integers(-spread, spread, k, endpoint=True)
    return integers, weights.astype(np.float32), scale


@settings(max_examples=100, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 4), st.integers(1, 30), st.integers(1, 3)),
    bits=st.sampled_from([0, 7, 15, 24]),
    spread=st.sampled_from([0, 5, 30]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_fractions_rounded_once(
    shape: tuple[int, int, int], bits: int, spread: int, seed: int
) -> None:
    integers, weights, scale = random_product(*shape, bits, spread, seed)
    want = [[float(v) for v in row] for row in rational_product(integers, weights, scale)]
    np.testing.assert_array_equal(
        exact_product(integers, weights, scale), np.array(want).reshape(shape[0], shape[2])
    )


def test_cancellation_leaves_the_last_digits() -> None:
    integers = np.array([[2**24, -(2**24), 1]])
    weights = np.array([[1.0], [1.0], [2.0**-149]], dtype=np.float32)
    assert exact_product(integers, weights)[0, 0] == 2.0**-149
    half = np.array([[2.0**30], [2.0**-24], [2.0**-77]], dtype=np.float32)
    total = Fraction(2) ** 30 + Fraction(2) ** -24 + Fraction(2) ** -77  # above a tie by a little
    assert exact_product(np.ones((1, 3), np.int8), half)[0, 0] == float(total)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_order_company_and_threads_do_not_matter(dtype: type) -> None:
    integers, weights, scale = random_product(70, 3000, 40, 7, 6, 1)
    integers = integers.clip(-127, 127).astype(dtype)
    want = exact_product(integers, weights, scale)
    order = np.random.default_rng(2).permutation(3000)
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            again = exact_product(integers[:, order], weights[order], scale[order])
            assert again.tobytes() == want.tobytes()
    finally:
        torch.set_num_threads(before)
    alone = np.concatenate([exact_product(row[None], weights, scale) for row in integers[:5]])
    assert alone.tobytes() == want[:5].tobytes()
    naive = integers.astype(float) * scale @ weights.astype(float)
    np.testing.assert_allclose(want, naive, rtol=0, atol=1e-12 * np.abs(naive).max())


@pytest.mark.parametrize(
    ("integers", "weights", "scale"),
    [
        (np.ones((2, 3)), np.ones((3, 1), np.float32), 1.0),
        (np.ones((2, 3), int), np.ones((3, 1)), 1.0),
        (np.ones((2, 3), int), np.ones((4, 1), np.float32), 1.0),
        (np.ones((2, 3), int), np.ones((3, 1), np.float32), 0.3),
        (np.ones((2, 3), int), np.full((3, 1), np.nan, np.float32), 1.0),
        (np.full((2, 3), 2**60), np.ones((3, 1), np.float32), 1.0),
    ],
)
def test_what_cannot_be_exact_is_refused(
    integers: np.ndarray, weights: np.ndarray, scale: float
) -> None:
    with pytest.raises(EffaceError):
        exact_product(integers, weights, scale)
