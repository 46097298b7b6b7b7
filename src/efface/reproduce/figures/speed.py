"""Seconds of a request against retraining, ours and the paper's, as data and requests grow in number."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from efface.model.mixed_linear import MixedLinear
from efface.parts.part import require_training_data
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import SGD
from efface.report.figures import Line, Scale, lines
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
    seeds,
    short,
)
from efface.reproduce.procedures import SOLVED, Procedure, paper
from efface.reproduce.specimen import Specimen, specimen_of

WAYS = ("retrain", "paper", "solved", "compact")
TITLES = {
    "retrain": "the paper's retraining",
    "paper": "the paper's forgetting",
    "solved": "solved (ours)",
    "compact": "compact (ours)",
}
TIMED = 3  # requests at each size


def parts(bench: Bench) -> dict[str, Callable[[], Values]]:
    found: dict[str, Callable[[], Values]] = {
        f"size-{size:g}/0": partial(at_size, bench, size) for size in bench.preset.sizes
    }
    for seed in list(seeds(bench))[:1]:
        found[f"requests/{seed}"] = partial(by_request, bench, seed)
    return found


def at_size(bench: Bench, size: float) -> Values:
    """One request of 1 % with this share of the user data; 50 epochs are 50 times a measured one."""
    specimen = specimen_of(bench, bench.spot(size=size))
    problem = specimen.scene.problem(specimen.scene.everyone)
    epoch = _epoch_seconds(problem)
    values = {"num_train": problem.n, "retrain": bench.preset.sgd_epochs * epoch, "epoch": epoch}
    values |= _timed(specimen, "paper", paper(bench.paper_epochs))
    if size == 1:  # all requests as one: seconds a solve, from the run that other figures share
        step = SOLVED.run(specimen).steps[0]
        values |= {"solved": step["seconds"], "solved_passes": step["passes"]}
        values |= {"training_status": specimen.training["status"]}
    model = bench.compact_model(specimen.spot)
    values["compact"] = statistics.median(_compact_seconds(model, specimen.sets[:TIMED]))
    rows = require_training_data(model.data).rows
    values["compact_retrain"] = _seconds(lambda: (model.user.reset(), model.user.add_rows(rows)))
    return values | {"features": model.user.projection.num_features}


def _epoch_seconds(problem: RidgeProblem) -> float:
    """Two epochs less one, but never the nothing that a busy machine may give."""
    problem.gradient(problem.zeros())  # fills the cache: not part of an epoch
    two, one = (
        min(_seconds(partial(SGD(epochs=e, lr=1e-6).solve, problem)) for _ in range(2))
        for e in (2, 1)
    )
    return max(two - one, one / 10)


def _timed(specimen: Specimen, name: str, procedure: Procedure) -> Values:
    """From zero weights: how long the steps take does not depend on where they start."""
    method, weights = procedure.choice(specimen), torch.zeros(specimen.user.num_weights).double()
    seconds, passes = [], []
    for positions in specimen.sets[:TIMED]:
        scene = specimen.scene.forgetting(positions)
        seconds.append(_seconds(partial(method, scene, weights, specimen.spot.seed)))
        passes.append(scene.retained_problem.passes)
    return {name: statistics.median(seconds), f"{name}_passes": statistics.median(passes)}


def by_request(bench: Bench, seed: int) -> Values:
    """Seconds of each of ten requests in a row."""
    specimen = specimen_of(bench, bench.spot(seed=seed))
    steps = paper(bench.paper_epochs).run(specimen).steps
    values: Values = {"paper": [s["seconds"] for s in steps]}
    values |= {"paper_passes": [s["passes"] for s in steps]}
    return values | {"compact": _compact_seconds(bench.compact_model(specimen.spot), specimen.sets)}


def _compact_seconds(model: MixedLinear, sets: list[Tensor]) -> list[float]:
    """Of each request, one after the other."""
    data = require_training_data(model.data)
    ids = [[data.records[int(i)].id for i in positions] for positions in sets]
    return [_seconds(partial(model.forget, ids=some)) for some in ids]


def _seconds(run: Callable[[], object]) -> float:
    begin = time.monotonic()
    run()
    return time.monotonic() - begin


def passes(bench: Bench) -> float:
    return len(bench.preset.sizes) * (60 + TIMED * (bench.paper_epochs + 8 + 25))


def _sizes(results: Results) -> list[list[Values]]:
    return sorted(by_name(results, "size-").values(), key=lambda rows: rows[0]["num_train"])


def draw(results: Results) -> list[Drawing]:
    groups = [rows for rows in _sizes(results) if "num_train" in rows[0]]
    x = [mean(rows, "num_train") for rows in groups]
    grown = [m for m in WAYS if all(m in rows[0] for rows in groups)]
    curves = [Line(TITLES[m], x, [mean(rows, m) for rows in groups]) for m in grown]
    growth = lines(curves, Scale("training images"), Scale("seconds a request", log=True))
    row = by_name(results)["requests"][0]
    every = [Line(TITLES[m], list(range(1, len(row[m]) + 1)), row[m]) for m in WAYS if m in row]
    count = lines(every, Scale("request"), Scale("seconds", log=True))
    return [
        Drawing(growth, "Seconds of one request against the number of training images."),
        Drawing(count, "Seconds of each request in a row.", "requests"),
    ]


def table(results: Results) -> Table:
    columns = ("training images", *(TITLES[m] for m in WAYS), "retraining compact from rows")
    rows = [
        (
            f"{mean(rows, 'num_train'):.0f}",
            *(f"{mean(rows, m):.3g} s" if m in rows[0] else "–" for m in WAYS),
            f"{mean(rows, 'compact_retrain'):.3g} s",
        )
        for rows in _sizes(results)
    ]
    return Table(columns, rows, numeric=tuple(range(6)))


def verdict(results: Results) -> str:
    largest = _sizes(results)[-1]
    times = {m: mean(largest, m) for m in WAYS}
    passes_ = mean(largest, "solved_passes")
    ratio = times["retrain"] / times["paper"]
    return (
        f"{judged(results, ratio >= 16, ratio > 1, above=False)} "
        f"With {mean(largest, 'num_train'):.0f} images: the paper's "
        f"forgetting is {_faster(ratio)} than its retraining (claimed 16 to 25); "
        f"solved takes {passes_:.0f} passes for all requests as one, "
        f"{_faster(times['retrain'] / times['solved'])} than one retraining, "
        f"compact is {_faster(times['retrain'] / times['compact'])}."
    )


def _faster(ratio: float) -> str:
    return f"{short(ratio)} times faster" if ratio >= 1 else f"{short(1 / ratio)} times slower"


FIGURE = PaperFigure(
    "speed",
    "Seconds a request, against retraining",
    "Forgetting takes 2 to 3 passes where retraining takes 50: 16 to 25 times faster.",
    parts,
    passes,
    lambda bench: 2.0,
    draw,
    table,
    verdict,
)
