"""Seconds from an image to its row, in integers and in float32, turn by turn in one run.

    python benchmarks/rows.py --data ../shared/data/cub40 --backbone hf:../shared/weights/resnet50-imagenet

Both go from the decoded file through prefix, tail and ψ to 4,096 quantised features. float32 is our own, one
record at a time; "batches" is the float32 prefix alone on batches of 32, as most people would run it. Medians
of the turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from outcome import Outcome, medians, turns

from efface import Core, MixedLinear, Records

INTEGER, FLOAT, BATCHES = "integer", "float32", "float32 prefix in batches"


def measure(args: argparse.Namespace) -> Outcome:
    records = Records.open(args.data)
    some = records[np.linspace(0, len(records) - 1, args.count).astype(int)]
    core = Core(args.backbone, classes=records.classes)
    core.records = records[np.linspace(0, len(records) - 1, 64).astype(int)]
    models = {}
    for arithmetic in (INTEGER, FLOAT):
        models[arithmetic] = MixedLinear(
            core, "compact", features=args.features, arithmetic=arithmetic
        )
        models[arithmetic].calibrate()
    ways: dict[str, Callable[[], object]] = {
        name: partial(model.stage, some) for name, model in models.items()
    }
    ways[BATCHES] = lambda: _batches(core, some)
    seconds = turns(ways, args.turns)
    rates = {name: len(some) / value for name, value in medians(seconds).items()}
    both = zip(seconds[FLOAT], seconds[INTEGER], strict=True)
    return Outcome(
        name="rows",
        question="How many images a second become rows, in integers and in float32?",
        setting={
            "data": Path(args.data).name,
            "backbone": args.backbone.split("/")[-1],
            "form": models[INTEGER].user.form.kind,
            "features": models[INTEGER].user.projection.num_features,
            "images": len(some),
        },
        unit="images a second",
        ours={INTEGER: rates[INTEGER]},
        peers={name: rate for name, rate in rates.items() if name != INTEGER},
        ratios={
            "integers / float32": rates[INTEGER] / rates[FLOAT],
            "integers / float32 prefix in batches": rates[INTEGER] / rates[BATCHES],
        },
        limit={
            "what": "the float32 prefix alone, in batches of 32: no tail, no gradients, no row",
            "images_a_second": rates[BATCHES],
            "fraction_reached": rates[INTEGER] / rates[BATCHES],
        },
        details={"each turn, integers / float32": [f / i for f, i in both]},
    )


@torch.no_grad()
def _batches(core: Core, records: Records) -> None:
    for start in range(0, len(records), 32):
        core.boundary(core.images(records[start : start + 32]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--backbone", default="cnn")
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--count", type=int, default=64, help="images a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    measure(args).write(args.out)


if __name__ == "__main__":
    main()
