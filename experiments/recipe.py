"""How compact's recipe was chosen: cross-validation on core data; test data are never looked at.

    python experiments/recipe.py --data ../shared/data/cub40 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations --seeds 0 1 2

For each whitening exponent (and, if asked for, another resizing or mirrored views): the accuracy on held-out
core images, nine folds, at each ridge λ; and what three rules for choosing λ inside the other eight folds
come to. Bases and scales see all core images, but no labels. Writes experiments/results/recipe-NAME.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from accuracy import Setting
from common import RESULTS, Results, name_of, parser

from efface.linear.projection import Projection
from efface.parts.compact.calibration import folds_of

RIDGES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.6, 1.0, 2.0, 5.0, 10.0)
FOLDS = 9
Scores = tuple[np.ndarray, np.ndarray]  # right answers and squared errors, a number a ridge


def scores(kernel: np.ndarray, labels: np.ndarray, num_classes: int, fold: np.ndarray) -> Scores:
    """On held-out folds, for every ridge."""
    targets = 5.0 * np.eye(num_classes)[labels]
    right, error = np.zeros(len(RIDGES)), np.zeros(len(RIDGES))
    for held_out in np.unique(fold):
        seen, unseen = fold != held_out, fold == held_out
        values, vectors = np.linalg.eigh(kernel[np.ix_(seen, seen)])
        across, turned = kernel[np.ix_(unseen, seen)] @ vectors, vectors.T @ targets[seen]
        for i, ridge in enumerate(RIDGES):
            guess = across @ (turned / (values + ridge)[:, None])
            right[i] += (guess.argmax(1) == labels[unseen]).sum()
            error[i] += np.square(guess - targets[unseen]).sum()
    return right / len(labels), error / len(labels)


def one_standard_error(right: np.ndarray, _: np.ndarray, n: int) -> int:
    best = right.max()
    return int(np.flatnonzero(right >= best - np.sqrt(best * (1 - best) / n))[-1])


RULES: dict[str, Callable[[np.ndarray, np.ndarray, int], int]] = {
    "most right": lambda right, _, n: int(right.argmax()),
    "largest within a standard error": one_standard_error,
    "least squared error": lambda _, error, n: int(error.argmin()),
}


def ruled(kernel: np.ndarray, labels: np.ndarray, num_classes: int) -> dict[str, float]:
    """Each fold is answered with the ridge that a rule picks on the other folds."""
    outer, targets = folds_of(labels, FOLDS), 5.0 * np.eye(num_classes)[labels]
    right = dict.fromkeys(RULES, 0)
    for held_out in range(FOLDS):
        seen, unseen = outer != held_out, outer == held_out
        inside = kernel[np.ix_(seen, seen)]
        found = scores(inside, labels[seen], num_classes, folds_of(labels[seen], 5))
        for rule, pick in RULES.items():
            ridge = RIDGES[pick(*found, int(seen.sum()))]
            dual = np.linalg.solve(inside + ridge * np.eye(len(inside)), targets[seen])
            guess = (kernel[np.ix_(unseen, seen)] @ dual).argmax(1)
            right[rule] += int((guess == labels[unseen]).sum())
    return {rule: count / len(labels) for rule, count in right.items()}


def run(setting: Setting, features: int, whiten: float) -> dict[str, Any]:
    core, x = setting.core, setting.tensor(setting.data.core)
    projection = Projection.build(core.tail, x, features, whiten=whiten)
    rows = projection.rows(core.tail, x).double().numpy()
    labels, num_classes = core.labels(setting.data.core).numpy(), len(core.classes)
    kernel = rows @ rows.T
    right, _ = scores(kernel, labels, num_classes, folds_of(labels, FOLDS))
    by_ridge = {f"{ridge:g}": float(share) for ridge, share in zip(RIDGES, right, strict=True)}
    return {"accuracy": by_ridge, "ruled": ruled(kernel, labels, num_classes)}


def table(results: dict[str, Any]) -> str:
    """Means over seeds, as Markdown."""
    variants = list(dict.fromkeys(key.rpartition("/")[0] for key in results))
    lines = ["| recipe | best λ: accuracy | " + " | ".join(RULES) + " |", "|---|---|---|---|---|"]
    for variant in variants:
        rows = [v for k, v in results.items() if k.rpartition("/")[0] == variant]
        mean = {r: np.mean([row["accuracy"][r] for row in rows]) for r in rows[0]["accuracy"]}
        best = max(mean, key=lambda r: mean[r])
        ruled = [100 * np.mean([row["ruled"][rule] for row in rows]) for rule in RULES]
        shown = " | ".join(f"{value:.1f} %" for value in ruled)
        lines.append(f"| {variant} | {best}: {100 * mean[best]:.1f} % | {shown} |")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--features", type=int, default=14337)
    options.add_argument("--whiten", type=float, nargs="+", default=[0.0, 0.5, 0.75, 1.0])
    args = options.parse_args()
    path = args.out or RESULTS / f"recipe-{name_of(args.data)}.json"
    keys = ("core_fraction", "linearize", "leaky_slope", "features")
    results = Results(path, {key: getattr(args, key) for key in keys}, show=False)
    size = f"resize {args.resize or 'as the network says'}"
    for seed in args.seeds:
        setting = Setting(args, seed, train_core=False)
        for features, whiten in [(0, 0.0), *((args.features, q) for q in args.whiten)]:
            part = f"whiten {whiten:g}" if features else "last layer"
            name = f"{part}, {'mirrored, ' if args.mirror else ''}{size}/{seed}"
            if name not in results:
                results.put(name, run(setting, features, whiten))
    print(table(results.values["results"]))


if __name__ == "__main__":
    main()
