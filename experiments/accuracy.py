"""Last layer, tangent, compact and non-linear fine-tuning of the same tail, side by side.

    python experiments/accuracy.py --data ../shared/data/cub40 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations

30 % of the training images are core data. All models are then fitted on all training images, core part
included (as in the paper); every choice (ridge, learning rate) is made on core data only. Test data are
looked at once, at the end. Writes experiments/results/accuracy-NAME.json and prints a table.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import RESULTS, Results, name_of, parser, rows_of
from torch import Tensor

from efface import ConjugateGradient, Core, MixedLinear, Preprocess, Records, Stage
from efface.linear.operator import TangentOperator
from efface.linear.scales import balanced_scales
from efface.network.activations import ActivationCache
from efface.network.core_fitting import every_fifth, usable
from efface.network.training import train
from efface.parts.tangent.user import PRECONDITIONERS, TangentUser

MODELS = ("last-layer", "compact", "fine-tune", "tangent")
TANGENT_MUS = (1e-6, 1e-5, 1e-4)
RATES = (0.000125, 0.0005, 0.002)  # 0.01 was never chosen on cub40, and diverges on caltech101


class Setting:
    """One seed: the split, the trained core, and the activations that all methods share."""

    def __init__(self, args: Any, seed: int, *, train_core: bool = True) -> None:
        self.data = Records.open(args.data, core_fraction=args.core_fraction, seed=seed)
        prep = Preprocess(resize=args.resize, crop=args.crop or 224) if args.resize else None
        self.args, self.prep = args, prep
        self.core = self._new_core()
        self.cache: ActivationCache | None = self.core.cache(args.cache) if args.cache else None
        begin = time.monotonic()
        wanted = self.data if train_core else self.data.core
        self.core.activations(wanted, self.cache, progress=_say)
        print(f"activations: {time.monotonic() - begin:.0f} s", flush=True)
        begin = time.monotonic()
        if train_core:
            self._fit(self.core, self.data.core)
        self.core_seconds = time.monotonic() - begin
        if self.cache is not None:
            self.cache = self.core.cache(args.cache)  # another one if the prefix was trained
        self.user = self.data.user + self.data.core

    def _new_core(self) -> Core:
        return Core(
            self.args.backbone,
            classes=self.data.classes,
            linearize=self.args.linearize,
            leaky_slope=self.args.leaky_slope,
            preprocess=self.prep,
            mirror=self.args.mirror,
        )

    def _fit(self, core: Core, records: Records) -> None:
        stages = None if self.args.backbone == "cnn" else (Stage("head", epochs=60, lr=0.01),)
        core.fit(
            records,
            stages,
            calibrate_to=self.args.calibrate_to or None,
            cache=usable(core, self.cache),
        )

    def tensor(self, records: Records, core: Core | None = None) -> Tensor:
        core = core or self.core
        rows = core.activations(records, usable(core, self.cache))
        return rows[slice(0, len(rows))]

    def score(self, logits: Tensor) -> float:
        return float((logits.argmax(1) == self.core.labels(self.data.test)).float().mean())

    def held_out(self) -> tuple[Core, Records, Records]:
        """Core data as four fifths to fit on and one fifth to choose on, with a core of the former.

        The core itself has seen all of them: its logits would give the labels away.
        """
        mask, data = every_fifth(self.data.core), self.data.core
        part, rest = data[np.flatnonzero(~mask)], data[np.flatnonzero(mask)]
        trial = self._new_core()
        self._fit(trial, part)
        return trial, part, rest


def run_compact(setting: Setting, features: int, bits: int = 8) -> dict[str, Any]:
    begin = time.monotonic()
    options = {"features": features, "bits": bits, "core_weight": setting.args.core_weight}
    model = MixedLinear(setting.core, "compact", cache=setting.cache, **options)
    model.fit(setting.data.user, replay=setting.data.core)
    seconds = time.monotonic() - begin
    return {
        "accuracy": model.accuracy(setting.data.test),
        "seconds": seconds,
        "features": model.user.projection.num_features,
        "total_ridge": model.user.total_ridge,
        "saturated": model.user.num_saturated(rows_of(model)),
    }


def run_tangent(
    setting: Setting, passes: int, choosing: int, preconditioner: str
) -> dict[str, Any]:
    """Balanced layers; μ chosen on core data with ``choosing`` passes, then ``passes`` on everything."""
    core, public = setting.core, setting.tensor(setting.data.core)
    scales = balanced_scales(TangentOperator(core.tail), public, probes=1)
    trial, part, rest = setting.held_out()
    x, y = setting.tensor(part, trial), core.labels(part)
    trial_scales = balanced_scales(TangentOperator(trial.tail), x, probes=1)
    chosen: dict[float, float] = {}
    for mu in TANGENT_MUS:
        user = _tangent(trial, mu, trial_scales, choosing, preconditioner, x)
        user.fit(x, y)
        guess = user.logits(setting.tensor(rest, trial)).argmax(1)
        chosen[mu] = float((guess == core.labels(rest)).float().mean())
        print(f"  tangent mu={mu:g}: {chosen[mu]:.3f} on held-out core", flush=True)
    mu = max(chosen, key=lambda m: (chosen[m], m))
    begin = time.monotonic()
    user = _tangent(core, mu, scales, passes, preconditioner, public)
    solution = user.fit(setting.tensor(setting.user), core.labels(setting.user), _say)
    return {
        "accuracy": setting.score(user.logits(setting.tensor(setting.data.test))),
        "seconds": time.monotonic() - begin,
        "mu": mu,
        "held_out": {f"{k:g}": v for k, v in chosen.items()},
        "status": str(solution.status),
        "passes": solution.passes,
        "residual_norm": solution.residual_norm,
    }


def _tangent(
    core: Core,
    mu: float,
    scales: dict[str, float],
    passes: int,
    preconditioner: str,
    public: Tensor,
) -> TangentUser:
    user = TangentUser(core, mu=mu, scales=scales)
    user.solver = ConjugateGradient(
        tolerance=1e-6,
        max_passes=passes,
        refinements=0,
        preconditioner=user.preconditioner(preconditioner, public),
    )
    return user


def run_fine_tune(setting: Setting, epochs: int) -> dict[str, Any]:
    """Cross-entropy on the same layers, not linearised; learning rate chosen on held-out core data."""
    trial, part, rest = setting.held_out()
    chosen = {}
    for lr in RATES:
        tail = _fine_tuned(setting, trial, part, Stage("tail", epochs, lr))
        guess = tail(setting.tensor(rest, trial)).argmax(1)
        chosen[lr] = float((guess == setting.core.labels(rest)).float().mean())
        print(f"  fine-tune lr={lr:g}: {chosen[lr]:.3f} on held-out core", flush=True)
    lr = max(chosen, key=lambda r: chosen[r])
    begin = time.monotonic()
    tail = _fine_tuned(setting, setting.core, setting.user, Stage("tail", epochs, lr))
    seconds = time.monotonic() - begin
    logits = torch.cat([tail(x) for x in setting.tensor(setting.data.test).split(64)])
    return {
        "accuracy": setting.score(logits),
        "seconds": seconds,
        "lr": lr,
        "held_out": {f"{k:g}": v for k, v in chosen.items()},
        "epochs": epochs,
    }


def _fine_tuned(
    setting: Setting, core: Core, records: Records, stage: Stage
) -> Callable[[Tensor], Tensor]:
    tail = copy.deepcopy(core.tail).requires_grad_(True)
    x, y = setting.tensor(records, core), core.labels(records)
    train(tail, tail.parameters(), x, y, stage, progress=_say)
    return tail.requires_grad_(False)


def _say(fraction: float, message: str) -> None:
    if fraction >= 1 or int(fraction * 20) != int((fraction - 0.02) * 20):
        print(f"  {fraction:4.0%} {message}", flush=True)


def table(results: dict[str, Any]) -> str:
    """Mean ± standard deviation over seeds, as Markdown."""
    lines = ["| method | test accuracy | seeds | seconds |", "|---|---|---|---|"]
    for method in ("core", *MODELS):
        rows = [v for k, v in results.items() if k.split("/")[0] == method]
        if rows:
            scores = 100 * np.array([r["accuracy"] for r in rows])
            spread = f" ± {scores.std(ddof=1):.1f}" if len(scores) > 1 else ""
            seconds = np.mean([r["seconds"] for r in rows])
            lines.append(
                f"| {method} | {scores.mean():.1f}{spread} % | {len(rows)} | {seconds:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--methods", nargs="+", default=list(MODELS), choices=MODELS)
    options.add_argument("--features", type=int, default=14337)
    options.add_argument("--passes", type=int, default=30, help="of CG for the tangent model")
    options.add_argument("--choosing-passes", type=int, default=12)
    options.add_argument(
        "--preconditioner", default="none", choices=PRECONDITIONERS, help="of CG, from core data"
    )
    options.add_argument("--epochs", type=int, default=20, help="of fine-tuning")
    options.add_argument("--core-weight", type=float, help="of the core's logits in compact")
    args = options.parse_args()
    keys = ("core_fraction", "linearize", "leaky_slope", "resize", "features", "passes", "epochs")
    mirrored = "-mirror" if args.mirror else ""
    path = args.out or RESULTS / f"accuracy-{name_of(args.data)}{mirrored}.json"
    kept = {} if args.core_weight is None else {"core_weight": args.core_weight}
    kept |= {} if args.calibrate_to == 5.0 else {"calibrate_to": args.calibrate_to}
    kept |= {"mirror": True} if args.mirror else {}
    kept |= {} if args.preconditioner == "none" else {"preconditioner": args.preconditioner}
    results = Results(path, {k: getattr(args, k) for k in keys} | kept)
    for seed in args.seeds:
        wanted = [m for m in args.methods if f"{m}/{seed}" not in results]
        if not wanted and f"core/{seed}" in results:
            continue
        setting = Setting(args, seed)
        accuracy = setting.core.accuracy(setting.data.test, setting.cache)
        results.put(f"core/{seed}", {"accuracy": accuracy, "seconds": setting.core_seconds})
        for method in wanted:
            value = {
                "last-layer": lambda: run_compact(setting, 0, 16),  # noqa: B023
                "compact": lambda: run_compact(setting, args.features),  # noqa: B023
                "tangent": lambda: run_tangent(
                    setting,  # noqa: B023
                    args.passes,
                    args.choosing_passes,
                    args.preconditioner,
                ),
                "fine-tune": lambda: run_fine_tune(setting, args.epochs),  # noqa: B023
            }[method]()
            results.put(f"{method}/{seed}", value)
    print(table(results.values["results"]))


if __name__ == "__main__":
    main()
