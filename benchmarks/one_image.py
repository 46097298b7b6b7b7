"""One image: how long a prediction takes beside the network alone, and when it is the first.

    python benchmarks/one_image.py [MODEL IMAGE] [--turns 9] [--note TEXT] [--out FILE]

Turn by turn in one process, on one thread, in processor time (other programs then count little): the float
network from the file to the logits (prefix, tail and head, as torch has them), and ``predict``. Medians;
``MODEL`` is a folder written by ``efface train``. Without one, a small model is trained on digits.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from outcome import Outcome, medians, seconds, turns

import efface

OURS, ALONE = "efface", "the float32 network alone"


def trained() -> tuple[efface.MixedLinear, Any]:
    """A small model on digits, and one of its images."""
    data = efface.Records.digits(core_fraction=0.3)
    core = efface.Core("cnn", classes=data.classes).fit(data.core)
    model = efface.MixedLinear(core, features=600).fit(data.user, replay=data.core)
    return model, data.test[0].image()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("image", type=Path, nargs="?")
    parser.add_argument("--note", help="Which model, for the JSON.")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    model, image = (efface.load(args.model), args.image) if args.model else trained()
    loading = time.process_time() - start
    first = seconds(lambda: model.predict([image]), time.process_time)
    core, picture = model.core, model.shown([image])

    @torch.no_grad()
    def alone() -> None:
        core.logits_of(core.boundary(core.images(picture)))

    ways = {ALONE: alone, OURS: lambda: model.predict([image])}
    times = medians(turns(ways, args.turns, clock=time.process_time))
    Outcome(
        name="one-image",
        question="How long does the prediction of one image take beside the network alone?",
        setting={
            "model": args.note or ("given" if args.model else "digits, trained here"),
            "form": model.user.form.kind,
            "features": model.user.num_weights // len(model.classes),
            "turns": args.turns,
        },
        unit="seconds of one processor",
        ours={OURS: times[OURS]},
        peers={ALONE: times[ALONE]},
        ratios={f"{ALONE} / ours": times[ALONE] / times[OURS]},
        limit={
            "what": "the float32 network alone, from the file to the logits",
            "seconds": times[ALONE],
            "fraction_reached": times[ALONE] / times[OURS],
        },
        details={
            "load_seconds" if args.model else "train_seconds": loading,
            "first_seconds": first,
        },
    ).write(args.out)


if __name__ == "__main__":
    main()
