"""Ten records are deleted: how long until there is a model without them, and who is faster below which n?

    python benchmarks/after_deletion.py --features 4096 --classes 40 --sizes 1000 4000 10000

The same rows for all, as numbers in memory (features are cached: nobody computes the network again). Peers as
their users run them: scikit-learn's ``Ridge`` and ``LogisticRegression`` fitted again on what is left; SISA's
way, ten shards by person with a ridge each, of which the one with the deleted records is fitted again;
recursive least squares, the form of analytic unlearning: (G + λI)⁻¹ in float64, corrected by Woodbury's
formula. Ours is all of ``MixedLinear.forget``: exact sums, proved weights, digest and certificate. Labels
come from a linear teacher, so that the classifiers have something to find.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from limits import Limits
from outcome import Outcome, medians, turns
from sklearn.linear_model import LogisticRegression, Ridge

import workspace

GONE = 10  # records of one person, as workspace.py has them
SHARDS, BLOCK = 10, 4096
OURS = "efface"
RIDGE, LOGISTIC = "scikit-learn Ridge", "scikit-learn LogisticRegression"
SISA, RECURSIVE = f"SISA, one of {SHARDS} shards", "recursive least squares, float64"
AGAIN = "efface, all again from cached rows"


class Recursive:
    """(G + λI)⁻¹ and B, corrected for rows that go: W = (G + λI)⁻¹ B."""

    def __init__(
        self, features: np.ndarray, scale: np.ndarray, y: np.ndarray, ridge: float
    ) -> None:
        self.scale = scale
        gram, self.cross = ridge * np.eye(len(scale)), np.zeros((len(scale), y.shape[1]))
        for start in range(0, len(y), BLOCK):
            rows = features[start : start + BLOCK] * scale
            gram += rows.T @ rows
            self.cross += rows.T @ y[start : start + BLOCK]
        self.inverse = np.linalg.inv(gram)

    def without(self, features: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The weights once these rows are gone."""
        rows = features * self.scale
        turned = self.inverse @ rows.T  # (k, b)
        middle = np.linalg.inv(np.eye(len(rows)) - rows @ turned)
        self.inverse += turned @ middle @ turned.T
        self.cross -= rows.T @ y
        return self.inverse @ self.cross


