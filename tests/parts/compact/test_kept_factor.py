"""A factor that is kept is a way and nothing more: whatever it is, weights are the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import ridge_from_rows

from efface import files
from efface.parts.compact import ridge
from efface.parts.compact.factor import DOUBLE, Factor
from efface.parts.compact.kept_factor import NAME, KeptFactor
from efface.parts.compact.ridge import factor_of, solve
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.updated import Updated

SCALES: dict[str, Any] = {"scale": 2.0**-6, "target_scale": 2.0**-9}


def fitted(n: int, k: int, seed: int = 0) -> tuple[Statistics, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-127, 128, (n, k), dtype=np.int8)
    targets = rng.integers(-3000, 3000, (n, 3)).astype(np.int16)
    statistics = Statistics(k, 3)
    statistics.add(rows, targets)
    return statistics, rows, targets


def kept_of(statistics: Statistics, strength: float) -> KeptFactor:
    factor = factor_of(statistics, strength, SCALES["scale"], SCALES["target_scale"])
    assert factor is not None
    return KeptFactor(factor, strength)


def no_factor(*_: object, **__: object) -> None:
    raise AssertionError("a factor was made anew")


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(20, 90),
    k=st.sampled_from([16, 60, 300]),
    gone=st.integers(1, 3),
    strength=st.sampled_from([1e-3, 0.5, 40.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_ways_lead_to_the_same_bits(
    n: int, k: int, gone: int, strength: float, seed: int
) -> None:
    """By the update, by a new float32 factor where that will do, and by a float64 one."""
    statistics, rows, targets = fitted(n, k, seed)
    kept = kept_of(statistics, strength)
    statistics.remove(rows[:gone], targets[:gone])
    real = rows[:gone] * SCALES["scale"]
    way = kept.without(real, strength) if gone <= k / 16 else None
    found = [solve(statistics, ridge=strength, **SCALES, near=near) for near in (way, None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ridge._System, "_is_hopeless_in_float32", lambda *_: True)
        found.append(solve(statistics, ridge=strength, **SCALES))
    assert len({solution.theta.tobytes() for solution in found}) == 1
    assert all(solution.proved for solution in found)


@pytest.mark.parametrize(("n", "k"), [(400, 150), (60, 200)])
def test_the_update_is_all_it_takes(n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    statistics, rows, targets = fitted(n, k)
    kept = kept_of(statistics, 0.5)
    statistics.remove(rows[3:9], targets[3:9])
    way = kept.without(rows[3:9] * SCALES["scale"], 0.5)
    want = solve(statistics, ridge=0.5, **SCALES)
    monkeypatch.setattr(Factor, "of", no_factor)
    assert solve(statistics, ridge=0.5, **SCALES, near=way).theta.tobytes() == want.theta.tobytes()


def test_the_update_takes_the_ridge_along_that_went_with_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """λ = n μ is smaller by a hundredth when one of a hundred rows is gone."""
    statistics, rows, targets = fitted(100, 80)
    kept = kept_of(statistics, 100 * 0.01)
    statistics.remove(rows[:1], targets[:1])
    way = kept.without(rows[:1] * SCALES["scale"], 99 * 0.01)
    assert way is not None
    assert way.num_terms > 0
    want = solve(statistics, 0.01, **SCALES)
    monkeypatch.setattr(Factor, "of", no_factor)
    assert solve(statistics, 0.01, **SCALES, near=way).theta.tobytes() == want.theta.tobytes()


def test_too_many_rows_or_too_much_ridge_are_for_a_new_factor() -> None:
    statistics, rows, _ = fitted(100, 80)
    kept = kept_of(statistics, 1.0)
    assert kept.without(rows[:6] / 64, 1.0) is None
    assert kept.without(rows[:5] / 64, 1.0) is not None
    assert kept.without(rows[:5] / 64, 0.5) is None
    assert kept.without(rows[:5] / 64, float("nan")) is None


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e300, 1e-310, np.inf, np.nan, "random"])
def test_whatever_is_in_the_factor_the_weights_are_the_same(value: float | str) -> None:
    statistics, rows, targets = fitted(70, 200)
    kept = kept_of(statistics, 0.5)
    rng = np.random.default_rng(3)

    def other(array: np.ndarray) -> np.ndarray:
        return rng.normal(size=array.shape) if value == "random" else np.full_like(array, value)

    statistics.remove(rows[:4], targets[:4])
    want = solve(statistics, ridge=0.5, **SCALES)
    good = kept.factor
    for factor in (
        Factor(tuple(map(other, good.strips)), good.inverses, good.balance),
        Factor(good.strips, other(good.inverses), good.balance),
        Factor(good.strips, good.inverses, other(good.balance)),
    ):
        with np.errstate(all="ignore"):
            way = Updated.of(factor, rows[:4] * SCALES["scale"], 0.5, 0.5)
        found = solve(statistics, ridge=0.5, **SCALES, near=way)
        assert found.theta.tobytes() == want.theta.tobytes()
        assert found.proved


def guessing(n: int = 70, k: int = 200) -> tuple[Statistics, Updated, np.ndarray, np.ndarray]:
    """Sums after four rows went, the way there, the weights before, and the rows' errors under them."""
    gone, (statistics, rows, targets) = 4, fitted(n, k)
    before = solve(statistics, ridge=0.5, **SCALES).theta
    way = kept_of(statistics, 0.5).without(rows[:gone] * SCALES["scale"], 0.5)
    assert way is not None
    statistics.remove(rows[:gone], targets[:gone])
    errors = rows[:gone] * SCALES["scale"] @ before - targets[:gone] * SCALES["target_scale"]
    return statistics, way, before, errors


