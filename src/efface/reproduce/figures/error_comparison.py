"""Test error of a fine-tuned network, the mixed-linear model, compact and the last layer alone.

At the preset's size; ``experiments/accuracy.py`` is the same comparison on all images, with every choice made
on core data.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from efface.audit.readouts import error
from efface.linear.last_layer import LastLayer
from efface.network.targets import one_hot
from efface.network.training import Stage, train
from efface.parts.tangent.sgd import SGD
from efface.report.figures import bars
from efface.report.html import Table
from efface.reproduce.bench import Bench
from efface.reproduce.figure import (
    Drawing,
    PaperFigure,
    Results,
    Values,
    by_name,
    judged,
    mean,
    percent,
    seeds,
    spread,
)
from efface.reproduce.specimen import SOLVE, specimen_of

RATE = {"cnn": 0.01}  # of fine-tuning the tail, by network; pretrained ones take less
LAST_LAYER_RIDGES = tuple(10.0**k for k in range(-5, 2))
PRINTED_RATE = 0.05  # of training
ONE_SEED = 2.0  # points: about the standard error of one score on 500 images
TITLES = {
    "core": "core alone",
    "last-layer": "last layer, same ridge",
    "last-layer-chosen": "last layer, its ridge chosen on core data",
    "mixed-linear": "mixed-linear, solved",
    "mixed-linear-sgd": "mixed-linear, the paper's SGD",
    "compact": "compact (ours)",
    "dnn": "fine-tuned tail",
}


def parts(bench: Bench) -> dict[str, Callable[[], Values]]:
    runs = {
        "core": core_alone,
        "last-layer": last_layer,
        "last-layer-chosen": last_layer_chosen,
        "mixed-linear": mixed_linear,
        "mixed-linear-sgd": mixed_linear_sgd,
        "compact": compact,
        "dnn": fine_tuned,
    }
    return {
        f"{name}/{seed}": partial(run, bench, seed)
        for seed in seeds(bench)
        for name, run in runs.items()
    }


def core_alone(bench: Bench, seed: int) -> Values:
    core, data = bench.core_and_data(bench.spot(seed=seed))
    logits = core.logits_of(bench.tensor(core, data.test))
    return {"error": error(logits, core.labels(data.test))}


def last_layer(bench: Bench, seed: int) -> Values:
    """Ridge on the pooled features of all training images, at the ridge of the mixed-linear model."""
    return _last_layer(bench, seed, bench.accuracy_mu)


def last_layer_chosen(bench: Bench, seed: int) -> Values:
    """The same at the ridge that does best on every fifth core image, fitted on the other core images."""
    core, data = bench.core_and_data(bench.spot(seed=seed))
    features = bench.features(bench.spot(seed=seed), data.core)
    labels = core.labels(data.core)
    held = torch.arange(len(labels)) % 5 == 4
    targets = one_hot(labels, len(core.classes), 5.0)
    wrong = {
        mu: error(
            LastLayer.fit(features[~held], targets[~held], mu).logits(features[held]), labels[held]
        )
        for mu in LAST_LAYER_RIDGES
    }
    return _last_layer(bench, seed, min(wrong, key=lambda mu: wrong[mu]))


def _last_layer(bench: Bench, seed: int, mu: float) -> Values:
    core, data = bench.core_and_data(bench.spot(seed=seed))
    records = data.user + data.core
    features, shown = (bench.features(bench.spot(seed=seed), r) for r in (records, data.test))
    targets = one_hot(core.labels(records), len(core.classes), 5.0)
    model = LastLayer.fit(features, targets, mu)
    return {"error": error(model.logits(shown), core.labels(data.test)), "mu": mu}


def mixed_linear(bench: Bench, seed: int) -> Values:
    """The minimiser, at the ridge that the paper prints for this comparison."""
    specimen = specimen_of(bench, bench.spot(seed=seed, mu=bench.accuracy_mu))
    training = {key: specimen.training[key] for key in ("passes", "seconds", "distance_bound")}
    training["training_status"] = specimen.training["status"]
    norm = float(specimen.weights.norm())
    return {"error": specimen.test_errors(specimen.weights)[0], "norm": norm, **training}


def mixed_linear_sgd(bench: Bench, seed: int) -> Values:
    """50 epochs of SGD from zero, at the printed schedule and the largest rate that is sure to be stable."""
    specimen = specimen_of(bench, bench.spot(seed=seed, mu=bench.accuracy_mu))
    problem, begin = specimen.scene.problem(specimen.scene.everyone), time.monotonic()
    rate, epochs = specimen.rate, bench.preset.sgd_epochs
    solution = SGD(epochs=epochs, lr=rate, seed=seed).solve(problem)
    return {
        "error": specimen.test_errors(solution.value)[0],
        "rate": rate,
        "printed_rate": bench.rate(PRINTED_RATE),
        "epochs": epochs,
        "gradient_norm": solution.residual_norm,
        "norm": float(solution.value.norm()),
        "seconds": time.monotonic() - begin,
    }


def compact(bench: Bench, seed: int) -> Values:
    begin = time.monotonic()
    model = bench.compact_model(bench.spot(seed=seed))
    seconds = time.monotonic() - begin
    test = bench.split(bench.preset.core_fraction, seed).test
    return {"error": 1 - model.accuracy(test), "seconds": seconds}


def fine_tuned(bench: Bench, seed: int) -> Values:
    """Cross-entropy on the layers that the others linearise."""
    bench.make_room()
    core, data = bench.core_and_data(bench.spot(seed=seed))
    records, begin = data.user + data.core, time.monotonic()
    tail = copy.deepcopy(core.tail).requires_grad_(True)
    stage = Stage("tail", bench.preset.tune_epochs, RATE.get(bench.backbone, 0.002))
    train(tail, tail.parameters(), bench.tensor(core, records), core.labels(records), stage)
    tail.requires_grad_(False)
    logits = torch.cat([tail(x) for x in bench.tensor(core, data.test).split(64)])
    seconds = time.monotonic() - begin
    return {"error": error(logits, core.labels(data.test)), "seconds": seconds}


def passes(bench: Bench) -> float:
    p = bench.preset
    return p.seeds * (SOLVE + p.sgd_epochs + p.tune_epochs)


def solves(bench: Bench) -> float:
    return float(bench.preset.seeds)


def draw(results: Results) -> list[Drawing]:
    found = by_name(results)
    names = [name for name in TITLES if name in found]
    svg = bars(
        [TITLES[name] for name in names],
        [mean(found[name], "error") for name in names],
        errors=[spread(found[name], "error") for name in names],
        ylabel="test error",
        percent=True,
    )
    return [Drawing(svg, "Test error by model; bars are standard deviations over core splits.")]


def table(results: Results) -> Table:
    found = by_name(results)
    rows = [(TITLES[n], percent(found[n], "error"), len(found[n])) for n in TITLES if n in found]
    return Table(("model", "test error", "seeds"), rows, numeric=(1, 2))


def verdict(results: Results) -> str:
    found = by_name(results)
    order = sorted((n for n in TITLES if n in found), key=lambda n: mean(found[n], "error"))
    ranked = ", ".join(f"{TITLES[n]} {percent(found[n], 'error')}" for n in order)
    gains = {name: _gain(found, name) for name in ("mixed-linear", "mixed-linear-sgd")}
    clear = [gain > noise for gain, noise in gains.values()]
    told = " and ".join(
        f"{gain:+.1f} points {how} (spread {noise:.1f})"
        for (gain, noise), how in zip(gains.values(), ("solved", "by the paper's SGD"), strict=True)
    )
    return (
        f"{judged(results, all(clear), any(clear), above=False)} {ranked}. Against the last layer at the "
        f"ridge that core data choose, the mixed-linear model has {told}."
    )


def _gain(found: dict[str, list[Values]], name: str) -> tuple[float, float]:
    """Points that a model gains on the last layer at its best ridge, and what may be chance."""
    rows, last = found[name], found["last-layer-chosen"]
    noise = 100 * float(np.hypot(spread(rows, "error"), spread(last, "error")))
    gain = 100 * (mean(last, "error") - mean(rows, "error"))
    return gain, max(noise, 0.0 if len(rows) > 1 else ONE_SEED)


FIGURE = PaperFigure(
    "error-comparison",
    "Test error by model",
    "The mixed-linear model is close to a fine-tuned network and clearly better than the last layer.",
    parts,
    passes,
    solves,
    draw,
    table,
    verdict,
)
