"""Seconds from an image to its row, in integers and in float32, turn by turn in one run.

    python benchmarks/rows.py --data ../shared/data/cub40 --backbone hf:../shared/weights/resnet50-imagenet

Both go from the decoded file through prefix, tail and ψ to 4,096 quantised features. float32 is our own, one
record at a time; "batches" is the float32 prefix alone on batches of 32, as most people would run it. Medians
of the turns. Writes benchmarks/results/rows-NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from efface import Core, MixedLinear, Records


def measure(args: argparse.Namespace) -> dict[str, Any]:
    records = Records.open(args.data)
    some = records[np.linspace(0, len(records) - 1, args.count).astype(int)]
    core = Core(args.backbone, classes=records.classes)
    core.records = records[np.linspace(0, len(records) - 1, 64).astype(int)]
    models = {}
    for arithmetic in ("integer", "float32"):
        models[arithmetic] = MixedLinear(
            core, "compact", features=args.features, arithmetic=arithmetic
        )
        models[arithmetic].calibrate()
    ways: dict[str, Callable[[], object]] = {
        name: partial(model.stage, some) for name, model in models.items()
    }
    ways["float32 prefix in batches"] = lambda: _batches(core, some)
    for way in ways.values():
        way()  # once to warm up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.turns):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "name": "rows",
        "form": models["integer"].user.form.kind,
        "features": models["integer"].user.projection.num_features,
        "images": len(some),
        "images_a_second": {name: round(len(some) / s, 2) for name, s in medians.items()},
        "ratios": {
            "integer over float32": round(medians["float32"] / medians["integer"], 3),
            "each turn": [
                round(f / i, 3) for f, i in zip(seconds["float32"], seconds["integer"], strict=True)
            ],
        },
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "cpus": os.cpu_count(),
        },
    }


@torch.no_grad()
def _batches(core: Core, records: Records) -> None:
    for start in range(0, len(records), 32):
        core.boundary(core.images(records[start : start + 32]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--backbone", default="cnn")
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--count", type=int, default=64, help="images a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    values = measure(args)
    out = args.out or Path(__file__).parent / "results" / f"rows-{Path(args.data).name}.json"
    out.write_text(json.dumps(values, indent=1) + "\n")
    print(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
