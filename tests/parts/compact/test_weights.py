"""Released weights are the exact solution, rounded: against fractions, threads and instruction sets."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.fractions_reference import rational_ridge, released
from tests.reference import exact_statistics

from efface.parts.compact import rational, ridge
from efface.parts.compact.expansion import Expansion
from efface.parts.compact.integer_system import IntegerSystem
from efface.parts.compact.release_grid import ReleaseGrid
from efface.parts.compact.ridge import RidgeSolution, RidgeStatus, solve
from efface.parts.compact.statistics import Statistics


def repeated(rows: np.ndarray, targets: np.ndarray, counts: list[int], limbs: int) -> Statistics:
    """Sums of rows with multiplicities, by doubling: 2^70 rows are soon there."""
    total = Statistics(rows.shape[1], targets.shape[1], bits=16, limbs=limbs)
    for row, target, count in zip(rows, targets, counts, strict=True):
        power = Statistics(rows.shape[1], targets.shape[1], bits=16, limbs=limbs)
        power.add(row[None], target[None])
        while count:
            if count & 1:
                total.merge(power)
            count >>= 1
            if count:
                power.merge(power)
    return total


def assert_is_the_rounded_solution(
    solution: RidgeSolution,
    exact: list[list[Fraction]],
    scale: np.ndarray,
    target_scale: np.ndarray,
) -> None:
    assert solution.proved
    want = np.array(
        [
            [released(value, scale[i], target_scale[j]) for j, value in enumerate(row)]
            for i, row in enumerate(exact)
        ]
    )
    assert solution.theta.dtype == np.float32
    assert solution.theta.tobytes() == want.tobytes()


@st.composite
def problems(draw: st.DrawFn) -> dict:
    """Small systems: zero and repeated features, tiny and huge scales, few and very many rows."""
    n, k, c = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    limit = draw(st.sampled_from([1, 127, 32767]))
    rows = rng.integers(-limit, limit, (n, k), endpoint=True)
    targets = rng.integers(-32767, 32767, (n, c), endpoint=True)
    if k > 1 and draw(st.booleans()):
        rows[:, 0] = rows[:, -1]
    if draw(st.booleans()):
        rows[:, rng.integers(k)] = 0
    if draw(st.booleans()):
        targets[:, rng.integers(c)] = 0
    limbs = draw(st.sampled_from([1, 2]))
    most = 60 if limbs == 2 else 18
    counts = [int(2 ** rng.integers(0, draw(st.sampled_from([1, most])))) for _ in range(n)]
    spread = draw(st.sampled_from([0, 8, 40]))
    return {
        "rows": rows,
        "targets": targets,
        "counts": counts,
        "limbs": limbs,
        "scale": 2.0 ** rng.integers(-spread, spread, k, endpoint=True),
        "target_scale": 2.0 ** rng.integers(-12, 0, c, endpoint=True),
        "ridge": draw(st.sampled_from([1e-12, 2.0**-20, 0.2, 0.7, 1.0, 1e6, 2.0**40])),
    }


@settings(max_examples=150, deadline=None)
@given(problems())
def test_weights_are_the_exact_solution_rounded(problem: dict) -> None:
    statistics = repeated(problem["rows"], problem["targets"], problem["counts"], problem["limbs"])
    scales = problem["scale"], problem["target_scale"]
    solution = solve(statistics, ridge=problem["ridge"], scale=scales[0], target_scale=scales[1])
    exact = rational_ridge(
        problem["rows"], problem["targets"], problem["ridge"], *scales, problem["counts"]
    )
    if solution.status is RidgeStatus.NOT_POSITIVE_DEFINITE:
        assert np.isnan(solution.theta).all()
        assert not solution.proved
        return
    assert_is_the_rounded_solution(solution, exact, *scales)


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 3))
def test_the_bound_bounds_and_residuals_are_exact(problem: dict, steps: int) -> None:
    """After any number of steps, with a float64 factor that is made poor on purpose."""
    statistics = repeated(problem["rows"], problem["targets"], problem["counts"], problem["limbs"])
    system = ridge._System.build(statistics, problem["scale"], problem["target_scale"], None)
    refinement = system.refinement(problem["ridge"])
    factor = system.factor(problem["ridge"], np.float64)
    if factor is None:
        return
    poor = replace(factor, inverses=factor.inverses * (1 + 2.0**-9))
    right = refinement.system.right_hand_side()
    columns = refinement.start()[0]
    for _ in range(steps if len(columns.index) else 0):
        columns = refinement.step(columns, poor, 40)
    k = statistics.num_features
    gram, _, _ = exact_statistics(problem["rows"], problem["targets"], problem["counts"])
    ridges = [Fraction(problem["ridge"]) / Fraction(float(s)) ** 2 for s in problem["scale"]]
    theta, bound = refinement.theta(columns), refinement.bound(columns)
    exact = rational_ridge(
        problem["rows"],
        problem["targets"],
        problem["ridge"],
        problem["scale"],
        problem["target_scale"],
        problem["counts"],
    )
    for row, j in enumerate(columns.index.tolist()):
        z = [columns.weights.exactly(row, i) for i in range(k)]
        for i in range(k):
            left = sum((gram[i][m] * z[m] for m in range(k)), ridges[i] * z[i])
            assert columns.residual.exactly(row, i) == right.exactly(j, i) - left
            error = abs(theta.exactly(row, i) - exact[i][j])
            assert error <= Fraction(float(bound[row]))


@settings(max_examples=60, deadline=None)
@given(
    feature=st.integers(1, 127),
    target=st.integers(-32767, 32767),
    count=st.integers(1, 2**20),
    power=st.integers(20, 60),
)
@example(feature=1, target=1, count=2**24 + 1, power=30)  # a tie between two float32 numbers
@example(feature=1, target=1, count=2**24 + 3, power=30)  # and one that goes up
def test_ties_are_decided(feature: int, target: int, count: int, power: int) -> None:
    """One feature and a λ that makes the matrix a power of two: the solution has finitely many digits."""
    rows, targets = np.array([[feature]]), np.array([[target]])
    total = count * feature**2
    if total >= 2**power:
        return
    lam = float(2**power - total)
    if Fraction(lam) != 2**power - total:
        return
    statistics = repeated(rows, targets, [count], 2)
    solution = solve(statistics, ridge=lam)
    exact = [[Fraction(count * feature * target, 2**power)]]
    assert_is_the_rounded_solution(solution, exact, np.ones(1), np.ones(1))


def tie(k: int) -> tuple[Statistics, Fraction]:
    """With λ = 2^24 − 1, feature 0's weight has 25 digits and the last one's, in the same column, no end of
    them: the column's residual is never 0, and no bound above 0 decides the tie."""
    rows, targets = np.zeros((2, k), np.int64), np.zeros((2, 1), np.int64)
    rows[0, 0], rows[1, -1], targets[:] = 1, 1, 1
    statistics = repeated(rows, targets, [2**24 + 1, 2], 2)
    return statistics, Fraction(2**24 + 1, 2**25)


