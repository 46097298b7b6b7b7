"""Whole-network fine-tuning: the paper's core on 30 % of the data, and its "DNN" on all of it.

    python experiments/finetuning.py --data ../shared/data/cub40 --share core --size 160 --precision bf16 \
        --backbone hf:../shared/weights/resnet50-imagenet --folder /tmp/finetune

``--share core``: rate and length are chosen on held-out core images ("not at all" is a choice), then the
network is fine-tuned on all core images; ``--share all``: the first rate and length, on all training images.
Test images are looked at once, at the end, at ``--test-size`` and at the size of training. What was measured
is kept, and a run that was killed goes on. Writes experiments/results/finetuning-NAME-SHARE.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, Results, name_of, parser

from efface import Core, MixedLinear, Records, Stage
from efface.network.backbone import load_backbone
from efface.network.finetuning import FineTuning, Precision, Schedule, Tuned, fine_tune, network_of
from efface.network.targets import one_hot
from efface.network.tuning_choice import TuningChoice, candidates_of, choose_tuning
from efface.parts.compact.calibration import RIDGES


class Study:
    """One seed: the split, and where its runs are kept."""

    def __init__(self, args: Any, seed: int) -> None:
        self.args, self.seed = args, seed
        self.data = Records.open(args.data, core_fraction=args.core_fraction, seed=seed)
        self.backbone = load_backbone(args.backbone)
        self.folder = Path(args.folder) / f"{name_of(args.data)}-{args.share}-{args.size}-{seed}"
        self.settings = FineTuning(
            epochs=args.epochs[0],
            batch_size=args.batch_size,
            rate=args.rates[0],
            head_rate=args.rates[0] * args.head_factor,
            schedule=Schedule(args.schedule),
            size=args.size,
            scale=(args.least_crop, 1.0),
            flip=not args.no_flip,
            precision=Precision(args.precision),
            seed=seed,
        )
        self.begin = time.monotonic()

    def choice(self) -> TuningChoice:
        candidates = candidates_of(self.settings, self.args.rates, self.args.epochs)
        return choose_tuning(
            self.backbone, self.data.core, candidates, folder=self.folder, progress=say
        )

    def tuned(self, settings: FineTuning | None) -> Tuned:
        """None: the network as it came, under a zero head."""
        core = self.args.share == "core"
        records = self.data.core if core else self.data.core + self.data.user
        if settings is None:
            return Tuned(self.backbone, network_of(self.backbone, len(records.classes)), ())
        name = f"rate-{settings.rate:g}-epochs-{settings.epochs}"
        return fine_tune(self.backbone, records, settings, folder=self.folder / name, progress=say)

    def head(self, tuned: Tuned) -> dict[str, Any]:
        """Accuracy of the network itself on test images."""
        labels, result = torch.from_numpy(self.data.test.labels), {}
        for size in dict.fromkeys((self.args.test_size, self.args.size)):
            guess = tuned.logits(self.data.test, self.settings, size, progress=say).argmax(1)
            result[f"accuracy_{size or 'own'}"] = float((guess == labels).float().mean())
        return result | {"losses": list(tuned.losses)}

    def compact(self, tuned: Tuned) -> dict[str, Any]:
        """The default model that forgets, on a core of this network."""
        core = Core(tuned.backbone, classes=self.data.classes, linearize=self.args.linearize)
        core.fit(self.data.core, (Stage("head", epochs=60, lr=0.01),), progress=say)
        model = MixedLinear(core, "compact", features=self.args.compact)
        model.fit(self.data.user, replay=self.data.core, progress=say)
        accuracy, ridge = model.accuracy(self.data.test), model.user.total_ridge
        form = type(model.user.form).__name__
        return {"accuracy": accuracy, "total_ridge": ridge, "form": form}

    def ridge(self, tuned: Tuned) -> dict[str, Any]:
        """A plain ridge on pooled features of all training images, for each λ : mean ‖h − h̄‖²."""
        train, test = self.data.core + self.data.user, self.data.test
        h, new = (
            tuned.logits(r, self.settings, features=True, progress=say) for r in (train, test)
        )
        mean, y = h.double().mean(0), one_hot(torch.from_numpy(train.labels), len(train.classes))
        h, new = h.double() - mean, new.double() - mean
        gram, power, found = h.T @ h, float((h * h).sum(1).mean()), {}
        for ridge in RIDGES:
            system = gram + ridge * power * torch.eye(len(gram), dtype=torch.float64)
            guess = new @ torch.linalg.solve(system, h.T @ (y - y.mean(0))) + y.mean(0)
            right = guess.argmax(1) == torch.from_numpy(test.labels)
            found[f"{ridge:.3g}"] = float(right.double().mean())
        return {"accuracies": found}


def run(args: Any, seed: int, results: Results) -> None:
    study = Study(args, seed)
    settings: FineTuning | None = study.settings
    if args.share == "core" and not args.unchosen:
        choice = study.choice()
        settings = choice.best.settings
        trials = [
            {"settings": t.settings and asdict(t.settings), "loss": t.loss}
            | {"accuracy": t.accuracy, "seconds": t.seconds}
            for t in choice.trials
        ]
        results.put(f"choice/{seed}", {"trials": trials, "num_held_out": choice.num_held_out})
    wanted = {f"{args.share}/{seed}": settings}
    if args.anyway and settings is None:
        wanted[f"{args.share}/{seed}/anyway"] = study.settings
    if settings is not None:
        wanted[f"untuned/{seed}"] = None
    for name, tried in wanted.items():
        measure(study, name, tried, results)


def measure(study: Study, name: str, settings: FineTuning | None, results: Results) -> None:
    """Each number is kept as soon as it is there; the network comes from its folder."""
    parts: dict[str, Callable[[Tuned], dict[str, Any]]] = {}
    parts |= {} if settings is None else {name: study.head}
    parts |= {f"{name}/ridge": study.ridge} if study.args.ridge else {}
    parts |= {f"{name}/compact": study.compact} if study.args.compact is not None else {}
    missing = [part for part in parts if part not in results]
    if not missing:
        return
    begin = time.monotonic()
    tuned = study.tuned(settings)
    seconds = time.monotonic() - begin
    for part in missing:
        value = parts[part](tuned) | {"settings": settings and asdict(settings)}
        results.put(part, value | ({"seconds": seconds} if part == name else {}))


_told = [0.0]


def say(fraction: float, message: str) -> None:
    if fraction >= 1 or time.monotonic() - _told[0] > 15:
        _told[0] = time.monotonic()
        print(f"  {fraction:4.0%} {message}", flush=True)


def options_of() -> argparse.ArgumentParser:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--share", choices=("core", "all"), default="core")
    options.add_argument("--epochs", type=int, nargs="+", default=[12])
    options.add_argument("--rates", type=float, nargs="+", default=[0.002])
    options.add_argument(
        "--head-factor", type=float, default=2, help="the head's rate : the rest's"
    )
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--schedule", choices=[*Schedule], default="cosine")
    options.add_argument("--size", type=int, default=0, help="of training images; 0: the network's")
    options.add_argument("--test-size", type=int, default=0, help="the same for test images")
    options.add_argument("--least-crop", type=float, default=0.25, help="share of the image's area")
    options.add_argument("--no-flip", action="store_true")
    options.add_argument("--precision", choices=[*Precision], default="float32")
    options.add_argument("--folder", default="/tmp/finetune", help="where checkpoints are kept")
    options.add_argument("--ridge", action="store_true", help="and a ridge on the pooled features")
    options.add_argument(
        "--anyway", action="store_true", help="fine-tune even if it was not chosen"
    )
    options.add_argument("--unchosen", action="store_true", help="the first rate, the first length")
    options.add_argument("--compact", type=int, help="and a compact model of so many features")
    return options


def main() -> None:
    args = options_of().parse_args()
    left_out = (
        "data",
        "seeds",
        "out",
        "folder",
        "cache",
        "backbone",
        "anyway",
        "ridge",
        "unchosen",
    )
    kept = {k: v for k, v in vars(args).items() if k not in left_out}
    path = args.out or RESULTS / f"finetuning-{name_of(args.data)}-{args.share}.json"
    results = Results(path, kept)
    for seed in args.seeds:
        run(args, seed, results)


if __name__ == "__main__":
    main()
