"""How good an attack is: ROC, AUC, TPR at a small FPR, and what it proves about ε.

An attack gives every trial a score; high means "was a member". ``members`` and ``others`` are the scores of
the trials in which the record was, and was not, trained on. All functions are pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, binom, norm, rankdata

Floats = NDArray[np.float64]
FPRS = (0.001, 0.01)
CERTAINTY = 0.9999


@dataclass(frozen=True, eq=False)
class Roc:
    """One point a distinct threshold, from (0, 0) to (1, 1)."""

    fpr: Floats
    tpr: Floats

    def tpr_at(self, fpr: float) -> float:
        """The largest TPR of a threshold whose FPR is at most ``fpr``."""
        return float(self.tpr[self.fpr <= fpr].max())

    def thinned(self, size: int = 200) -> Roc:
        """At most about ``size`` points, spread evenly over log FPR, for drawing."""
        if len(self.fpr) <= size:
            return self
        low = max(float(self.fpr[self.fpr > 0].min(initial=1.0)), 1e-6)
        wanted = np.searchsorted(self.fpr, np.geomspace(low, 1.0, size), side="right") - 1
        index = np.unique(np.concatenate([[0], wanted, [len(self.fpr) - 1]]))
        return Roc(self.fpr[index], self.tpr[index])


def roc(members: ArrayLike, others: ArrayLike) -> Roc:
    """TPR(t) = P(member ≥ t), FPR(t) = P(other ≥ t), for every t that occurs."""
    scores, is_member = _joined(members, others)
    order = np.argsort(-scores, kind="stable")
    scores, is_member = scores[order], is_member[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)  # of each run of ties
    hits, alarms = np.cumsum(is_member)[last], np.cumsum(~is_member)[last]
    tpr = np.concatenate([[0.0], hits / max(int(is_member.sum()), 1)])
    fpr = np.concatenate([[0.0], alarms / max(int((~is_member).sum()), 1)])
    return Roc(fpr, tpr)


def auc(members: ArrayLike, others: ArrayLike) -> float:
    """P(member > other) + ½ P(member = other): the Mann–Whitney statistic over n₁ n₀."""
    scores, is_member = _joined(members, others)
    n1, n0 = int(is_member.sum()), int((~is_member).sum())
    if n1 == 0 or n0 == 0:
        raise ValueError("an AUC needs scores of members and of others")
    return float((rankdata(scores)[is_member].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def chance_interval(
    members: ArrayLike, others: ArrayLike, confidence: float = 0.95
) -> tuple[float, float]:
    """Where the AUC lies with this probability if membership has nothing to do with the scores.

    Given the scores (ties t of them at one value), AUC has mean ½ and variance
    (N + 1 − Σ(t³ − t)/(N(N − 1))) / (12 n₁ n₀) over all assignments of membership; normal beyond that.
    It holds however the scores depend on each other, because membership was decided by coins.
    """
    scores, is_member = _joined(members, others)
    n, n1 = len(scores), int(is_member.sum())
    ties = np.unique(scores, return_counts=True)[1].astype(float)
    correction = float((ties**3 - ties).sum()) / (n * (n - 1))
    deviation = math.sqrt(max(n + 1 - correction, 0.0) / (12 * n1 * (n - n1)))
    half = float(norm.ppf(0.5 + confidence / 2)) * deviation
    return 0.5 - half, 0.5 + half


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a proportion: Beta(k, n−k+1) and Beta(k+1, n−k) quantiles."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n}")
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(beta.ppf(1 - tail, successes + 1, n - successes))
    return low, high


def epsilon_lower_bound(
    hits: int, n1: int, alarms: int, n0: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """ε ≥ ln((TPR − δ)/FPR) and ≥ ln((TNR − δ)/FNR), with Clopper–Pearson ends of both rates.

    For independent trials and a threshold fixed beforehand. Each of the two rates may err with half of
    1 − confidence; both inequalities are read off the same two intervals, so they hold together.
    """
    tpr_low, _ = clopper_pearson(hits, n1, confidence)
    _, fpr_high = clopper_pearson(alarms, n0, confidence)
    best = 0.0
    for gain, loss in ((tpr_low, fpr_high), (1 - fpr_high, 1 - tpr_low)):
        if gain - delta > 0 and loss > 0:
            best = max(best, math.log((gain - delta) / loss))
    return best


def guesses_epsilon_bound(
    correct: int, guesses: int, trials: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """The largest ε that ``correct`` of ``guesses`` guesses contradict (Steinke, Nasr and Jagielski 2023).

    ``trials`` records were each included by a coin of their own, in one run or many; the attacker guesses
    for some and abstains for the rest. Under (ε, δ) the number of right guesses V satisfies

        P(V ≥ v) ≤ P(B ≥ v) + δ m max_i (2/i) P(v − i ≤ B < v),   B ~ Bin(r, e^ε/(1 + e^ε)),

    so every ε for which this is at most 1 − confidence is refuted. Guesses need not be independent.
    """
    if not 0 <= correct <= guesses <= trials:
        raise ValueError(f"{correct} right of {guesses} guesses in {trials} trials")
    if guesses == 0 or _likelihood(0.0, correct, guesses, trials, delta) > 1 - confidence:
        return 0.0
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        refuted = _likelihood(middle, correct, guesses, trials, delta) <= 1 - confidence
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _likelihood(epsilon: float, correct: int, guesses: int, trials: int, delta: float) -> float:
    share = 1 / (1 + math.exp(-epsilon))
    plain = float(binom.sf(correct - 1, guesses, share))
    if delta == 0 or correct == 0:
        return plain
    steps = np.arange(1, correct + 1)
    between = binom.cdf(correct - 1, guesses, share) - binom.cdf(
        correct - 1 - steps, guesses, share
    )
    return plain + delta * trials * float((2 / steps * between).max())


@dataclass(frozen=True, eq=False)
class Verdict:
    """What an attack achieved. ``epsilon_bound`` is proved with 95 % confidence, from its guesses;
    ``refuted_epsilon_bound`` with ``CERTAINTY``: what a claim is held against, since many attacks on many
    methods would otherwise contradict a true one now and then."""

    auc: float
    chance: tuple[float, float]
    tpr: dict[str, float]
    epsilon_bound: float
    refuted_epsilon_bound: float
    num_trials: int
    curve: Roc
    members: Floats
    others: Floats

    @property
    def at_chance(self) -> bool:
        return self.chance[0] <= self.auc <= self.chance[1]

    def to_dict(self) -> dict[str, Any]:
        curve = self.curve.thinned()
        return {
            "auc": self.auc,
            "chance": list(self.chance),
            "tpr": self.tpr,
            "epsilon_bound": self.epsilon_bound,
            "refuted_epsilon_bound": self.refuted_epsilon_bound,
            "num_trials": self.num_trials,
            "at_chance": self.at_chance,
            "fpr": curve.fpr.tolist(),
            "tprs": curve.tpr.tolist(),
            "members": thin(self.members),
            "others": thin(self.others),
        }


def judge(
    scores: ArrayLike, included: ArrayLike, *, delta: float = 0.0, guess_share: float = 0.5
) -> Verdict:
    """All numbers of one attack. ``scores`` and ``included`` have one entry a trial, of any shape.

    Guesses for ε: the ``guess_share`` / 2 highest scores are called members, as many lowest non-members.
    The share is fixed beforehand and the ranking does not look at ``included``, so the bound holds.
    """
    flat, truth = np.ravel(np.asarray(scores, float)), np.ravel(np.asarray(included, bool))
    members, others = flat[truth], flat[~truth]
    curve = roc(members, others)
    correct, guesses = _guess(flat, truth, guess_share)
    return Verdict(
        auc(members, others),
        chance_interval(members, others),
        {f"{fpr:g}": curve.tpr_at(fpr) for fpr in FPRS},
        guesses_epsilon_bound(correct, guesses, len(flat), delta),
        guesses_epsilon_bound(correct, guesses, len(flat), delta, CERTAINTY),
        len(flat),
        curve,
        members,
        others,
    )


def _guess(scores: Floats, truth: NDArray[np.bool_], share: float) -> tuple[int, int]:
    each = round(share / 2 * len(scores))
    # Ties are broken by a shuffle: in the order of the trials, a constant score could look informed.
    shuffled = np.random.default_rng(0).permutation(len(scores))
    order = shuffled[np.argsort(scores[shuffled], kind="stable")]
    right = int((~truth[order[:each]]).sum()) + int(truth[order[len(order) - each :]].sum())
    return right, 2 * each


def thin(values: Floats, size: int = 400) -> list[float]:
    """At most ``size`` quantiles, for histograms in a report."""
    if len(values) <= size:
        return np.sort(values).tolist()
    return np.quantile(values, np.linspace(0, 1, size)).tolist()


def _joined(members: ArrayLike, others: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    a, b = np.ravel(np.asarray(members, float)), np.ravel(np.asarray(others, float))
    scores = np.concatenate([a, b])
    if np.isnan(scores).any():
        raise ValueError("an attack's scores must be numbers")
    return scores, np.repeat([True, False], [len(a), len(b)])
