"""What core data are worth to compact's bases and scales: calibrated on core images, or on no data at all.

    python experiments/calibration.py --data ../shared/data/cub40 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations

All training images are fitted with the same ridge (the default where there is nothing to choose it on) and
α = 0, so that only the calibration differs. Writes experiments/results/calibration-NAME.json.
"""

from __future__ import annotations

from typing import Any

from accuracy import Setting
from common import RESULTS, Results, name_of, parser, rows_of

from efface import MixedLinear
from efface.network import synthetic
from efface.parts.compact.calibration import DEFAULT_RIDGE, Calibration
from efface.parts.compact.user import CompactUser


def run(setting: Setting, features: int, bases: str, source: str) -> dict[str, Any]:
    core, data = setting.core, setting.data
    options: dict[str, Any] = {"features": features, "bases": bases, "core_weight": 0.0}
    model = MixedLinear(core, "compact", cache=setting.cache, total_ridge=DEFAULT_RIDGE, **options)
    assert isinstance(model.user, CompactUser)
    if source == "core":
        model.user.calibrate(setting.tensor(data.core), None)
    else:
        inputs, _ = synthetic.activations(setting.core)
        model.user.calibrate(inputs, None, Calibration.STATISTICS)
    model.fit(data.user, replay=data.core)
    assert model.user.projection is not None
    return {
        "accuracy": model.accuracy(data.test),
        "features": model.user.projection.num_features,
        "saturated": model.user.num_saturated(rows_of(model)),
        "total_ridge": model.user.total_ridge,
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--features", type=int, nargs="+", default=[0, 4096, 14337])
    args = options.parse_args()
    path = args.out or RESULTS / f"calibration-{name_of(args.data)}.json"
    results = Results(path, {"linearize": args.linearize, "total_ridge": DEFAULT_RIDGE})
    setting = Setting(args, args.seeds[0])
    for features in args.features:
        for bases in ("core", "random") if features else ("core",):
            for source in ("core", "none"):
                name = f"{features}/{bases}/{source}"
                if name not in results:
                    results.put(name, run(setting, features, bases, source))


if __name__ == "__main__":
    main()