@pytest.mark.parametrize(("n", "k", "off"), [(900, 200, 2.0**-22), (70, 200, 2.0**-17)])
def test_the_guess_is_the_solution_without_the_rows(n: int, k: int, off: float) -> None:
    """To the rounding of the weights before; with fewer rows than features, that over 1 − vᵀ A⁻¹ v."""
    _, way, before, errors = guessing(n, k)
    _, rows, targets = fitted(n, k)
    scales = SCALES["scale"], SCALES["target_scale"]
    want = ridge_from_rows(rows[4:], targets[4:], 0.5 / (n - 4), *scales)
    guess = way.after(before, errors).guess
    assert guess is not None
    assert np.linalg.norm(guess.T - want) < off * np.linalg.norm(want)
    assert np.linalg.norm(before - want) > 2.0**-6 * np.linalg.norm(want)  # it is not for nothing


def test_a_guess_saves_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics, way, before, errors = guessing()
    calls, real = [], Updated.solve

    def counted(self: Updated, right: np.ndarray) -> np.ndarray:
        calls.append(len(right))
        return real(self, right) * (1 - 2.0**-10)  # so poor that there are several

    monkeypatch.setattr(Updated, "solve", counted)
    want = solve(statistics, ridge=0.5, **SCALES, near=way)
    without = len(calls)
    found = solve(statistics, ridge=0.5, **SCALES, near=way.after(before, errors))
    assert 0 < len(calls) - without < without
    assert found.theta.tobytes() == want.theta.tobytes()
    assert found.proved


@pytest.mark.parametrize("value", [0.0, 1e300, 1e-310, np.inf, np.nan, "before", "random"])
def test_whatever_is_guessed_the_weights_are_the_same(value: float | str) -> None:
    """A wrong guess is dropped: weights with noise on them are one."""
    statistics, way, before, _ = guessing()
    if value == "before":
        guess = before.T.astype(np.float64)
    elif value == "random":
        guess = np.random.default_rng(1).normal(size=(3, 200))
    else:
        guess = np.full((3, 200), float(value))
    want = solve(statistics, ridge=0.5, **SCALES)
    found = solve(statistics, ridge=0.5, **SCALES, near=replace(way, weights=guess))
    assert found.theta.tobytes() == want.theta.tobytes()
    assert found.proved


def test_nothing_is_guessed_where_the_ridge_goes_with_the_rows() -> None:
    statistics, rows, _ = fitted(100, 80)
    way = kept_of(statistics, 1.0).without(rows[:1] / 64, 0.99)
    assert way is not None
    assert way.after(np.ones((80, 3)), np.ones((1, 3))).guess is None


def test_the_factor_of_other_sums_leads_to_the_same_weights() -> None:
    statistics, rows, targets = fitted(70, 200)
    way = kept_of(fitted(90, 200, seed=5)[0], 0.5).without(rows[:2] * SCALES["scale"], 0.5)
    statistics.remove(rows[:2], targets[:2])
    want = solve(statistics, ridge=0.5, **SCALES)
    assert solve(statistics, ridge=0.5, **SCALES, near=way).theta.tobytes() == want.theta.tobytes()


def test_a_file_holds_it_or_there_is_none(tmp_path: Path) -> None:
    statistics, *_ = fitted(70, 600)
    kept = kept_of(statistics, 0.5)
    assert KeptFactor.load(tmp_path, 600) is None
    kept.save(tmp_path)
    again = KeptFactor.load(tmp_path, 600)
    assert again is not None
    assert again.ridge == 0.5
    right = np.random.default_rng(0).normal(size=(2, 600))
    np.testing.assert_array_equal(again.factor.solve(right), kept.factor.solve(right))
    assert again.factor.precision == DOUBLE
    assert KeptFactor.load(tmp_path, 599) is None
    arrays = files.read_arrays(tmp_path / NAME)
    for name, array in (
        ("header", arrays["header"] + 1),
        ("ridge", arrays["ridge"].astype(np.float32)),
        ("strip-1", arrays["strip-1"][:-1]),
        ("inverses", arrays["inverses"].astype(np.float32)),
    ):
        files.write_arrays(tmp_path / NAME, {**arrays, name: array})
        assert KeptFactor.load(tmp_path, 600) is None
    files.write_arrays(tmp_path / NAME, {n: a for n, a in arrays.items() if n != "balance"})
    assert KeptFactor.load(tmp_path, 600) is None
    (tmp_path / NAME).write_bytes(b"not a factor")
    assert KeptFactor.load(tmp_path, 600) is None
