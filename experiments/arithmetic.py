"""What integers cost: the same compact model in integer arithmetic and in float32, side by side.

    python experiments/arithmetic.py --data ../shared/data/cub40 --seeds 0 1 2 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations

Same split, core, ridge rule and number of features; only the form of the network differs, and what is found
on core data in it (bases, steps, ridge). Writes experiments/results/arithmetic-NAME.json and prints a table.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from accuracy import Setting
from common import RESULTS, Results, name_of, parser, rows_of

from efface import MixedLinear

FORMS = ("float32", "integer")


def run(setting: Setting, arithmetic: str, features: int, bits: int) -> dict[str, Any]:
    options: dict[str, Any] = {"features": features, "bits": bits, "arithmetic": arithmetic}
    model = MixedLinear(setting.core, "compact", cache=setting.cache, **options)
    begin = time.monotonic()
    model.fit(setting.data.user, replay=setting.data.core)
    return {
        "accuracy": model.accuracy(setting.data.test),
        "seconds": time.monotonic() - begin,
        "features": model.user.projection.num_features,
        "total_ridge": model.user.total_ridge,
        "arithmetic": model.user.form.arithmetic,
        "saturated": model.user.num_saturated(rows_of(model)),
    }


def table(results: dict[str, Any]) -> str:
    """Mean ± standard deviation over seeds, and the difference to float32 seed by seed."""
    lines = ["| features | float32 | integer | lost (mean over splits) |", "|---|---|---|---|"]
    for name in dict.fromkeys(key.split("/")[0] for key in results):
        seeds = sorted({k.split("/")[2] for k in results if k.startswith(f"{name}/")})
        keys = [[f"{name}/{form}/{seed}" for form in FORMS] for seed in seeds]
        both = [[results[key]["accuracy"] for key in pair if key in results] for pair in keys]
        scores = 100 * np.array([pair for pair in both if len(pair) == len(FORMS)])
        if len(scores):
            spread = scores.std(axis=0, ddof=1) if len(scores) > 1 else np.zeros(2)
            cells = [f"{m:.2f} ± {s:.2f} %" for m, s in zip(scores.mean(0), spread, strict=True)]
            lost = (scores[:, 0] - scores[:, 1]).mean()
            lines.append(f"| {name} | {cells[0]} | {cells[1]} | {lost:+.2f} |")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--features", type=int, nargs="+", default=[0, 4096])
    args = options.parse_args()
    keys = ("core_fraction", "linearize", "leaky_slope", "resize", "mirror")
    path = args.out or RESULTS / f"arithmetic-{name_of(args.data)}.json"
    results = Results(path, {key: getattr(args, key) for key in keys})
    for seed in args.seeds:
        wanted = [
            (form, features)
            for form in FORMS
            for features in args.features
            if f"{_name(features)}/{form}/{seed}" not in results
        ]
        if not wanted:
            continue
        setting = Setting(args, seed)
        for form, features in wanted:
            value = run(setting, form, features, bits=8 if features else 16)
            results.put(f"{_name(features)}/{form}/{seed}", value)
    print(table(results.values["results"]))


def _name(features: int) -> str:
    return str(features) if features else "last layer"


if __name__ == "__main__":
    main()
