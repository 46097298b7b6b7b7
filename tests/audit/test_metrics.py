"""Metrics against scikit-learn and scipy, and bounds against simulated mechanisms that meet them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, mannwhitneyu
from sklearn.metrics import roc_auc_score, roc_curve

from efface.audit import metrics

scores = st.lists(st.integers(-5, 5), min_size=2, max_size=40)


@settings(max_examples=60, deadline=None)
@given(scores, scores)
def test_auc_and_roc_are_those_of_scikit_learn(members: list[int], others: list[int]) -> None:
    truth = [1] * len(members) + [0] * len(others)
    assert metrics.auc(members, others) == pytest.approx(roc_auc_score(truth, members + others))
    fpr, tpr, _ = roc_curve(truth, members + others, drop_intermediate=False)
    mine = metrics.roc(members, others)
    np.testing.assert_allclose(mine.fpr, fpr)
    np.testing.assert_allclose(mine.tpr, tpr)


@settings(max_examples=40, deadline=None)
@given(scores, scores)
def test_the_chance_interval_is_the_mann_whitney_test(a: list[int], b: list[int]) -> None:
    low, high = metrics.chance_interval(a, b, confidence=0.9)
    if low == high:
        assert len(set(a + b)) == 1
        return
    p = mannwhitneyu(a, b, method="asymptotic", use_continuity=False).pvalue
    if abs(p - 0.1) > 1e-9:
        assert (low <= metrics.auc(a, b) <= high) == (p >= 0.1)


@pytest.mark.parametrize(("k", "n"), [(0, 7), (7, 7), (3, 50), (499, 500)])
def test_clopper_pearson_is_scipys_exact_interval(k: int, n: int) -> None:
    interval = binomtest(k, n).proportion_ci(0.95, method="exact")
    assert metrics.clopper_pearson(k, n) == pytest.approx((interval.low, interval.high))


def test_epsilon_bounds_from_counts() -> None:
    low, high = (
        binomtest(90, 100).proportion_ci(0.95).low,
        binomtest(2, 100).proportion_ci(0.95).high,
    )
    assert metrics.epsilon_lower_bound(90, 100, 2, 100) == pytest.approx(math.log(low / high))
    # seen from the other side, the same attack is as good
    mirrored = metrics.epsilon_lower_bound(98, 100, 10, 100)
    assert mirrored == pytest.approx(metrics.epsilon_lower_bound(90, 100, 2, 100), rel=1e-9)
    assert metrics.epsilon_lower_bound(50, 100, 50, 100) == 0
    assert metrics.epsilon_lower_bound(90, 100, 2, 100, delta=0.1) < math.log(low / high)


def test_without_delta_the_guesses_bound_is_clopper_pearson_on_the_share_of_right_guesses() -> None:
    share = binomtest(95, 100).proportion_ci(0.90, method="exact").low  # one side of 5 %
    bound = metrics.guesses_epsilon_bound(95, 100, 400)
    assert bound == pytest.approx(math.log(share / (1 - share)), abs=1e-6)
    assert metrics.guesses_epsilon_bound(50, 100, 400) == 0
    assert metrics.guesses_epsilon_bound(95, 100, 400, delta=1e-5) < bound
    assert metrics.guesses_epsilon_bound(95, 100, 400, confidence=0.9999) < bound


def test_the_guesses_bound_seldom_exceeds_a_true_epsilon() -> None:
    """Randomised response is exactly ε-private: at 95 % at most about one run in twenty may err."""
    rng, epsilon = np.random.default_rng(0), 1.0
    right = rng.binomial(200, 1 / (1 + math.exp(-epsilon)), size=200)
    wrong = np.mean([metrics.guesses_epsilon_bound(int(v), 200, 200) > epsilon for v in right])
    assert wrong <= 0.1  # 5 % and three standard errors of 200 runs


def test_a_constant_score_is_chance_and_proves_nothing() -> None:
    coins = np.arange(100) % 2 == 0
    verdict = metrics.judge(np.zeros(100), coins)
    assert verdict.auc == 0.5
    assert verdict.at_chance
    assert verdict.refuted_epsilon_bound == 0
    assert verdict.tpr == {"0.001": 0.0, "0.01": 0.0}


def test_a_perfect_score_is_found_out() -> None:
    coins = np.random.default_rng(0).random(200) < 0.5
    verdict = metrics.judge(coins.astype(float), coins)
    assert verdict.auc == 1.0
    assert not verdict.at_chance
    assert verdict.epsilon_bound > verdict.refuted_epsilon_bound > 2
    values = verdict.to_dict()
    assert values["fpr"][0] == values["tprs"][0] == 0


def test_a_thinned_curve_keeps_its_ends_and_lies_on_the_curve() -> None:
    rng = np.random.default_rng(0)
    curve = metrics.roc(rng.normal(1, 1, 3000), rng.normal(0, 1, 3000))
    thinned = curve.thinned(50)
    assert len(thinned.fpr) <= 53
    assert (thinned.fpr[0], thinned.tpr[-1]) == (0, 1)
    points = set(zip(curve.fpr.tolist(), curve.tpr.tolist(), strict=True))
    assert set(zip(thinned.fpr.tolist(), thinned.tpr.tolist(), strict=True)) <= points


def test_nonsense_is_refused() -> None:
    for bad in (lambda: metrics.clopper_pearson(3, 2), lambda: metrics.auc([], [1.0])):
        with pytest.raises(ValueError, match=r"successes of|needs scores"):
            bad()
    with pytest.raises(ValueError, match="numbers"):
        metrics.auc([float("nan")], [1.0])
