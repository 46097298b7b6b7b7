"""Remaining information and test error against the noise σ, after ten requests of 1 %."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

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
    three_solves,
)
from efface.reproduce.method_run import Run
from efface.reproduce.procedures import SOLVED, Procedure, paper, paper_at_printed_rate
from efface.reproduce.specimen import Specimen, specimen_of

TITLES = {
    "paper": "the paper's SGD",
    "paper-printed": "the paper's SGD, printed rate",
    "solved": "solved (ours)",
    "complete": "complete gradient",
    "stochastic": "stochastic gradient",
}


def over_noise(specimen: Specimen, run: Run) -> Values:
    """Information and error of one run at each σ; the noise is added once, to the final state."""
    rows = []
    for factor in specimen.bench.preset.sigmas:
        sigma = factor * specimen.guarantee.sigma
        errors = specimen.test_errors(run.state, sigma)
        rows.append({"sigma": sigma, **specimen.information(run, sigma)})
        rows[-1] |= {"test_error": float(np.mean(errors)), "test_error_std": float(np.std(errors))}
    last = specimen.information(run, 1.0)
    return {
        "noise": rows,
        "noiseless_error": specimen.test_errors(run.state)[0],
        "retrained_error": specimen.test_errors(specimen.retrained)[0],
        "passes": float(np.mean([step["passes"] for step in run.steps])),
        "seconds": float(np.mean([step["seconds"] for step in run.steps])),
        "planned_sigma": specimen.guarantee.sigma,
        **specimen.standing,
        "distance_estimate": last["distance_estimate"],
        "distance_bound": last["distance_bound"],
    }


def noise_parts(bench: Bench, procedures: dict[str, Procedure]) -> dict[str, Callable[[], Values]]:
    """A part for each seed and procedure."""

    def measure(seed: int, procedure: Procedure) -> Values:
        specimen = specimen_of(bench, bench.spot(seed=seed))
        return over_noise(specimen, procedure.run(specimen))

    return {
        f"{name}/{seed}": partial(measure, seed, procedure)
        for seed in seeds(bench)
        for name, procedure in procedures.items()
    }


def parts(bench: Bench) -> dict[str, Callable[[], Values]]:
    epochs = bench.paper_epochs
    printed = paper_at_printed_rate(epochs)
    runs = {"paper": paper(epochs), "paper-printed": printed, "solved": SOLVED}
    return noise_parts(bench, runs)


def sgd_passes(bench: Bench, epochs: int) -> float:
    """Of all requests by SGD: the epochs, two gradients, and about four for one in float64 at the end."""
    return bench.preset.requests * (epochs + 2) + 4


def passes(bench: Bench) -> float:
    train, solve = 30, 15 * bench.preset.requests
    return bench.preset.seeds * (2 * train + 2 * sgd_passes(bench, bench.paper_epochs) + solve)


def at_each_sigma(rows: list[Values], key: str) -> tuple[list[float], list[float]]:
    """(σ, mean over seeds of ``key``)."""
    tables = [row["noise"] for row in rows]
    pairs = [(mean(column, "sigma"), mean(column, key)) for column in zip(*tables, strict=True)]
    return [p[0] for p in pairs], [p[1] for p in pairs]


def draw(results: Results) -> list[Drawing]:
    curves, errors, found = [], [], by_name(results)
    for name, title in TITLES.items():
        if name not in found:
            continue
        rows = found[name]
        curves.append(Line(f"{title}, measured", *at_each_sigma(rows, "information_nats_estimate")))
        curves.append(Line(f"{title}, proved", *at_each_sigma(rows, "information_nats_bound")))
        errors.append(Line(title, *at_each_sigma(rows, "test_error")))
    sigma = Scale("noise σ", log=True)
    information = lines(curves, sigma, Scale("remaining information (nats)", log=True))
    error = lines(errors, sigma, Scale("test error", percent=True, low=0.0))
    return [
        Drawing(information, "Remaining information against noise: measured and proved."),
        Drawing(error, "Test error against noise.", "error"),
    ]


def table(results: Results) -> Table:
    columns = (
        "method",
        "passes a request",
        "seconds",
        "distance (measured)",
        "distance (proved)",
        "nats at planned σ (measured)",
        "(proved)",
        "test error",
        "retrained",
    )
    rows, found = [], by_name(results)
    for name in (name for name in TITLES if name in found):
        values = found[name]
        sigma = mean(values, "planned_sigma")
        distance, bound = mean(values, "distance_estimate"), mean(values, "distance_bound")
        rows.append(
            (
                TITLES[name],
                f"{mean(values, 'passes'):.0f}",
                f"{mean(values, 'seconds'):.2f}",
                short(distance),
                short(bound),
                short(_nats(distance, sigma)),
                short(_nats(bound, sigma)),
                f"{100 * mean(values, 'noiseless_error'):.1f} %",
                f"{100 * mean(values, 'retrained_error'):.1f} %",
            )
        )
    return Table(columns, rows, numeric=tuple(range(1, 9)))


def _nats(distance: float, sigma: float) -> float:
    return 0.5 * min(distance / sigma, 1e150) ** 2


def smallest_sigma(rows: list[Values], key: str, nats: float) -> float | None:
    """The first σ of the grid at which ``key`` is at most ``nats``."""
    sigmas, values = at_each_sigma(rows, key)
    return next((s for s, v in zip(sigmas, values, strict=True) if v <= nats), None)


def verdict(results: Results) -> str:
    found = by_name(results)
    theirs = [name for name in ("paper", "paper-printed") if name in found]
    words = [judged(results, any(_both_low(found[name]) for name in theirs))]
    words += [_one_nat(TITLES[name], found[name]) for name in (*theirs, "solved")]
    return " ".join(words)


def _both_low(rows: list[Values], nats: float = 1.0, points: float = 0.02) -> bool:
    """Whether some σ leaves at most ``nats`` (measured) and costs at most ``points`` of error."""
    information = at_each_sigma(rows, "information_nats_estimate")[1]
    errors, least = at_each_sigma(rows, "test_error")[1], mean(rows, "noiseless_error")
    return any(i <= nats and e <= least + points for i, e in zip(information, errors, strict=True))


def _one_nat(title: str, rows: list[Values]) -> str:
    title = title[:1].upper() + title[1:]
    sigma = smallest_sigma(rows, "information_nats_estimate", 1.0)
    if sigma is None:
        return f"{title}: more than one nat is left at every σ tried."
    sigmas, errors = at_each_sigma(rows, "test_error")
    there = errors[sigmas.index(sigma)]
    return (
        f"{title}: less than one nat (measured) from σ = {short(sigma)} on, where the test error is "
        f"{100 * there:.1f} % against {100 * mean(rows, 'noiseless_error'):.1f} % without noise."
    )


FIGURE = PaperFigure(
    "info-vs-noise",
    "Remaining information and test error against the noise",
    "The remaining information falls with the noise, the test error rises; a range of σ has both low.",
    parts,
    passes,
    three_solves,
    draw,
    table,
    verdict,
)
