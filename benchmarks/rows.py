"""Seconds from an image to its row, in integers and in float32, turn by turn in one run.

    python benchmarks/rows.py --data ../shared/data/cub40 --backbone hf:../shared/weights/resnet50-imagenet

Both go from the file through prefix, tail and ψ to 4,096 quantised features, at the size that `efface
train` reads (--own-size: the network's own). float32 is our own, one record at a time; "batches" is the
float32 prefix alone on batches of 32, as most people would run it. Medians of the turns. The limit is the
flops of one forward pass of the whole network at the speed of a float32 product, measured in this run: what
a program that computes in float32 cannot pass. Products of bytes have a higher one, in the details.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from limits import Limits, byte_products
from outcome import Outcome, medians, turns
from torch.utils.flop_counter import FlopCounterMode

from efface import Core, MixedLinear, Records
from efface.arithmetic.integer.byte_graph import ByteGraph
from efface.network.backbone import load_backbone
from efface.network.larger import with_larger_images

INTEGER, FLOAT, BATCHES = "integer", "float32", "float32 prefix in batches"


def measure(args: argparse.Namespace) -> Outcome:
    records = Records.open(args.data)
    some = records[np.linspace(0, len(records) - 1, args.count).astype(int)]
    backbone = load_backbone(args.backbone)
    core = Core(
        backbone if args.own_size else with_larger_images(backbone), classes=records.classes
    )
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
    flops, limits, products = flops_of(core), Limits.measured(), byte_products()
    return Outcome(
        name="rows",
        question="How many images a second become rows, in integers and in float32?",
        setting={
            "data": Path(args.data).name,
            "backbone": args.backbone.split("/")[-1],
            "form": models[INTEGER].user.form.kind,
            "features": models[INTEGER].user.projection.num_features,
            "images": len(some),
            "side": core.image_side,
            "kernels": "bytes" if _on_bytes(models[INTEGER]) else "float32",
        },
        unit="images a second",
        ours={INTEGER: rates[INTEGER]},
        peers={name: rate for name, rate in rates.items() if name != INTEGER},
        ratios={
            "integers / float32": rates[INTEGER] / rates[FLOAT],
            "integers / float32 prefix in batches": rates[INTEGER] / rates[BATCHES],
        },
        limit={
            "what": "flops of one forward pass at the speed of a float32 product of 1,024 squared",
            "images_a_second": limits.float32 / flops,
            "fraction_reached": rates[INTEGER] * flops / limits.float32,
        },
        details={
            "each turn, integers / float32": [f / i for f, i in both],
            "Gflop an image, forward": flops / 1e9,
            "Gflop/s of a float32 product": limits.float32 / 1e9,
            "Gop/s of a product of bytes": products / 1e9,
            "fraction of that": rates[INTEGER] * flops / products,
            "fraction of the float32 flops, float32": rates[FLOAT] * flops / limits.float32,
        },
    )


@torch.no_grad()
def flops_of(core: Core) -> float:
    """Of one image through prefix and tail: two a multiplication with its addition."""
    with FlopCounterMode(display=False) as counter:
        core.tail(core.prefix(core.blank))
    return float(counter.get_total_flops())


def _on_bytes(model: MixedLinear) -> bool:
    placed = getattr(model.user.form, "_placed", {})
    return any(isinstance(graph, ByteGraph) for graph in placed.values())


@torch.no_grad()
def _batches(core: Core, records: Records) -> None:
    for start in range(0, len(records), 32):
        core.boundary(core.images(records[start : start + 32]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--backbone", default="cnn")
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--own-size", action="store_true", help="not the larger one for ResNets")
    parser.add_argument("--count", type=int, default=64, help="images a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    measure(args).write(args.out)


if __name__ == "__main__":
    main()