def test_a_tie_that_no_bound_decides_takes_fractions_and_is_not_proved_in_large_systems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statistics, weight = tie(6)
    lam = 2.0**24 - 1
    solution = solve(statistics, ridge=lam)
    assert solution.proved
    assert solution.error_bound == 0.0
    assert solution.theta[0, 0] == released(weight, 1.0, 1.0)
    monkeypatch.setattr(ridge, "MOST_FEATURES", 5)
    large = solve(statistics, ridge=lam)
    assert not large.proved
    assert large.status is RidgeStatus.SOLVED
    assert 0 < large.error_bound < 2.0**-100
    np.testing.assert_allclose(large.theta, solution.theta, rtol=2.0**-23)


def test_structural_zeros_are_zeros_and_there_is_one_zero() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 128, (60, 40))
    targets = rng.integers(-3000, 3000, (60, 3))
    rows[:, 7], targets[:, 1] = 0, 0
    statistics = Statistics(40, 3)
    statistics.add(rows, targets)
    solution = solve(statistics, ridge=0.3, scale=2.0**-6)
    assert solution.proved
    assert not solution.theta[7].any()
    assert not solution.theta[:, 1].any()
    assert not np.signbit(solution.theta[7]).any()
    assert np.count_nonzero(solution.theta) == 39 * 2


