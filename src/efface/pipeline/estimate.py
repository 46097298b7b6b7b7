"""What a training run will take, from timing a few records: the answer of ``--dry-run``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from efface.arithmetic.integer.form import MOST_IMAGES
from efface.data.records import Records
from efface.linear.operator import TangentOperator
from efface.network.core import Core
from efface.network.synthetic import COUNT
from efface.network.tail import Layout
from efface.network.tuning_choice import HELD_OUT
from efface.parts.table import part_named
from efface.pipeline.config import Config
from efface.pipeline.core_people import core_people
from efface.pipeline.train import Training, counts

FEW, MANY = 8, 64  # records that are really sent through the network
SHORT = 0.3  # seconds; up to here many are tried
ROW = 3.0  # a compact row: the tail forward and backward, and its projections
TRAINING = 3.0  # a training step costs about three forward passes
DENSE_FLOPS = 2e10  # of a float64 Cholesky on a small machine, for orders of magnitude only


@dataclass(frozen=True)
class Estimate:
    """``minutes_estimate`` takes the solver's largest number of passes: CG usually needs fewer."""

    num_weights: int
    activations_gib: float
    minutes_estimate: float


@dataclass(frozen=True)
class Speed:
    """Seconds a record: activations from the file, prefix, tail, one Hessian product."""

    activations: float
    prefix: float
    tail: float
    product: float


def forecast(config: Config) -> dict[str, Any]:
    """What training would take, for people and programs; nothing is trained or written."""
    training = Training(config)
    records = training.records()
    guess = estimate(config, training.core(records), records)
    drawn = core_people(config.data, records)
    return {
        "records": counts(records),
        "classes": len(records.classes),
        "weights": guess.num_weights,
        "activations_gib": round(guess.activations_gib, 3),
        "minutes_estimate": round(guess.minutes_estimate, 2),
        "skipped": len(records.skipped),
        "core_people": 0 if drawn is None else drawn.people,
        "notes": [*([] if drawn is None else [str(drawn)]), *records.notes],
    }


def estimate(config: Config, core: Core, records: Records) -> Estimate:
    """Weights d, size of the boundary activations and minutes for core and user training."""
    num_weights = Layout.of(core.tail).d
    num_fitted = len(records.user) + (len(records.core) if config.user.replay_core else 0)
    num_cached = len(records.user) + len(records.core)
    size, speed = _probe(core, records)
    seconds = num_cached * speed.activations + _core_seconds(config, core, len(records.core), speed)
    seconds += _tuning_seconds(config, core, len(records.core), speed)
    if not part_named(config.user.kind).keeps_activations:  # it keeps rows, and solves once
        seconds += _compact_seconds(config, records, num_fitted, speed)
    else:
        seconds += _user_seconds(config, num_fitted, len(records.classes), num_weights, speed)
    seconds += _test_seconds(config, len(records.test), speed)
    return Estimate(num_weights, num_cached * size / 2**30, seconds / 60)


def _probe(core: Core, records: Records) -> tuple[int, Speed]:
    """Bytes of one record's activation, and the speeds on as many records as a short wait allows."""
    operator = TangentOperator(core.tail)
    direction = torch.randn(operator.d, generator=torch.Generator().manual_seed(0))
    some = records[: min(FEW, len(records))]
    seconds, activations = _timed(lambda: core.activations(some))
    if seconds < SHORT:  # small networks: what counts is the speed of full batches
        some = records[: min(MANY, len(records))]
        seconds, activations = _timed(lambda: core.activations(some))
    n, rows = len(some), activations[slice(0, len(some))]
    images = core.images(some)
    prefix, _ = _timed(lambda: core.boundary(images))
    tail, _ = _timed(lambda: core.logits_of(rows))
    batch = operator.prepare(rows)
    product, _ = _timed(lambda: operator.product(batch, direction))
    speed = Speed(seconds / n, prefix / n, tail / n, product / n)
    return rows[0].numel() * rows.element_size(), speed


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """The best of two after one to warm up: other programs only ever make it slower."""
    result, times = run(), []
    for _ in range(2):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times), result


def _core_seconds(config: Config, core: Core, n: int, speed: Speed) -> float:
    stages = config.core.fit_options()["stages"] or core.default_stages()
    cost = {"head": 0.0, "tail": speed.tail, "all": speed.prefix + speed.tail}
    once = sum(TRAINING * stage.epochs * n * cost[stage.train] for stage in stages)
    return 1.8 * once if config.core.calibrate_to else once  # a trial on four fifths comes first


def _tuning_seconds(config: Config, core: Core, n: int, speed: Speed) -> float:
    """All trials on four fifths of the core, then the longest of them on all; bf16 counts as float32."""
    tried = config.core.tunings()
    if not tried:
        return 0.0
    images = (sum(t.epochs for t in tried) * (1 - HELD_OUT) + max(t.epochs for t in tried)) * n
    size = config.core.finetune_size or core.image_side
    passes = TRAINING * (speed.prefix + speed.tail) * (size / core.image_side) ** 2
    decoding = max(speed.activations - speed.prefix, 0.0)
    reading = (
        (1 + len(tried)) * n * (speed.activations + speed.tail)
    )  # features of all core records
    return images * (decoding + passes) + reading


def _compact_seconds(config: Config, records: Records, n: int, speed: Speed) -> float:
    """Calibration on core images, or on synthetic ones where there are none; a row each; one solve."""
    k = config.user.features
    calibrated = min(len(records.core), MOST_IMAGES) or COUNT
    rows = n * ROW * speed.tail + calibrated * (speed.prefix + ROW * speed.tail)
    return rows + 2 * k * k * (n + k / 3) / DENSE_FLOPS


def _test_seconds(config: Config, n: int, speed: Speed) -> float:
    """The test images are predicted twice at the end: by the core alone, and by the model."""
    solves = part_named(config.user.kind).keeps_activations
    tail = speed.tail + speed.product if solves else ROW * speed.tail
    return n * (2 * speed.activations + speed.tail + tail)


def _user_seconds(
    config: Config, n: int, num_classes: int, num_weights: int, speed: Speed
) -> float:
    solver = config.user.solver
    if solver.kind == "cholesky":
        rows, d = n * num_classes, num_weights
        return rows * speed.product + (rows * d**2 + d**3 / 3) / DENSE_FLOPS
    passes = solver.epochs + 1 if solver.kind == "sgd" else solver.max_passes
    return passes * n * speed.product
