"""What a training run will take, from timing a few records in the arithmetic that it will use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from efface.arithmetic.form import FloatForm, Form
from efface.arithmetic.integer.form import MOST_IMAGES
from efface.data.loading import stacked
from efface.data.records import Records
from efface.linear.operator import TangentOperator
from efface.network.core import Core
from efface.network.synthetic import COUNT
from efface.network.tail import Layout
from efface.network.tuning_choice import HELD_OUT
from efface.parts.table import part_named
from efface.pipeline.config import Config

FEW, MANY = 8, 64  # records that are really sent through the network
SHORT = 0.3  # seconds; up to here many are tried
ROW = 3.0  # a compact row: the tail forward and backward, and its projections
LOOK = 1.5  # calibration: every tensor of the network is looked at, in batches that no cache holds
TRAINING = 3.0  # a training step costs about three forward passes
DENSE_FLOPS = 2e10  # of a float64 Cholesky on a small machine, for orders of magnitude only
PASSES = 100  # that an iterative solve is taken to need: 87 on cub40 (experiments/results)


@dataclass(frozen=True)
class Estimate:
    """``num_passes``: with how many passes over the data an iterative solver was counted; None without one.
    ``form``: the arithmetic that was timed."""

    num_weights: int
    activations_gib: float
    minutes_estimate: float
    form: str
    num_passes: int | None


@dataclass(frozen=True)
class Speed:
    """Seconds a record: activations from the file, prefix, tail, one Hessian product."""

    activations: float
    prefix: float
    tail: float
    product: float = 0.0


@dataclass(frozen=True)
class Speeds:
    """Of the network in floats, as the core is trained and predicts, and in the form of the user part."""

    core: Speed
    user: Speed


def estimate(config: Config, core: Core, records: Records) -> Estimate:
    """Weights d, size of the boundary activations and minutes for core and user training."""
    num_weights = Layout.of(core.tail).d
    num_core = len(records.core)
    num_fitted = len(records.user) + (num_core if config.user.replay_core else 0)
    part, some = part_named(config.user.kind), records[: min(FEW, len(records))]
    solves, form = part.keeps_activations, part.form_for(core, config.user.given(), some)
    size, speeds = _probe(core, form, records, products=solves)
    seconds = _core_seconds(config, core, num_core, speeds.core)
    seconds += _tuning_seconds(config, core, num_core, speeds.core)
    seconds += num_fitted * speeds.user.activations
    if not solves:  # it keeps rows, and solves once
        seconds += _compact_seconds(config, records, num_fitted, speeds)
    else:
        args = (num_fitted, len(records.classes), num_weights, speeds.user)
        seconds += _user_seconds(config, *args)
    seconds += _test_seconds(config, records, speeds)
    gib = (len(records.user) + num_core) * size / 2**30
    return Estimate(
        num_weights, gib, seconds / 60, form.kind, num_passes(config) if solves else None
    )


def _probe(core: Core, form: Form, records: Records, *, products: bool) -> tuple[int, Speeds]:
    """Bytes of one record's activation, and the speeds on as many records as a short wait allows.

    A form that is not the float network itself is timed as well: exact sums take two to three times as long.
    """
    some = records[: min(FEW, len(records))]
    seconds, activations = _timed(lambda: core.activations(some))
    if seconds < SHORT:  # small networks: what counts is the speed of full batches
        some = records[: min(MANY, len(records))]
        seconds, activations = _timed(lambda: core.activations(some))
    n, rows = len(some), activations[slice(0, len(some))]
    images = core.images(some)
    prefix, _ = _timed(lambda: core.boundary(images))
    tail, _ = _timed(lambda: core.logits_of(rows))
    product = _product_seconds(core, rows) if products else 0.0
    plain = Speed(seconds / n, prefix / n, tail / n, product / n)
    own = plain if isinstance(form, FloatForm) else _form_speed(form, some)
    return rows[0].numel() * rows.element_size(), Speeds(plain, own)


def _product_seconds(core: Core, rows: Tensor) -> float:
    operator = TangentOperator(core.tail)
    direction = torch.randn(operator.d, generator=torch.Generator().manual_seed(0))
    batch = operator.prepare(rows)
    return _timed(lambda: operator.product(batch, direction))[0]


def _form_speed(form: Form, some: Records) -> Speed:
    """The same in another arithmetic."""
    seconds, activations = _timed(lambda: form.activations(some))
    arrays = [form.core.loader.one(record, form.prepare) for record in some]
    images = torch.from_numpy(stacked(some.ids, arrays))
    prefix, _ = _timed(lambda: form.boundary_of(images))
    tail, _ = _timed(lambda: form.logits(activations))
    return Speed(seconds / len(some), prefix / len(some), tail / len(some))


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
    once += n * speed.activations
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


def _compact_seconds(config: Config, records: Records, n: int, speeds: Speeds) -> float:
    """Calibration on core images, or on synthetic ones where there are none; a row each; one solve.

    Calibration goes through the network in floats, whatever rows are computed in.
    """
    k, core, user = config.user.features, speeds.core, speeds.user
    calibrated = min(len(records.core), MOST_IMAGES) or COUNT
    rows = n * ROW * user.tail + calibrated * (LOOK * core.prefix + ROW * user.tail)
    return rows + 2 * k * k * (n + k / 3) / DENSE_FLOPS


def _test_seconds(config: Config, records: Records, speeds: Speeds) -> float:
    """The test images are predicted at the end: by the core alone, if it was trained, and by the model."""
    core, user = speeds.core, speeds.user
    solves = part_named(config.user.kind).keeps_activations
    tail = user.tail + user.product if solves else ROW * user.tail
    alone = core.activations + core.tail if len(records.core) else 0.0
    return len(records.test) * (alone + user.activations + tail)


def num_passes(config: Config) -> int | None:
    """Passes over the data that the solver is counted with: an iterative one stops before its limit."""
    solver = config.user.solver
    if solver.kind == "cholesky":
        return None
    if solver.kind == "sgd":
        return (config.user.epochs or solver.epochs) + 1
    return min(PASSES, solver.max_passes)


def _user_seconds(
    config: Config, n: int, num_classes: int, num_weights: int, speed: Speed
) -> float:
    solver = config.user.solver
    if solver.kind == "cholesky":
        rows, d = n * num_classes, num_weights
        return rows * speed.product + (rows * d**2 + d**3 / 3) / DENSE_FLOPS
    return (num_passes(config) or 0) * n * speed.product
