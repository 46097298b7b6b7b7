"""Remaining information and test error against the epochs of forgetting a request is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from efface.report.figures import Line, Scale, lines
from efface.report.html import Table
from efface.reproduce import procedures
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
    short,
    three_solves,
)
from efface.reproduce.figures.info_vs_noise import sgd_passes
from efface.reproduce.procedures import Procedure
from efface.reproduce.specimen import specimen_of


def epochs_of(bench: Bench) -> list[int]:
    return sorted({*bench.preset.epochs, bench.paper_epochs})


def parts(bench: Bench) -> dict[str, Callable[[], Values]]:
    runs = {"epochs-0": procedures.ORIGINAL}
    runs |= {f"epochs-{epochs}": procedures.paper(epochs) for epochs in epochs_of(bench)}
    runs["solved"] = procedures.SOLVED
    return {
        f"{name}/{seed}": partial(measure, bench, seed, run)
        for seed in seeds(bench)
        for name, run in runs.items()
    }


def measure(bench: Bench, seed: int, procedure: Procedure) -> Values:
    """At the planned σ."""
    specimen = specimen_of(bench, bench.spot(seed=seed))
    run = procedure.run(specimen)
    return {
        **specimen.information(run, specimen.guarantee.sigma),
        "passes": float(np.mean([step["passes"] for step in run.steps])),
        "seconds": float(np.mean([step["seconds"] for step in run.steps])),
        "test_error": float(np.mean(specimen.test_errors(run.state, specimen.guarantee.sigma))),
        "retrained_error": specimen.test_errors(specimen.retrained)[0],
        **specimen.standing,
    }


def passes(bench: Bench) -> float:
    sgd = sum(sgd_passes(bench, epochs) for epochs in epochs_of(bench))
    return bench.preset.seeds * (60 + sgd)


def _epochs(results: Results) -> dict[int, list[Values]]:
    found = {
        int(name): rows for name, rows in by_name(results, "epochs-").items() if name.isdigit()
    }
    return dict(sorted(found.items()))


def draw(results: Results) -> list[Drawing]:
    found, solved = _epochs(results), by_name(results)["solved"]
    x = list(map(float, found))
    curves = [
        Line(
            f"the paper's SGD, {word}",
            x,
            [mean(rows, f"information_nats_{kind}") for rows in found.values()],
        )
        for kind, word in (("estimate", "measured"), ("bound", "proved"))
    ]
    least = mean(solved, "information_nats_bound")
    levels = {"solved (ours), proved": least}
    scale = Scale("epochs of forgetting a request")
    information = lines(
        curves, scale, Scale("remaining information (nats)", log=True, low=least / 3), levels=levels
    )
    errors = [Line("the paper's SGD", x, [mean(rows, "test_error") for rows in found.values()])]
    levels = {"retrained": mean(solved, "retrained_error")}
    error = lines(errors, scale, Scale("test error", percent=True, low=0.0), levels=levels)
    return [
        Drawing(
            information, "Information left at the planned σ against epochs; 0 is doing nothing."
        ),
        Drawing(error, "Test error against epochs.", "error"),
    ]


def table(results: Results) -> Table:
    columns = ("method", "passes", "seconds", "nats (measured)", "nats (proved)", "test error")
    named = {f"SGD, {epochs} epochs": rows for epochs, rows in _epochs(results).items()}
    named["solved"] = by_name(results)["solved"]
    rows = [
        (
            name,
            f"{mean(values, 'passes'):.0f}",
            f"{mean(values, 'seconds'):.2f}",
            short(mean(values, "information_nats_estimate")),
            short(mean(values, "information_nats_bound")),
            percent(values, "test_error"),
        )
        for name, values in named.items()
    ]
    return Table(columns, rows, numeric=tuple(range(1, 6)))


def verdict(results: Results) -> str:
    found, solved = _epochs(results), by_name(results)["solved"]
    nats = {epochs: mean(rows, "information_nats_estimate") for epochs, rows in found.items()}
    best = min(nats, key=lambda epochs: nats[epochs])
    falls = "falls" if nats[max(nats)] < nats[0] else "does not fall"
    few = min((n for epochs, n in nats.items() if 1 <= epochs <= 4), default=nats[best])
    return (
        f"{judged(results, few <= 1, nats[best] <= 1)} "
        f"The information {falls} with epochs: {short(nats[0])} nats measured when nothing is done, "
        f"{short(nats[best])} at best ({best} epochs). The solved procedure leaves "
        f"{short(mean(solved, 'information_nats_estimate'))} after {mean(solved, 'passes'):.0f} passes. "
        f"Test error: {percent(found[best], 'test_error')} against "
        f"{percent(solved, 'test_error')}."
    )


FIGURE = PaperFigure(
    "info-vs-epochs",
    "Remaining information and test error against epochs of forgetting",
    "Two or three epochs a request suffice: little information is left, where retraining takes 50.",
    parts,
    passes,
    three_solves,
    draw,
    table,
    verdict,
)
