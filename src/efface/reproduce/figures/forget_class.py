"""A whole class in one request: all readouts of all methods."""

from __future__ import annotations

from collections.abc import Callable

from efface.reproduce.bench import Bench
from efface.reproduce.figure import (
    PaperFigure,
    Results,
    Values,
    by_name,
    judged,
    mean,
    percent,
    three_solves,
)
from efface.reproduce.figures import readouts


def parts(bench: Bench) -> dict[str, Callable[[], Values]]:
    return readouts.parts(bench, whole_class=True)


def passes(bench: Bench) -> float:
    each = bench.preset.relearn * 0.3 + 20
    return bench.preset.seeds * (60 + 3 * (bench.paper_epochs + 8) + 8 * each)


def verdict(results: Results) -> str:
    found = by_name(results)
    names = ("retrained", "original", "fisher", "fine-tune", "paper", "solved", "compact")
    errors = ", ".join(f"{name} {percent(found[name], 'error_forgotten')}" for name in names)
    gone = mean(found["paper"], "error_forgotten")
    target = mean(found["retrained"], "error_forgotten")
    word = judged(results, gone >= target - 0.01, gone >= target / 2)
    if mean(found["original"], "error_forgotten") >= target - 0.01:
        word = "**Undecided.** The untouched model misreads the class already."
    return f"{word} Error on the forgotten class (100 % when nothing of it is left): {errors}."


FIGURE = PaperFigure(
    "forget-class",
    "A whole class in one request",
    "ML-forgetting also removes a class: its error becomes 100 %, as when retrained without it.",
    parts,
    passes,
    three_solves,
    readouts.draw,
    readouts.table,
    verdict,
)
