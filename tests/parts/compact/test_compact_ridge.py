"""The ridge solution is that of the explicit rows, and a function of the statistics alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import cho_factor, cho_solve
from sklearn.linear_model import Ridge
from tests.reference import ridge_from_rows, ridge_system
from threadpoolctl import ThreadpoolController, threadpool_limits

from efface.errors import EffaceError
from efface.parts.compact.factor import DOUBLE, SINGLE, Factor, blocks_of, factorise
from efface.parts.compact.quantiser import Quantiser
from efface.parts.compact.ridge import RidgeStatus, solve, solve_path
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.workers import workers, working

Arrays = tuple[np.ndarray, np.ndarray]
FLOAT32 = 2.0**-23  # released weights are float32: twice its rounding


def random_rows(n: int, k: int, c: int, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-127, 127, (n, k), endpoint=True, dtype=np.int8)
    return rows, rng.integers(-3000, 3000, (n, c), endpoint=True, dtype=np.int16)


def fitted(rows: np.ndarray, targets: np.ndarray, **options: int) -> Statistics:
    statistics = Statistics(rows.shape[1], targets.shape[1], **options)
    statistics.add(rows, targets)
    return statistics


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 30),
    k=st.integers(1, 12),
    c=st.integers(1, 3),
    mu=st.sampled_from([1e-2, 0.3, 10.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_dense_solve_on_the_explicit_rows(
    n: int, k: int, c: int, mu: float, seed: int
) -> None:
    rows, targets = random_rows(n, k, c, seed)
    scale = 2.0 ** np.random.default_rng(seed).integers(-8, 0, k)
    solution = solve(fitted(rows, targets), mu, scale=scale, target_scale=2.0**-9)
    features, residuals = rows * scale, targets * 2.0**-9
    left = features.T @ features / n + mu * np.eye(k)
    right = features.T @ residuals / n
    # The twin is backward stable: it is off by no more than the condition number (< 1e8) allows.
    np.testing.assert_allclose(solution.theta, np.linalg.solve(left, right), rtol=2e-7, atol=1e-9)
    assert solution.proved
    assert solution.residual_norm <= mu * solution.error_bound * np.sqrt(c) * (1 + 1e-8)
    assert solution.status is RidgeStatus.SOLVED
    assert (solution.mu, solution.num_rows) == (mu, n)


@pytest.mark.parametrize("strip", [7, 512])
def test_several_strips_equal_one(strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, targets = random_rows(50, 40, 2)
    whole = solve(fitted(rows, targets), 0.5, scale=0.01)
    monkeypatch.setattr("efface.parts.compact.statistics.STRIP", strip)
    np.testing.assert_allclose(
        solve(fitted(rows, targets), 0.5, scale=0.01).theta, whole.theta, rtol=FLOAT32
    )


@pytest.mark.parametrize("mu", [1e-3, 1.0])
def test_equals_scikit_learn(mu: float) -> None:
    rows, targets = random_rows(80, 20, 3)
    features, residuals = rows * 2.0**-6, targets * 2.0**-8
    solution = solve(fitted(rows, targets), mu, scale=2.0**-6, target_scale=2.0**-8)
    theirs = Ridge(alpha=80 * mu, fit_intercept=False, solver="cholesky").fit(features, residuals)
    np.testing.assert_allclose(solution.theta, theirs.coef_.T, rtol=FLOAT32)


def test_an_unpenalised_bias_is_scikit_learns_intercept() -> None:
    rows, targets = random_rows(80, 20, 3)
    rows[:, 4] = 1
    scale = np.full(20, 2.0**-6)
    scale[4] = 1.0
    solution = solve(fitted(rows, targets), 0.7, scale=scale, unpenalised=4)
    others = np.delete(np.arange(20), 4)
    theirs = Ridge(alpha=80 * 0.7).fit(rows[:, others] * 2.0**-6, targets)
    np.testing.assert_allclose(solution.theta[others], theirs.coef_.T, rtol=FLOAT32)
    np.testing.assert_allclose(solution.theta[4], theirs.intercept_, rtol=FLOAT32)
    penalised = solve(fitted(rows, targets), 0.7, scale=scale)
    assert np.abs(penalised.theta[4]).sum() < np.abs(solution.theta[4]).sum()


def test_from_floats_to_weights_and_back() -> None:
    """Quantise, sum, solve: near the solution for the floats themselves."""
    rng = np.random.default_rng(3)
    features = np.column_stack([rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6)), np.ones(200)])
    targets = features @ rng.normal(size=(7, 2)) + 0.1 * rng.normal(size=(200, 2))
    psi = Quantiser.fit(features, 16, bias=6)
    out = Quantiser.uniform(2, np.abs(targets).max(), 16)
    (rows, lost), (residuals, clipped) = psi.quantise(features), out.quantise(targets)
    assert lost == clipped == 0
    solution = solve(
        fitted(rows, residuals, bits=16), 1e-3, scale=psi.scale, target_scale=out.scale
    )
    theirs = Ridge(alpha=0.2, fit_intercept=False).fit(features - psi.centre, targets)
    np.testing.assert_allclose(solution.theta, theirs.coef_.T, atol=2e-3)  # 16-bit steps


def test_forgotten_targets_times_1000_leave_no_trace_in_the_weights() -> None:
    rows, targets = random_rows(60, 30, 2)
    targets //= 1000
    loud = targets.copy()
    loud[:7] *= 1000
    statistics = fitted(rows, loud)
    before = solve(statistics, 0.1)
    statistics.remove(rows[:7], loud[:7])
    after, retrained = solve(statistics, 0.1), solve(fitted(rows[7:], targets[7:]), 0.1)
    assert np.linalg.norm(before.theta - retrained.theta) > np.linalg.norm(retrained.theta)
    assert after.theta.tobytes() == retrained.theta.tobytes()
    assert after.residual_norm == retrained.residual_norm


@pytest.mark.parametrize("num_threads", [1, 2])
def test_equal_statistics_give_bit_equal_weights_whatever_their_history(num_threads: int) -> None:
    rows, targets = random_rows(400, 700, 3)  # two strips, and blocks enough for two threads
    direct = fitted(rows[100:], targets[100:])
    roundabout = Statistics(700, 3, limbs=2)
    order = np.random.default_rng(1).permutation(400)
    for batch in np.array_split(order, 7):
        roundabout.add(rows[batch], targets[batch])
    roundabout.remove(rows[:100], targets[:100])
    loaded = Statistics.from_arrays(roundabout.to_arrays())
    with threadpool_limits(num_threads):
        weights = [solve(s, 0.05).theta.tobytes() for s in (direct, direct, roundabout, loaded)]
    assert len(set(weights)) == 1


def test_thread_counts_agree() -> None:
    statistics, found = fitted(*random_rows(400, 700, 3)), []
    for count in (1, 2):
        with threadpool_limits(count):
            found.append(solve(statistics, 10.0))
    assert all(solution.proved for solution in found)
    assert found[0].theta.tobytes() == found[1].theta.tobytes()


def test_the_path_is_solve_for_each_mu() -> None:
    statistics = fitted(*random_rows(50, 40, 2))
    mus = [1e-3, 1.0, 1e-3, 50.0]
    path = solve_path(statistics, mus, scale=0.5, unpenalised=0)
    assert [solution.mu for solution in path] == mus
    for solution in path:
        alone = solve(statistics, solution.mu, scale=0.5, unpenalised=0)
        assert solution.theta.tobytes() == alone.theta.tobytes()
        assert solution.relative_residual == alone.relative_residual
    assert np.linalg.norm(path[1].theta) > np.linalg.norm(path[3].theta)


def test_no_rows_give_zero_weights() -> None:
    solution = solve(Statistics(5, 2), 0.1).checked()
    assert solution.status is RidgeStatus.EMPTY
    np.testing.assert_array_equal(solution.theta, np.zeros((5, 2)))
    assert solution.residual_norm == solution.relative_residual == 0.0


def test_zero_targets_give_zero_weights() -> None:
    rows, targets = random_rows(9, 5, 2)
    solution = solve(fitted(rows, 0 * targets), 0.1)
    assert not solution.theta.any()
    assert solution.status is RidgeStatus.SOLVED


def test_a_singular_system_is_reported_not_returned() -> None:
    rows, targets = random_rows(9, 5, 2)
    rows[:, 3] = 0
    solution = solve(fitted(rows, targets), 0.0)
    assert solution.status is RidgeStatus.NOT_POSITIVE_DEFINITE
    assert not solution.ok
    assert np.isnan(solution.theta).all()
    with pytest.raises(EffaceError, match="larger --mu"):
        solution.checked()
    assert solve(fitted(rows, targets), 1e-6).checked().ok


def test_a_residual_above_the_tolerance_is_reported() -> None:
    statistics = fitted(*random_rows(90, 50, 2))
    solution = solve(statistics, 0.1, tolerance=1e-30)
    assert solution.status is RidgeStatus.INACCURATE
    assert 0 < solution.relative_residual < 1e-12
    with pytest.raises(EffaceError, match="residual"):
        solution.checked()


def test_an_ill_conditioned_system_is_solved_to_rounding() -> None:
    rows, targets = random_rows(300, 60, 2)
    scale = 2.0 ** np.linspace(-20, 6, 60).round()
    solution = solve(fitted(rows, targets), 1e-9, scale=scale)
    assert solution.relative_residual < 1e-14


def precisions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.dtype[Any], bool]]:
    """What each later solve tries: (precision of the factor, whether there was one)."""
    tried, real = [], Factor.of.__func__  # type: ignore[attr-defined]

    def watching(cls: type[Factor], *args: Any) -> Factor | None:
        factor: Factor | None = real(cls, *args)
        tried.append((args[-1], factor is not None))
        return factor

    monkeypatch.setattr(Factor, "of", classmethod(watching))
    return tried


@pytest.mark.parametrize("k", [40, 300])  # one block of the factor, and two
def test_a_float32_factor_refines_to_the_float64_solution(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = precisions(monkeypatch)
    rows, targets = random_rows(2 * k, k, 3)
    solution = solve(fitted(rows, targets), 0.5, scale=2.0**-6, target_scale=2.0**-9)
    assert tried == [(SINGLE, True)]
    assert solution.proved
    want = ridge_from_rows(rows, targets, 0.5, 2.0**-6, 2.0**-9)
    np.testing.assert_allclose(solution.theta, want, rtol=FLOAT32, atol=1e-13)


@pytest.mark.parametrize("mu", [1e-12, 1e-8, 1e-6])
def test_tiny_mu_falls_back_to_float64_and_is_still_right(
    mu: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer rows than features: without μ there is no unique solution. The dual form is the twin."""
    tried = precisions(monkeypatch)
    rows, targets = random_rows(40, 300, 2)
    solution = solve(fitted(rows, targets), mu, scale=2.0**-6, target_scale=2.0**-9)
    assert tried == [(DOUBLE, True)]  # that float32 will not do is known beforehand
    assert solution.status is RidgeStatus.SOLVED
    assert solution.relative_residual < 1e-13
    assert solution.proved
    want = ridge_from_rows(rows, targets, mu, 2.0**-6, 2.0**-9)
    assert np.linalg.norm(solution.theta - want) < FLOAT32 * np.linalg.norm(want)


