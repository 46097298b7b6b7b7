"""Exact sums against fractions: what is rounded is the operands, as said, and nothing after that."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.fractions_reference import convolution_matrix, fraction_product, on_grid

from efface.arithmetic.exact import exact_convolution, exact_sums, self_test
from efface.arithmetic.exact.exact_products import Products, WeightCache
from efface.arithmetic.exact.exact_sums import (
    exact_matmul,
    exact_mean,
    exact_sum,
    product_bits,
    rounded,
)
from efface.arithmetic.exact.roots import inverse_root, square_root
from efface.arithmetic.exact.self_test import InexactBackend

# Magnitudes over sixty binary places, zeros, both signs, and ties of every grid (short mantissas).
NUMBERS = st.one_of(
    st.floats(-(2.0**30), 2.0**30, allow_subnormal=False).filter(
        lambda x: x == 0 or abs(x) > 2**-30
    ),
    st.integers(-64, 64).map(lambda i: i / 8),
)
BITS = st.integers(1, 50)


def matrices(rows: st.SearchStrategy[int], columns: st.SearchStrategy[int]) -> st.SearchStrategy:
    shapes = st.tuples(rows, columns)
    return shapes.flatmap(lambda shape: hnp.arrays(np.float64, shape, elements=NUMBERS))


SMALL = st.integers(1, 7)


@settings(deadline=None)
@given(matrices(SMALL, SMALL), BITS)
def test_rounding_is_to_the_grid_of_the_largest(x: np.ndarray, bits: int) -> None:
    found = rounded(torch.from_numpy(x), bits, 1).tolist()
    for row, values in zip(found, x.tolist(), strict=True):
        assert [Fraction(value) for value in row] == on_grid(values, bits)


@settings(deadline=None)
@given(st.integers(1, 10**6))
def test_bits_fill_the_mantissa_and_no_more(terms: int) -> None:
    bits, (first, second) = exact_sums.sum_bits(terms), product_bits(terms)
    assert terms * 2**bits <= 2**53
    assert terms * 2 ** (first + second) <= 2**53 < terms * 2 ** (first + second + 1)
    assert 0 <= first - second <= 1


@settings(deadline=None)
@given(matrices(SMALL, st.integers(1, 200)))
def test_sums_are_those_of_fractions_in_any_order(x: np.ndarray) -> None:
    bits = exact_sums.sum_bits(x.shape[1])
    expected = [sum(on_grid(row, bits)) for row in x.tolist()]
    order = np.random.default_rng(0).permutation(x.shape[1])
    for values in (x, x[:, order].copy()):
        assert [Fraction(v) for v in exact_sum(torch.from_numpy(values), 1).tolist()] == expected
    mean = exact_mean(torch.from_numpy(x), 1).tolist()
    assert mean == [float(total) / x.shape[1] for total in expected]


@settings(deadline=None)
@given(st.data(), SMALL, st.integers(1, 40), SMALL)
def test_products_are_those_of_fractions(data: st.DataObject, m: int, k: int, n: int) -> None:
    a = data.draw(hnp.arrays(np.float64, (m, k), elements=NUMBERS))
    b = data.draw(hnp.arrays(np.float64, (k, n), elements=NUMBERS))
    found = exact_matmul(torch.from_numpy(a), torch.from_numpy(b)).tolist()
    expected = fraction_product(a, b, product_bits(k))
    assert [[Fraction(v) for v in row] for row in found] == expected
    cached = Products(WeightCache([])).matmul(torch.from_numpy(a), torch.from_numpy(b))
    assert cached.tolist() == found


def test_the_largest_sums_are_still_exact() -> None:
    """All terms equal and at the end of their grid: K · 2^(b + c) = 2^53 itself."""
    for k in (64, 2048):
        a = torch.full((3, k), 2.0**13 - 2.0**-40, dtype=torch.float64)
        assert exact_matmul(a, a.T.contiguous()).unique().tolist() == [k * 2.0**26]
        assert exact_sum(a, 1).unique().tolist() == [k * 2.0**13]


def test_products_do_not_come_from_the_rest_of_a_batch() -> None:
    a, b = torch.randn(4, 9, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)
    loud = torch.cat([a, a[:1] * 1e9])
    assert torch.equal(exact_matmul(loud, b)[:4], exact_matmul(a, b))


def test_zeros_and_the_very_small_stay_finite() -> None:
    x = torch.tensor([[0.0, 0.0], [5e-324, 1e-310], [1e-200, -1e-200]], dtype=torch.float64)
    assert torch.equal(rounded(x, 20, 1)[0], x[0])
    assert rounded(x, 20, 1)[1].tolist() == [0.0, 0.0]
    assert exact_matmul(x, x.T)[:, 0].tolist() == [0.0, 0.0, 0.0]


# --- convolutions ---------------------------------------------------------------------------------

GEOMETRIES = [
    {},
    {"stride": 2, "padding": 1},
    {"padding": 2, "dilation": 2},
    {"groups": 2, "padding": 1},
    {"groups": 4, "padding": 1},
    {"groups": 4, "stride": 2, "padding": 2, "dilation": 2},
]


def arguments(stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> tuple:
    return ([stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups)


@pytest.mark.parametrize("options", GEOMETRIES, ids=str)
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_convolutions_are_those_of_fractions(options: dict[str, int], seed: int) -> None:
    """Forward and transposed, from the matrix that they are, on the grids that the module states."""
    groups, rng = options.get("groups", 1), np.random.default_rng(seed)
    w = rng.normal(size=(4, 4 // groups, 3, 2)) * np.exp(rng.normal(size=(4, 1, 1, 1)) * 5)
    x = rng.normal(size=(1, 4, 6, 5)) * np.exp(rng.normal(size=(1, 4, 1, 1)) * 5)
    products, values = Products(WeightCache([])), arguments(**options)
    found = products.convolution(torch.from_numpy(x), torch.from_numpy(w), None, *values)
    bits = product_bits(w[0].size)
    exact_x = gridded(x.reshape(groups, -1), bits[0]).reshape(x.shape)
    exact_w = gridded(w.reshape(4, -1), bits[1]).reshape(w.shape)
    matrix = convolution_matrix(exact_w, x.shape[1:], **options)
    assert found.flatten().tolist() == exactly(matrix, exact_x.flatten())

    g = rng.normal(size=found.shape) * np.exp(rng.normal(size=(1, 4, 1, 1)) * 5)
    masked = (*values, [True, False, False])
    tensors = [torch.from_numpy(t) for t in (g, x, w)]
    back = products.convolution_backward(*tensors, [0], *masked)[0]
    bits = product_bits(w[:, 0].size // groups)
    exact_g = gridded(g.reshape(groups, -1), bits[0]).reshape(g.shape)
    by_input = w.reshape(groups, 4 // groups, 4 // groups, 6).transpose(0, 2, 1, 3)
    exact_w = gridded(by_input.reshape(4, -1), bits[1]).reshape(by_input.shape)
    exact_w = exact_w.transpose(0, 2, 1, 3).reshape(w.shape)
    matrix = convolution_matrix(exact_w, x.shape[1:], **options)
    assert back is not None
    assert back.flatten().tolist() == exactly(matrix.T, exact_g.flatten())


def gridded(x: np.ndarray, bits: int) -> np.ndarray:
    """Rows on their grids; exact in float64, because a grid has at most 2^50 steps."""
    return np.array([[float(v) for v in on_grid(row, bits)] for row in x.tolist()])


def exactly(matrix: np.ndarray, vector: np.ndarray) -> list[float]:
    """The product in fractions; ``float`` must lose nothing."""
    totals = []
    for row in matrix:
        places = np.flatnonzero(row)
        totals.append(sum((Fraction(row[i]) * Fraction(vector[i]) for i in places), Fraction(0)))
    assert all(Fraction(float(total)) == total for total in totals)
    return [float(total) for total in totals]


# --- single operations ----------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(2.0**-60, 2.0**60), min_size=1, max_size=40))
def test_roots_are_correctly_rounded(values: list[float]) -> None:
    x = torch.tensor([*values, *range(1, 100)], dtype=torch.float64)  # 51 is one torch gets wrong
    assert square_root(x).tolist() == [math.sqrt(value) for value in x.tolist()]
    assert inverse_root(x).tolist() == [1 / math.sqrt(value) for value in x.tolist()]


@settings(deadline=None)
@given(hnp.arrays(np.float64, (2, 67), elements=NUMBERS))
def test_single_operations_are_correctly_rounded(x: np.ndarray) -> None:
    a, b = torch.from_numpy(x[0].copy()), torch.from_numpy(np.where(x[1] == 0, 1.0, x[1]))
    pairs = [(Fraction(p), Fraction(q)) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    assert (a + b).tolist() == [float(p + q) for p, q in pairs]
    assert (a - b).tolist() == [float(p - q) for p, q in pairs]
    assert (a * b).tolist() == [float(p * q) for p, q in pairs]
    assert (a / b).tolist() == [float(p / q) for p, q in pairs]


# --- the self-test --------------------------------------------------------------------------------


@pytest.fixture
def fresh() -> object:
    self_test.self_test.cache_clear()
    yield
    self_test.self_test.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_the_self_test_accepts_this_machine() -> None:
    self_test.self_test()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("wrong", ["matrix products", "convolutions", "single operations"])
def test_a_backend_that_loses_bits_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a backend would that sums or takes roots in a shorter mantissa."""

    def short(x: torch.Tensor) -> torch.Tensor:
        return rounded(x, 50, tuple(range(x.dim())))

    matmul, convolve = torch.Tensor.__matmul__, exact_convolution._convolve
    if wrong == "matrix products":
        monkeypatch.setattr(
            torch.Tensor,
            "__matmul__",
            lambda a, b: short(matmul(a, b)) if a.is_floating_point() else matmul(a, b),
        )
    elif wrong == "convolutions":
        monkeypatch.setattr(exact_convolution, "_convolve", lambda *args: short(convolve(*args)))
    else:
        monkeypatch.setattr(self_test, "square_root", lambda x: short(x.sqrt()))
    with pytest.raises(InexactBackend, match=wrong):
        self_test.self_test()
