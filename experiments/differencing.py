"""Can two releases be told apart less? Accuracy against how often differencing names the deleted image.

    python experiments/differencing.py --data digits --out experiments/results/differencing-digits.json

A compact model is released, one image (or a batch) is deleted, the model is released again. Three attackers
rank all user images:

- ``outside``: predictions of both releases, nobody else known (``efface.audit.differencing``);
- ``matched``: also knows the noise's shape, and takes core data for everybody's;
- ``informed``: knows everything but which image it was, the true sums included: the best there can be.

Releases: the weights as they are; rounded to a grid; with noise of one size in all directions; with noise
s·(C + λI)^(−1/2), C the Gram matrix of core data scaled to n rows: small where it would move outputs, large
where it hardly does. Fresh noise each time, in both releases. A larger ridge is tried, too. Of batches, the
share of deleted images among as many first candidates is counted.
"""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import torch

from efface import __version__, files
from efface.audit.differencing import scores
from efface.pipeline.config import load_config
from efface.pipeline.train import Training

SCHEMA = "efface.experiment/differencing/1"
ATTACKERS = ("outside", "matched", "informed")


@dataclass(frozen=True)
class RidgeArrays:
    """The ridge problem in numbers: user rows and their targets, core rows, test rows."""

    user: np.ndarray  # (n, k)
    targets: np.ndarray  # (n, c)
    core: np.ndarray  # (m, k)
    core_targets: np.ndarray
    test: np.ndarray
    labels: np.ndarray
    ridge: float

    @classmethod
    def of(cls, spec: str, features: int, backbone: str | None = None) -> RidgeArrays:
        overrides = {"data.spec": spec, "user.features": features, "core.backbone": backbone}
        config = load_config(None, overrides)
        records = config.data.build()
        training = Training(config)
        core = training.core(records)
        training.fit_core(core, records)
        model = training.fit_user(core, records)
        user, n = model.user, len(records.user)
        assert model.data is not None
        assert model.data.rows is not None
        rows = model.data.rows.whole()
        real = rows.features * user.quantiser.scale
        targets = user.target_quantiser.dequantise(rows.targets)
        shown = user.rows(model.activations(records.test), core.labels(records.test))
        return cls(
            real[:n],
            targets[:n],
            real[n:],
            targets[n:],
            shown.features * user.quantiser.scale,
            records.test.labels,
            float(user.total_ridge),
        )

    def accuracy(self, theta: np.ndarray) -> float:
        return float(((self.test @ theta).argmax(1) == self.labels).mean())


class Problem:
    """The exact weights with all user rows, and without some, at one total ridge λ."""

    def __init__(self, setting: RidgeArrays, ridge: float) -> None:
        self.s, self.ridge = setting, ridge
        rows = np.concatenate([setting.user, setting.core])
        targets = np.concatenate([setting.targets, setting.core_targets])
        self.k = rows.shape[1]
        self.factor = scipy.linalg.cho_factor(rows.T @ rows + ridge * np.eye(self.k))
        self.pulled = scipy.linalg.cho_solve(self.factor, setting.user.T)  # H⁻¹ψ, (k, n)
        self.leverage = (setting.user * self.pulled.T).sum(1)
        self.theta = scipy.linalg.cho_solve(self.factor, rows.T @ targets)
        gram = setting.core.T @ setting.core * (len(rows) / len(setting.core))
        values, vectors = np.linalg.eigh(gram + ridge * np.eye(self.k))
        self.values, self.vectors = values, vectors
        self.core_leverage = ((setting.user @ vectors) ** 2 / values).sum(1)
        self.curved = self.whitened(self.pulled, 1.0)  # (C + λI) H⁻¹ψ, (k, n)

    def without(self, gone: np.ndarray) -> np.ndarray:
        """Θ of the others, by the identity of Woodbury."""
        x, pulled = self.s.user[gone], self.pulled[:, gone]
        theta = self.theta - pulled @ self.s.targets[gone]
        return theta + pulled @ np.linalg.solve(np.eye(len(gone)) - x @ pulled, x @ theta)

    def whitened(self, theta: np.ndarray, power: float) -> np.ndarray:
        """(C + λI)^power θ."""
        return self.vectors @ (self.values[:, None] ** power * (self.vectors.T @ theta))


