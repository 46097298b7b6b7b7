"""The noise has the law it claims, lies on its grid, never repeats, and its key is gone."""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from efface.errors import EffaceError
from efface.guarantee import noise

SEED = b"only for tests"
N = 400_000


def discrete_pmf(k: np.ndarray, s: float) -> np.ndarray:
    """The definition, normalised by a sum over every integer that carries mass."""
    support = np.arange(-math.ceil(12 * s), math.ceil(12 * s) + 1)
    return np.exp(-((k / s) ** 2) / 2) / np.sum(np.exp(-((support / s) ** 2) / 2))


def test_gaussian_is_normal() -> None:
    x = noise.gaussian(N, 2.5, test_seed=SEED) / 2.5
    assert kstest(x, "norm").pvalue > 1e-3
    # standard errors of the first four moments are 1, 1.41, 2.4 (of x³: √15), 9.8 over √N
    for power, moment, spread in [(1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, 3.9), (4, 3, 9.8)]:
        assert np.mean(x**power) == pytest.approx(moment, abs=5 * spread / math.sqrt(N))
    lag = np.mean(x[1:] * x[:-1])
    assert lag == pytest.approx(0, abs=5 / math.sqrt(N))


def test_gaussian_has_its_shape_and_type() -> None:
    assert noise.gaussian((3, 4, 5), 1.0).shape == (3, 4, 5)
    assert noise.gaussian((), 1.0).shape == ()
    assert noise.gaussian(0, 1.0).shape == (0,)
    assert noise.gaussian(2, 1.0).dtype == np.float64


def test_uniforms_stay_inside_their_interval_at_both_ends() -> None:
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    low, high = noise._odd_fraction(ends, 53)
    assert low == 2.0**-53
    assert high == 1 - 2.0**-53
    assert noise._odd_fraction(ends, 54)[1] < 0.5


def test_chunks_do_not_repeat_each_other() -> None:
    x = noise.gaussian(3 * noise._CHUNK, 1.0, test_seed=SEED).reshape(3, -1)
    assert np.unique(x).size > x.size - 5
    assert abs(np.corrcoef(x)[0, 1]) < 5 / math.sqrt(noise._CHUNK)


@pytest.mark.parametrize("s", [1.0, 1.3, 1.45, 3.0, 6.1])
def test_discrete_gaussian_has_its_probabilities(s: float) -> None:
    k = noise.discrete_gaussian(N, s / 4, 0.25, test_seed=SEED) * 4
    values = np.arange(-math.floor(4 * s), math.floor(4 * s) + 1)
    expected = discrete_pmf(values, s) * N
    keep = expected > 10
    observed = np.array([np.sum(k == v) for v in values[keep]])
    rest_expected, rest = N - expected[keep].sum(), N - observed.sum()
    statistic = np.sum((observed - expected[keep]) ** 2 / expected[keep])
    statistic += (rest - rest_expected) ** 2 / rest_expected
    assert chi2.sf(statistic, keep.sum()) > 1e-3


@pytest.mark.parametrize("grid", [2.0**-8, 2.0**-20, 2.0**-38])
def test_fine_grid_looks_like_the_continuous_law(grid: float) -> None:
    x = noise.discrete_gaussian(N, 1.3, grid, test_seed=SEED) / 1.3
    assert kstest(x + grid / 1.3 * (np.random.default_rng(0).random(N) - 0.5), "norm").pvalue > 1e-3
    assert np.var(x) == pytest.approx(1, abs=5 * math.sqrt(2 / N))
    # a lattice that is really used: the lowest bit is a fair coin
    odd = np.mean((x * 1.3 / grid).round() % 2)
    assert odd == pytest.approx(0.5, abs=2.5 / math.sqrt(N))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(-30, 3), st.floats(1, 1e6))
def test_release_is_on_the_grid_and_centred_on_the_weights(seed: int, q: int, ratio: float) -> None:
    grid = 2.0**q
    sigma = ratio * grid
    w = np.random.default_rng(seed).normal(size=(7, 9)) * 10 * sigma
    released = noise.release_on_grid(w, sigma, grid)
    steps = released.values / grid
    assert np.array_equal(steps, np.rint(steps))
    assert released.values.shape == w.shape
    # 63 samples: 12 σ is out of reach for any seed
    assert np.max(np.abs(released.values - w)) < 12 * sigma + grid
    assert (released.sigma, released.grid) == (sigma, grid)