class Case:
    """``n`` rows, everybody's model of them, and deletions one person at a time."""

    def __init__(self, n: int, k: int, c: int, slow: bool) -> None:
        self.net = workspace.network(k)
        self.model = workspace.fitted(n, self.net, k, c, teach(n, k, c))
        data = self.model.data
        assert data is not None
        assert data.rows is not None
        rows, user = data.rows.whole(), self.model.user
        self.x = (rows.features * user.quantiser.scale).astype(np.float32)
        self.y = user.target_quantiser.dequantise(rows.targets)
        self.labels, self.ridge = np.array(data.indices), user.total_ridge
        self.keep = np.ones(n, dtype=bool)
        self.next = 0
        self.features = rows.features
        self.recursive = Recursive(self.features, user.quantiser.scale, self.y, self.ridge)
        self.ways: dict[str, Callable[[], object]] = {
            OURS: self.forget,
            RECURSIVE: self.correct,
            RIDGE: self.refit,
            SISA: self.refit_shard,
            AGAIN: self.again,
        }
        if slow:
            self.ways[LOGISTIC] = self.classify

    def forget(self) -> None:
        """The others then do without the same person."""
        self.gone = np.arange(GONE * self.next, GONE * (self.next + 1))
        self.model.forget(owner=f"user-{self.next}")
        self.keep[self.gone] = False
        self.next += 1

    def correct(self) -> None:
        self.weights = self.recursive.without(self.features[self.gone], self.y[self.gone])

    def refit(self) -> None:
        Ridge(alpha=self.ridge).fit(self.x[self.keep], self.y[self.keep])

    def refit_shard(self) -> None:
        mine = (np.arange(len(self.x)) // GONE) % SHARDS == self.gone[0] // GONE % SHARDS
        some = self.keep & mine
        Ridge(alpha=self.ridge).fit(self.x[some], self.y[some])

    def classify(self) -> None:
        with warnings.catch_warnings():  # 100 iterations are its default, whether it is done or not
            warnings.simplefilter("ignore")
            LogisticRegression().fit(self.x[self.keep], self.labels[self.keep])

    def again(self) -> None:
        data = self.model.data
        assert data is not None
        self.model.user.learn(data)

    def off(self) -> float:
        """The share of the recursive weights that are not the exact ones, both rounded to float32."""
        return float((self.weights.astype(np.float32) != self.model.user.theta).mean())


def teach(n: int, k: int, c: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of integers, targets and labels that follow from the rows, and some noise."""
    generator = np.random.default_rng(0)
    features = generator.integers(-127, 128, (n, k), dtype=np.int8)
    teacher = generator.standard_normal((k, c)).astype(np.float32)
    scores = np.concatenate(
        [part.astype(np.float32) @ teacher for part in np.array_split(features, max(n // 4096, 1))]
    )
    scores += 0.3 * scores.std() * generator.standard_normal(scores.shape).astype(np.float32)
    labels = scores.argmax(1)
    targets = np.full((n, c), -400, np.int16)
    targets[np.arange(n), labels] = 3600
    return features, targets, labels


def measure(n: int, k: int, c: int, rounds: int, slow: bool) -> dict[str, Any]:
    case = Case(n, k, c, slow)
    times = medians(turns(case.ways, rounds))
    return {"n": n, "seconds": times, "recursive_weights_that_differ": case.off()}


def crossing(runs: list[dict[str, Any]], peer: str) -> dict[str, int | None]:
    """The largest n at which the peer wins, and the least from which on ours does."""
    wins = [run["n"] for run in runs if run["seconds"][peer] < run["seconds"][OURS]]
    ours = [run["n"] for run in runs if run["n"] > max(wins, default=0)]
    return {"peer_wins_up_to": max(wins, default=None), "ours_from": min(ours, default=None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 4000, 10_000])
    parser.add_argument("--slow-up-to", type=int, default=1000, help="n of LogisticRegression")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    k, c, limits = args.features, args.classes, Limits.measured()
    runs = [measure(n, k, c, args.rounds, n <= args.slow_up_to) for n in args.sizes]
    last = runs[-1]["seconds"]
    peers = [name for name in runs[0]["seconds"] if name != OURS]
    at = {peer: next((r for r in runs[::-1] if peer in r["seconds"]), runs[0]) for peer in peers}
    ratio = {
        f"{peer} / ours, n = {run['n']}": run["seconds"][peer] / run["seconds"][OURS]
        for peer, run in at.items()
    }
    bound = limits.request_seconds(k, c)
    Outcome(
        name="after-deletion",
        question="Ten records are deleted: how long until there is a model without them?",
        setting={"features": k, "classes": c, "deleted": GONE, "rounds": args.rounds},
        ours={OURS: last[OURS]},
        peers={peer: run["seconds"][peer] for peer, run in at.items()},
        ratios=ratio,
        limit={
            "what": "a new float32 factor at the speed of a product, sums read and written once",
            "seconds": bound,
            "fraction_reached": bound / last[OURS],
        },
        notes=[
            f"{RIDGE}: {_words(crossing(runs, RIDGE))}.",
            f"{RECURSIVE}: {runs[-1]['recursive_weights_that_differ']:.2%} of its weights are not those of "
            "training again, rounded to float32, after these few requests; it has no proof of either.",
            f"{SISA}: an ensemble of {SHARDS} models on a tenth each; predicting costs {SHARDS} ×.",
        ],
        guards={f"{AGAIN} / ours, n = {runs[-1]['n']}": 1.0},
        series={
            "x": "records",
            "y": "seconds",
            "at": args.sizes,
            "lines": {name: [run["seconds"].get(name) for run in runs] for name in (OURS, *peers)},
        },
        details={"runs": runs, "crossings": {peer: crossing_of(runs, peer) for peer in peers}},
    ).write(args.out)


def crossing_of(runs: list[dict[str, Any]], peer: str) -> dict[str, int | None]:
    return crossing([run for run in runs if peer in run["seconds"]], peer)


def _words(found: dict[str, int | None]) -> str:
    if found["peer_wins_up_to"] is None:
        return "slower at every n that was measured"
    if found["ours_from"] is None:
        return f"faster at every n that was measured, up to {found['peer_wins_up_to']:,}"
    return f"faster up to n = {found['peer_wins_up_to']:,}, slower from {found['ours_from']:,} on"


if __name__ == "__main__":
    main()