@dataclass(frozen=True)
class Release:
    """``kind`` plain, rounded, noise or shaped; ``size`` is the grid's step or the noise's."""

    kind: str
    size: float = 0.0

    def __call__(self, problem: Problem, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.kind == "rounded":
            return np.rint(theta / self.size) * self.size
        if self.kind == "plain":
            return theta
        noise = rng.normal(size=theta.shape)
        return theta + self.size * (
            problem.whitened(noise, -0.5) if self.kind == "shaped" else noise
        )


def attack(
    problem: Problem, release: Release, before: np.ndarray, after: np.ndarray
) -> dict[str, np.ndarray]:
    """Every attacker's scores of all user images, (n,) each."""
    s, moved = problem.s, after - before
    outputs = s.user @ before, s.user @ after
    left = s.targets - outputs[1]
    size = np.linalg.norm(left, axis=1)
    along = -((outputs[1] - outputs[0]) * left).sum(1)
    shape = problem.core_leverage if release.kind == "shaped" else (s.user**2).sum(1)
    # The informed attacker knows what each deletion would have done: Δ_x = −H⁻¹ψ eᵀ/(1 − ℓ), and picks
    # the likeliest under the noise: 2⟨Δ, Δ_x⟩_M − ‖Δ_x‖²_M, M the noise's inverse covariance.
    pull = problem.pulled / (1 - problem.leverage)  # (k, n)
    error = s.targets - s.user @ problem.theta
    shaped = release.kind == "shaped"
    seen = problem.curved / (1 - problem.leverage) if shaped else pull
    inner = -((seen.T @ moved) * error).sum(1)
    own = (seen * pull).sum(0) * (error**2).sum(1)
    return {
        "outside": scores(*outputs, s.targets),
        "matched": along / np.maximum(size * np.sqrt(shape), 1e-300),
        "informed": 2 * inner - own,
    }


def measure(
    problem: Problem, release: Release, batch: int, trials: int, seed: int
) -> dict[str, Any]:
    """Accuracy of the release after, and the share of deleted images that each attacker names."""
    rng = np.random.default_rng((seed, batch))
    found: dict[str, list[float]] = {name: [] for name in ATTACKERS}
    right = []
    for _ in range(trials):
        gone = rng.choice(len(problem.s.user), batch, replace=False)
        exact = problem.without(gone)
        before, after = (release(problem, theta, rng) for theta in (problem.theta, exact))
        right.append(problem.s.accuracy(after))
        for name, values in attack(problem, release, before, after).items():
            first = np.argsort(-values, kind="stable")[:batch]
            found[name].append(len(set(first.tolist()) & set(gone.tolist())) / batch)
    return {
        "release": release.kind,
        "size": release.size,
        "ridge": problem.ridge,
        "batch": batch,
        "accuracy": float(np.mean(right)),
        "identified": {name: float(np.mean(values)) for name, values in found.items()},
        "by_chance": batch / len(problem.s.user),
    }


RELEASES = (
    Release("plain"),
    *(Release("rounded", step) for step in (0.05, 0.2, 0.5, 1.0, 2.0)),
    *(Release("noise", size) for size in (0.02, 0.05, 0.1, 0.2, 0.5)),
    *(Release("shaped", size) for size in (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)),
)
RIDGES = (10.0, 100.0, 1000.0)  # times the one chosen on core data


def run(
    setting: RidgeArrays, trials: int, batches: tuple[int, ...], seed: int
) -> list[dict[str, Any]]:
    problem = Problem(setting, setting.ridge)
    rows = [measure(problem, release, 1, trials, seed) for release in RELEASES]
    for batch in batches:
        chosen = (Release("plain"), *(r for r in RELEASES if r.kind == "shaped"))
        rows += [measure(problem, release, batch, max(trials // 4, 5), seed) for release in chosen]
    for factor in RIDGES:
        strong = Problem(setting, factor * setting.ridge)
        chosen = (Release("plain"), Release("shaped", 0.5), Release("shaped", 1.0))
        rows += [measure(strong, release, 1, trials, seed) for release in chosen]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--backbone")
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--batches", type=int, nargs="*", default=[5, 20])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start = time.monotonic()
    setting = RidgeArrays.of(args.data, args.features, args.backbone)
    rows = run(setting, args.trials, tuple(args.batches), args.seed)
    print(f"{'release':>9} {'size':>6} {'ridge':>8} {'batch':>5} {'accuracy':>8}  identified by")
    for row in rows:
        named = "  ".join(f"{name} {100 * row['identified'][name]:5.1f} %" for name in ATTACKERS)
        print(
            f"{row['release']:>9} {row['size']:6g} {row['ridge']:8g} {row['batch']:5d} "
            f"{100 * row['accuracy']:6.1f} %  {named}"
        )
    if args.out is not None:
        values = {
            "schema": SCHEMA,
            "data": args.data,
            "features": int(setting.user.shape[1]),
            "candidates": len(setting.user),
            "trials": args.trials,
            "seed": args.seed,
            "rows": rows,
            "seconds": round(time.monotonic() - start, 1),
            "environment": {
                "efface": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
        }
        files.write_json(args.out, values)


if __name__ == "__main__":
    main()