def test_weights_that_are_zero_for_no_visible_reason_are_decided() -> None:
    """Θ = m / 3 by construction, some m are 0, and no entry of G or B shows which. Thirds have no end of
    digits, so no residual is 0: without a least quantum refinement could go on for ever."""
    rng = np.random.default_rng(1)
    m = rng.integers(-3, 4, (30, 2))
    mixed, alone = 3 * rng.integers(-30, 31, (40, 30)), 3 * np.eye(30, dtype=np.int64)
    statistics = Statistics(30, 2)
    statistics.add(np.concatenate([mixed, alone]), np.concatenate([mixed // 3 @ m, 2 * m]))
    assert statistics.gram().all()
    assert statistics.cross().all()
    solution = solve(statistics, ridge=9.0)  # (QᵀQ + 9 I + λ I) m / 3 = Qᵀ(Q m / 3) + 3 · 2 m
    assert solution.proved
    assert solution.error_bound > 0
    assert np.count_nonzero(m == 0) > 3
    assert solution.theta.tobytes() == (m / 3).astype(np.float32).tobytes()


@pytest.mark.parametrize(
    "options", [{"unpenalised": 0}, {"scale": 0.3}, {"target_scale": 3.0}, {"ridge": 0.0}]
)
def test_where_the_bound_does_not_hold_only_fractions_prove(
    options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    rows, targets = rng.integers(-9, 10, (20, 6)), rng.integers(-300, 300, (20, 2))
    statistics = Statistics(6, 2)
    statistics.add(rows, targets)
    options = {"ridge": 0.5, **options}
    exact = solve(statistics, **options)
    assert exact.proved
    monkeypatch.setattr(ridge, "MOST_FEATURES", 5)
    near = solve(statistics, **options)
    assert not near.proved
    assert near.error_bound == np.inf
    np.testing.assert_allclose(near.theta, exact.theta, rtol=2.0**-22)


def test_the_ridge_is_one_number() -> None:
    """λ given is λ used; μ is multiplied by n once."""
    rng = np.random.default_rng(3)
    statistics = Statistics(5, 1)
    statistics.add(rng.integers(-9, 10, (11, 5)), rng.integers(-300, 300, (11, 1)))
    assert 0.2 / 11 * 11 != 0.2
    assert solve(statistics, ridge=0.2).ridge == 0.2
    assert solve(statistics, 0.1).ridge == 11 * 0.1
    assert solve(statistics, 0.1).mu == 0.1


@pytest.mark.parametrize("options", [{}, {"mu": 0.1, "ridge": 0.1}, {"ridge": -1.0}])
def test_one_strength_is_given(options: dict) -> None:
    with pytest.raises(ridge.EffaceError):
        solve(Statistics(3, 1), **options)


@pytest.mark.parametrize(("limbs", "count"), [(1, 1), (1, 2**20), (2, 2**60)])
def test_products_of_large_sums_are_exact(limbs: int, count: int) -> None:
    """More than one strip, one slice of G or several, against integers."""
    rng = np.random.default_rng(4)
    rows = rng.integers(-32767, 32768, (3, 700)) // (1 if count > 1 else 1000)
    statistics = repeated(rows, rng.integers(-9, 10, (3, 2)), [count, 1, 3], limbs)
    system = IntegerSystem.build(statistics, np.full(700, 0.2))
    assert (system.width is None) == (count == 1)
    wanted = rng.normal(size=(2, 700))
    parts = system.parts_of(wanted, 40)
    left = wanted - sum(parts)  # type: ignore[operator]
    assert float(np.abs(left).max()) < 2.0**-30
    after = system.residual_after(Expansion((np.zeros((2, 700)),)), parts)
    z = [[sum(Fraction(float(p[j, i])) for p in parts) for i in range(700)] for j in range(2)]
    seen = [[sum(int(q) * w for q, w in zip(r, z[j], strict=True)) for r in rows] for j in (0, 1)]
    for j, i in [(0, 0), (0, 699), (1, 511), (1, 512), (0, 300)]:
        total = sum(m * int(rows[r, i]) * seen[j][r] for r, m in enumerate([count, 1, 3])) + z[j][
            i
        ] * Fraction(0.2)
        assert after.exactly(j, i) == -total


@settings(max_examples=100, deadline=None)
@given(
    value=st.fractions(min_value=-4, max_value=4),
    shift=st.integers(-60, 30),
    scale=st.integers(-20, 20),
)
def test_the_grid_is_that_of_the_twin(value: Fraction, shift: int, scale: int) -> None:
    grid = ReleaseGrid.build(np.array([2.0**scale]), np.ones(1))
    weight = value * Fraction(2) ** shift
    want = released(weight, 2.0**scale, 1.0)
    assert float(grid.nearest_exactly(weight, 0, 0)) == want
    near = float(weight)
    got = grid.nearest(np.array([[near]]))
    assert got.tobytes() == released(Fraction(near), 2.0**scale, 1.0).tobytes()


def test_a_weight_beyond_float32_is_reported() -> None:
    statistics = Statistics(1, 1)
    statistics.add(np.array([[1]]), np.array([[30000]]))
    solution = solve(statistics, ridge=0.0, scale=2.0**-130)
    assert solution.status is RidgeStatus.OUT_OF_RANGE
    assert not solution.proved
    with pytest.raises(ridge.EffaceError, match="float32"):
        solution.checked()


def test_the_integer_solver_finds_singular_matrices() -> None:
    statistics = Statistics(2, 1)
    statistics.add(np.array([[1, 1]]), np.array([[5]]))
    assert rational.solve_exactly(statistics, [Fraction(0)] * 2) is None
    assert rational.solve_exactly(statistics, [Fraction(1, 3)] * 2) == ((Fraction(15, 7),),) * 2


SCRIPT = """
import hashlib, sys, numpy as np, torch
from efface.parts.compact.exact_product import exact_product
from efface.parts.compact.ridge import solve
from efface.parts.compact.statistics import Statistics
rng = np.random.default_rng(5)
k = 600
rows = (rng.normal(size=(900, 40)) @ rng.normal(size=(40, k)) * 4).round().clip(-127, 127)
rows = (rows + rng.integers(-9, 10, rows.shape)).clip(-127, 127).astype(np.int8)
statistics = Statistics(k, 4)
statistics.add(rows, rng.integers(-9000, 9000, (900, 4)))
for ridge in (0.003, 0.2, 30.0):
    solution = solve(statistics, ridge=ridge, scale=2.0**-5, target_scale=2.0**-9)
    assert solution.proved
    logits = exact_product(rows, solution.theta, 2.0**-5)
    for values in (solution.theta.astype("<f4"), logits.astype("<f8")):
        print(hashlib.sha256(values.tobytes()).hexdigest())
"""
SETTINGS = [
    {"OMP_NUM_THREADS": "1"},
    {"OMP_NUM_THREADS": "2"},
    {"OPENBLAS_CORETYPE": "Nehalem"},
    {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "2"},
    {"MKL_CBWR": "COMPATIBLE"},
    {"MKL_CBWR": "AVX2,STRICT"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OMP_NUM_THREADS": "2"},
]


def test_one_digest_under_every_instruction_set_and_thread_count() -> None:
    clean = {k: v for k, v in os.environ.items() if not any(k in s for s in SETTINGS)}
    environment = {**clean, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**environment, **setting},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for setting in SETTINGS
    }
    assert len(digests) == 1
    assert len(set(digests.pop().split())) == 6  # three ridges, weights and predictions