@settings(max_examples=25, deadline=None)
@given(
    spread=st.integers(0, 60),
    mu=st.sampled_from([0.0, 1e-15, 1e-9, 1e-4, 1.0]),
    rank=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_whatever_the_system_weights_are_checked_in_float64(
    spread: int, mu: float, rank: int, seed: int
) -> None:
    """Scales over 2^±spread, low rank, no ridge: a solution has a small residual, or none is given."""
    rows, targets = random_rows(rank, 20, 2, seed)
    scale = 2.0 ** np.random.default_rng(seed).integers(-spread, spread, 20, endpoint=True)
    solution = solve(fitted(rows, targets), mu, scale=scale)
    assert solution.ok == (solution.relative_residual <= 1e-9)
    if solution.ok:
        left, right = ridge_system(rows, targets, mu, scale, 1.0)
        # Weights are rounded to float32, or to 2^-48 in units of integers.
        theta = solution.theta.astype(np.float64)
        terms = np.abs(left) @ (np.abs(theta) + 2.0**-24 / scale[:, None]) + np.abs(right)
        off = np.abs(left @ theta - right)
        assert (off <= 1e-9 * np.linalg.norm(right) + FLOAT32 * terms).all()
    elif solution.status is RidgeStatus.NOT_POSITIVE_DEFINITE:
        assert np.isnan(solution.theta).all()


@pytest.mark.parametrize("k", [5, 300])
def test_a_singular_system_is_never_solved_in_float32(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column twice over, no ridge: float32's rounding may hide it, float64 has the last word."""
    tried = precisions(monkeypatch)
    rows, targets = random_rows(2 * k, k, 2)
    rows[:, 3] = rows[:, 1]
    solve(fitted(rows, targets), 0.0)
    assert tried[0] == (SINGLE, False)
    assert tried[1][0] == DOUBLE
    rows[:, 3] = 0
    solution = solve(fitted(rows, targets), 0.0)
    assert tried[2:] == [(SINGLE, False), (DOUBLE, False)]
    assert solution.status is RidgeStatus.NOT_POSITIVE_DEFINITE


def test_a_poor_factor_takes_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step leaves 1e-3 of the residual: five steps instead of two or three."""
    real = Factor.solve
    calls = []

    def poor(self: Factor, right: np.ndarray) -> np.ndarray:
        calls.append(1)
        return real(self, right) * (1 - 1e-3)

    monkeypatch.setattr(Factor, "solve", poor)
    solution = solve(fitted(*random_rows(50, 40, 2)), 0.1)
    assert solution.relative_residual < 1e-14
    assert len(calls) in (5, 6)


def test_a_useless_factor_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Factor, "solve", lambda self, right: -right)
    solution = solve(fitted(*random_rows(50, 40, 2)), 0.1)
    assert solution.status is RidgeStatus.INACCURATE
    assert solution.relative_residual == 1.0


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12)), max_size=8),
    limbs=st.sampled_from([1, 2]),
    mu=st.sampled_from([1e-9, 1e-3, 1.0]),
)
def test_any_interleaving_ends_in_bit_equal_weights(
    steps: list[tuple[int, int]], limbs: int, mu: float
) -> None:
    """Rows go in and out in slices; what remains is solved as if it had come alone, in one batch."""
    rows, targets = random_rows(24, 30, 2)
    statistics, inside = Statistics(30, 2, limbs=limbs), np.zeros(24, dtype=bool)
    for start, size in steps:
        part = np.arange(start, start + size)
        for flag, update in ((True, statistics.remove), (False, statistics.add)):
            which = part[inside[part] == flag]
            update(rows[which], targets[which])
        inside[part] = ~inside[part]
    alone = solve(fitted(rows[inside], targets[inside]), mu, scale=2.0**-5)
    here = solve(statistics, mu, scale=2.0**-5)
    assert here.theta.tobytes() == alone.theta.tobytes()
    assert (here.status, here.relative_residual) == (alone.status, alone.relative_residual)


def test_the_statistics_are_left_as_they_were_and_weights_are_read_only() -> None:
    statistics = fitted(*random_rows(50, 40, 2))
    before = statistics.digest()
    solution = solve(statistics, 0.1, scale=0.5)
    assert statistics.digest() == before
    with pytest.raises(ValueError, match="read-only"):
        solution.theta[0, 0] = 1.0


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_the_factor_is_made_in_place(dtype: np.dtype[Any]) -> None:
    """At k = 14,000 a copy of the matrix would be 0.8 GB, or 1.6."""
    rows = random_rows(700, 600, 1)[0].astype(np.float64)
    matrix = (rows.T @ rows / 1e6).astype(dtype)
    work = matrix.copy()
    inverses = factorise(work)
    assert inverses is not None
    lower, rounding = np.tril(work), 1e3 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(lower @ lower.T, matrix, rtol=rounding, atol=rounding)
    for (start, stop), inverse in zip(blocks_of(600), inverses, strict=True):
        block = lower[start:stop, start:stop] @ inverse[: stop - start, : stop - start]
        np.testing.assert_allclose(block, np.eye(stop - start), atol=rounding * 100)
    work[300, 300] = -1.0
    assert factorise(work) is None


def test_an_ill_conditioned_float64_factor_is_as_good_as_substitution() -> None:
    """Blocks are inverted; corrected once, they lose nothing against LAPACK where κ(A) is 1e13."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(500, 500)))[0]
    matrix = basis * np.logspace(0, -13, 500) @ basis.T
    matrix = (matrix + matrix.T) / 2
    strips = [(0, 500, matrix)]
    one = np.ones(500)
    ours = Factor.of(strips, one, np.zeros(500), np.ones(500), DOUBLE)
    assert ours is not None
    right = rng.normal(size=(3, 500))
    theirs = cho_solve(cho_factor(matrix, lower=True), right.T).T
    off = [
        np.linalg.norm(x @ matrix - right) / np.linalg.norm(x) for x in (ours.solve(right), theirs)
    ]
    assert off[0] < 10 * off[1]


def test_scales_far_out_of_the_range_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = precisions(monkeypatch)
    rows, targets = random_rows(60, 8, 2)
    scale = 2.0 ** np.array([-110, -90, -80, 0, 0, 30, 50, 60])
    near = solve(fitted(rows, targets), 0.0)
    far = solve(fitted(rows, targets), 0.0, scale=scale)
    assert {dtype for dtype, _ in tried} == {SINGLE}
    np.testing.assert_allclose(far.theta * scale[:, None], near.theta, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"mu": -1.0},
        {"mu": float("nan")},
        {"mu": 1.0, "scale": np.ones(4)},
        {"mu": 1.0, "scale": 0.0},
        {"mu": 1.0, "target_scale": [1.0, -1.0]},
    ],
)
def test_bad_arguments_are_refused(options: dict) -> None:
    with pytest.raises(EffaceError):
        solve(fitted(*random_rows(9, 5, 2)), **options)


def test_workers_share_the_work_and_blas_has_its_threads_back() -> None:
    def threads() -> list[int]:
        libraries = ThreadpoolController().select(user_api="blas").info()
        return [library["num_threads"] for library in libraries]

    with threadpool_limits(2):
        before = threads()
        with working() as made:
            assert made.count == 2
            assert set(threads()) == {1}
            assert made.shares(7) == [slice(0, 3), slice(3, 7)]
            assert made.shares(7, least=5) == [slice(0, 7)]
            assert made.each(lambda share: share.stop - share.start, made.shares(7)) == [3, 4]
            assert workers() is made
            with working() as within:  # BLAS has one thread by now, and there are two workers still
                assert within is made
            assert workers() is made
            assert set(threads()) == {1}
        assert threads() == before
    assert workers().count == 1
