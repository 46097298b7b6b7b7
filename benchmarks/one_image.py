"""One image: how long a prediction takes beside the network alone, and when it is the first.

    python benchmarks/one_image.py MODEL IMAGE [--turns 9] [--out FILE]

Turn by turn in one process, on one thread, in processor time (other programs then count little): the float
network from the file to the logits (prefix, tail and head, as torch has them), and ``predict``. Medians;
``MODEL`` is a folder written by ``efface train``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import efface
from efface.environment import environment


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loading = time.process_time()
    model = efface.load(args.model)
    loading = time.process_time() - loading
    first = seconds(lambda: model.predict([args.image]))
    core, picture = model.core, model.shown([args.image])

    @torch.no_grad()
    def alone() -> None:
        core.logits_of(core.boundary(core.images(picture)))

    alone()
    turns = [
        (seconds(alone), seconds(lambda: model.predict([args.image]))) for _ in range(args.turns)
    ]
    network, predicted = (statistics.median(column) for column in zip(*turns, strict=True))
    values = {
        "form": model.user.form.kind,
        "features": model.user.num_weights // len(model.classes),
        "load_seconds": round(loading, 3),
        "first_seconds": round(first, 3),
        "network_seconds": round(network, 4),
        "predict_seconds": round(predicted, 4),
        "ratio": round(predicted / network, 3),
        "turns": args.turns,
        "environment": environment(integer=model.user.form.arithmetic == "integer"),
    }
    print(json.dumps(values, indent=1))
    if args.out:
        args.out.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