def test_noise_is_added_to_every_weight_with_its_variance() -> None:
    w = np.linspace(-3, 3, 100_000)
    difference = noise.release_on_grid(w, 0.1, 2.0**-16).values - w
    # 6 standard errors of a sample deviation
    assert np.std(difference) == pytest.approx(0.1, rel=6 / math.sqrt(2 * w.size))
    assert np.mean(difference != 0) > 0.999


def test_two_calls_never_agree() -> None:
    w = np.zeros(50)
    for draw in (
        lambda: noise.gaussian(50, 1.0),
        lambda: noise.discrete_gaussian(50, 1.0, 2.0**-30),
        lambda: noise.release_on_grid(w, 1.0, 2.0**-30).values,
    ):
        first, second = draw(), draw()
        assert not np.any(first == second)


def test_a_test_seed_repeats_and_marks_the_release() -> None:
    w = np.ones(20)
    first = noise.release_on_grid(w, 1.0, 2.0**-20, test_seed=SEED)
    second = noise.release_on_grid(w, 1.0, 2.0**-20, test_seed=SEED)
    assert np.array_equal(first.values, second.values)
    assert not first.releasable
    assert not noise.release_on_grid(w, 1.0, 2.0**-20, test_seed=b"").releasable
    assert noise.release_on_grid(w, 1.0, 2.0**-20).releasable
    other = noise.release_on_grid(w, 1.0, 2.0**-20, test_seed=SEED + b"2")
    assert not np.any(first.values == other.values)


def test_nothing_keeps_or_logs_the_key(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    handed_out: list[bytes] = []

    def token_bytes(count: int) -> bytes:
        handed_out.append(bytes(range(count)))  # a new object each time, recognisable
        return handed_out[-1]

    monkeypatch.setattr(noise.secrets, "token_bytes", token_bytes)
    caplog.set_level(logging.DEBUG)
    kept = [
        noise.gaussian(1000, 1.0),
        noise.discrete_gaussian(1000, 1.0, 0.5),
        noise.release_on_grid(np.zeros(1000), 1.0, 0.5),
    ]
    gc.collect()
    assert [len(key) for key in handed_out] == [32, 32, 32]
    for i in range(len(handed_out)):
        owners = gc.get_referrers(handed_out[i])
        assert [o for o in owners if o is not handed_out] == [], "something still holds the key"
    fields = [f.name for f in dataclasses.fields(kept[2])]
    assert fields == ["values", "releasable", "sigma", "grid"]
    module_state = [v for v in vars(noise).values() if not isinstance(v, types.ModuleType)]
    assert not any(isinstance(v, bytes | bytearray) for v in module_state)
    captured = capfd.readouterr()
    assert handed_out[0].hex() not in captured.out + captured.err + caplog.text


def test_released_values_cannot_be_changed() -> None:
    released = noise.release_on_grid(np.zeros(3), 1.0, 0.5)
    with pytest.raises(ValueError, match="read-only"):
        released.values[0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        released.releasable = True  # type: ignore[misc]


@given(st.floats(1e-6, 1e3), st.integers(1, 10**8), st.floats(1e-3, 10))
def test_grid_for_is_the_coarsest_allowed(sigma: float, d: int, growth: float) -> None:
    grid = noise.grid_for(sigma, d, growth)
    assert math.frexp(grid)[0] == 0.5
    assert grid <= sigma
    assert grid * math.sqrt(d) / sigma <= growth * (1 + 1e-12)
    assert 2 * grid > sigma or 2 * grid * math.sqrt(d) / sigma > growth * (1 - 1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: noise.gaussian(3, 0.0),
        lambda: noise.gaussian(3, math.nan),
        lambda: noise.discrete_gaussian(3, 1.0, 0.3),
        lambda: noise.discrete_gaussian(3, 1.0, 2.0),
        lambda: noise.discrete_gaussian(3, 1.0, 2.0**-50),
        lambda: noise.release_on_grid(np.array([np.nan]), 1.0, 0.5),
        lambda: noise.release_on_grid(np.array([1e30]), 1.0, 0.5),
        lambda: noise.grid_for(1.0, 0),
    ],
)
def test_unsafe_requests_are_refused_with_a_fix(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(EffaceError) as caught:
        call()
    assert caught.value.fix
