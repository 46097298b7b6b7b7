"""A generic core against a core that also saw 10, 30 or 50 % of the task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from efface.report.figures import Scale
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
    short,
    three_solves,
)
from efface.reproduce.figures.info_vs_noise import sgd_passes
from efface.reproduce.figures.l2 import against, forgotten


def parts(bench: Bench) -> dict[str, Callable[[], Values]]:
    return {
        f"fraction-{fraction:g}/{seed}": partial(
            forgotten, bench, bench.spot(fraction=fraction, seed=seed)
        )
        for seed in seeds(bench)
        for fraction in bench.preset.core_fractions
    }


def passes(bench: Bench) -> float:
    p = bench.preset
    return p.seeds * len(p.core_fractions) * (120 + sgd_passes(bench, bench.paper_epochs))


def solves(bench: Bench) -> float:
    return three_solves(bench) * len(bench.preset.core_fractions)


def _sorted(results: Results) -> list[list[Values]]:
    return sorted(by_name(results).values(), key=lambda rows: rows[0]["fraction"])


def draw(results: Results) -> list[Drawing]:
    errors = {"core_error": "core alone", "test_error": "mixed-linear, after forgetting"}
    scale = Scale("share of the task in the core data", percent=True)
    return against(_sorted(results), "fraction", scale, "the core's share of the task", errors)


def table(results: Results) -> Table:
    columns = (
        "core data",
        "core alone",
        "trained",
        "after forgetting",
        "nats (measured)",
        "nats (proved)",
        "distance",
    )
    rows = [
        (
            f"generic + {100 * mean(rows, 'fraction'):.0f} %",
            percent(rows, "core_error"),
            percent(rows, "trained_error"),
            percent(rows, "test_error"),
            short(mean(rows, "information_nats_estimate")),
            short(mean(rows, "information_nats_bound")),
            short(mean(rows, "distance_estimate")),
        )
        for rows in _sorted(results)
    ]
    return Table(columns, rows, numeric=tuple(range(1, 7)))


def verdict(results: Results) -> str:
    groups = _sorted(results)
    first, last = groups[0], groups[-1]
    nats = [mean(rows, "information_nats_estimate") for rows in (first, last)]
    better = mean(last, "test_error") < mean(first, "test_error")
    less = nats[1] < 0.95 * nats[0]  # closer than that is a tie
    word = judged(results, better and less, better or less, above=False)
    easier = "less" if less else "not less"
    return (
        f"{word} With {100 * mean(last, 'fraction'):.0f} % of the task in the core the test error after "
        f"forgetting is {percent(last, 'test_error')}, generic {percent(first, 'test_error')}; "
        f"the information left is {easier}: {short(nats[1])} against {short(nats[0])} nats."
    )


FIGURE = PaperFigure(
    "core-data",
    "Core data close to the task",
    "With a part of the task in the core data the model is better and forgets more easily.",
    parts,
    passes,
    solves,
    draw,
    table,
    verdict,
)
