"""How compact's features were chosen: on core images, and on other classes; never on test images.

    python experiments/feature_choice.py --data ../shared/data/cub160 --every-class 4 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations
    python experiments/feature_choice.py --data ../shared/data/cub40 --core-only --seeds 0 1 2 …

A development set (other classes than those that are reported on): bases, weights and λ come from its
core part, and each third of its other training images is scored by a fit on all the rest. Or, with
--core-only, core images alone: each third is scored by what the other two thirds decide and fit. In float32.
Writes experiments/results/feature-choice-NAME.json and prints a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from common import RESULTS, Results, name_of, parser
from scipy.special import log_softmax

from efface import Core, Records
from efface.data.preprocess import Preprocess
from efface.linear.projection import COVARIANCES, GRADIENTS, MAPS, MOMENTS, Projection
from efface.parts.compact.calibration import RIDGES, folds_of
from efface.parts.compact.power_map import PowerMap, powers_of, weights_of

FEATURES, PARTS = 4096, 3
SHARPNESSES = tuple(10.0**k for k in np.arange(-0.5, 2, 0.125))


@dataclass(frozen=True)
class Variant:
    """What z is made of. ``weight`` None: equal parts before the power (as without one)."""

    layers: str | None
    power: float
    weight: float | None = None


VARIANTS = {
    "pooled": Variant(None, 1.0),
    "pooled, √": Variant(None, 0.5, 1.0),
    "gradients": Variant(GRADIENTS, 1.0),
    "gradients, √, 1": Variant(GRADIENTS, 0.5, 1.0),
    "gradients, √, ½": Variant(GRADIENTS, 0.5, 0.5),
    "gradients, √, ¼": Variant(GRADIENTS, 0.5, 0.25),
    "moments": Variant(MOMENTS, 1.0),
    "moments, √, 1": Variant(MOMENTS, 0.5, 1.0),
    "moments, √, ½": Variant(MOMENTS, 0.5, 0.5),
    "moments, √, ¼": Variant(MOMENTS, 0.5, 0.25),
    "moments, ¾, ¼": Variant(MOMENTS, 0.75, 0.25),
    "maps, √, ½": Variant(MAPS, 0.5, 0.5),
    "maps, √, ⅓": Variant(MAPS, 0.5, 1 / 3),
    "maps, √, ¼": Variant(MAPS, 0.5, 0.25),
    "covariances, ½": Variant(COVARIANCES, 0.5, 0.5),
    "covariances, 0.7": Variant(COVARIANCES, 0.5, 0.7),
    "covariances, 1": Variant(COVARIANCES, 0.5, 1.0),
}


@dataclass(frozen=True)
class Trial:
    """Which samples decide bases, weights and λ; which are fitted; which are scored."""

    deciding: np.ndarray
    fitted: np.ndarray
    scored: np.ndarray


def development(labels: np.ndarray, core: np.ndarray) -> list[Trial]:
    part = folds_of(labels, PARTS)
    scored = [np.flatnonzero(~core & (part == i)) for i in range(PARTS)]
    everyone = np.arange(len(labels))
    return [Trial(np.flatnonzero(core), np.setdiff1d(everyone, s), s) for s in scored]


def core_only(labels: np.ndarray) -> list[Trial]:
    part = folds_of(labels, PARTS)
    inside = [np.flatnonzero(part != i) for i in range(PARTS)]
    return [Trial(s, s, np.flatnonzero(part == i)) for i, s in enumerate(inside)]


class Psi:
    """ψ of all images, by the samples that decide its bases: computed once for all powers and weights."""

    def __init__(self, core: Core, records: Records, cache: str) -> None:
        self.tail, self.x = core.tail, core.activations(records, core.cache(cache))
        self.kept: dict[Any, tuple[Projection, np.ndarray]] = {}

    def of(self, layers: str | None, deciding: np.ndarray) -> tuple[Projection, np.ndarray]:
        key = (layers, deciding.tobytes())
        if key not in self.kept:
            self.kept = {k: v for k, v in self.kept.items() if k[0] == layers}
            size = FEATURES if layers else 0
            kind = layers or MOMENTS
            calibration = self.x.select(deciding)  # type: ignore[attr-defined]
            made = Projection.build(self.tail, calibration, size, layer_features=kind)
            self.kept[key] = made, made.rows(self.tail, self.x).double().numpy()
        return self.kept[key]


def mapped(psi: Psi, variant: Variant, deciding: np.ndarray) -> np.ndarray:
    """z of all images, centred."""
    projection, rows = psi.of(variant.layers, deciding)
    if variant.weight is not None:
        powers = powers_of(projection, variant.power)
        weights = weights_of(projection, variant.weight)
        rows = PowerMap.fit(rows[deciding], powers, projection.part_sizes, weights=weights)(rows)
    centre = rows[deciding].mean(0)
    centre[projection.bias] = 0
    return rows - centre


def right_answers(z: np.ndarray, labels: np.ndarray, trial: Trial) -> tuple[int, float, float]:
    """How many of the scored are right at the λ of least squared error among the deciding, that λ, and the
    sum of their cross-entropies: far steadier than the count."""
    kernel, targets = z @ z.T, 5.0 * np.eye(labels.max() + 1)[labels]
    fold, error = folds_of(labels[trial.deciding], 5), np.zeros(len(RIDGES))
    for i in np.unique(fold):
        seen, unseen = trial.deciding[fold != i], trial.deciding[fold == i]
        guesses = _guesses(kernel, targets, seen, unseen, RIDGES)
        error += [np.square(g - targets[unseen]).sum() for g in guesses]
    ridge = RIDGES[int(error.argmin())]
    (guess,) = _guesses(kernel, targets, trial.fitted, trial.scored, (ridge,))
    truth = labels[trial.scored]
    return int((guess.argmax(1) == truth).sum()), ridge, cross_entropy(guess, truth)


def cross_entropy(guess: np.ndarray, truth: np.ndarray) -> float:
    """Σ −log softmax(T · guess)[truth], at the best sharpness T."""
    at = np.arange(len(truth)), truth
    return float(min(-log_softmax(t * guess, axis=1)[at].sum() for t in SHARPNESSES))


def _guesses(
    kernel: np.ndarray,
    targets: np.ndarray,
    seen: np.ndarray,
    unseen: np.ndarray,
    ridges: tuple[float, ...],
) -> list[np.ndarray]:
    values, vectors = np.linalg.eigh(kernel[np.ix_(seen, seen)])
    across, turned = kernel[np.ix_(unseen, seen)] @ vectors, vectors.T @ targets[seen]
    return [across @ (turned / (values + ridge)[:, None]) for ridge in ridges]


def table(results: dict[str, Any]) -> str:
    """Means over splits, as Markdown."""
    lines = ["| features | right on held-out images | cross-entropy | λ |", "|---|---|---|---|"]
    for name in VARIANTS:
        rows = [v for k, v in results.items() if k.rpartition("/")[0] == name]
        if rows:
            share = sum(r["right"] for r in rows) / sum(r["answers"] for r in rows)
            ridges = ", ".join(f"{v:g}" for v in sorted({v for r in rows for v in r["ridges"]}))
            known = all("loss" in r for r in rows)
            loss = sum(r["loss"] for r in rows) / sum(r["answers"] for r in rows) if known else None
            text = "" if loss is None else f"{loss:.3f}"
            lines.append(f"| {name} | {100 * share:.1f} % | {text} | {ridges} |")
    return "\n".join(lines)


def images(args: Any, seed: int) -> tuple[Records, np.ndarray]:
    """The training images to work on, and which of them are core."""
    data = Records.open(args.data, core_fraction=args.core_fraction, seed=seed)
    wanted = set(data.classes[:: args.every_class])
    core = [r for r in data.core if r.label in wanted]
    others = [] if args.core_only else [r for r in data.user if r.label in wanted]
    return Records(core + others, data.classes), np.arange(len(core) + len(others)) < len(core)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--core-only", action="store_true")
    options.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=[*VARIANTS])
    options.add_argument("--every-class", type=int, default=1, help="every n-th class alone")
    args = options.parse_args()
    kind = "core" if args.core_only else "development"
    suffix = f"-{args.crop}" if args.crop else ""
    path = args.out or RESULTS / f"feature-choice-{name_of(args.data)}{suffix}.json"
    settings = {"kind": kind, "features": FEATURES, "every_class": args.every_class}
    settings |= {"resize": args.resize, "crop": args.crop} if args.crop else {}
    results = Results(path, settings)
    for seed in args.seeds:
        if all(f"{name}/{seed}" in results for name in args.variants):
            continue
        records, is_core = images(args, seed)
        prep = Preprocess(resize=args.resize, crop=args.crop or 224) if args.resize else None
        names = records.classes
        core = Core(args.backbone, classes=names, linearize=args.linearize, preprocess=prep)
        labels = np.unique(records.labels, return_inverse=True)[1]
        trials = core_only(labels) if args.core_only else development(labels, is_core)
        psi = Psi(core, records, args.cache)
        for name in args.variants:
            if f"{name}/{seed}" in results:
                continue
            found = [
                right_answers(mapped(psi, VARIANTS[name], t.deciding), labels, t) for t in trials
            ]
            answers = sum(len(t.scored) for t in trials)
            right, ridges, loss = (
                sum(f[0] for f in found),
                [f[1] for f in found],
                sum(f[2] for f in found),
            )
            value = {"right": right, "answers": answers, "ridges": ridges, "loss": loss}
            results.put(f"{name}/{seed}", value)
    print(table(results.values["results"]))


if __name__ == "__main__":
    main()
