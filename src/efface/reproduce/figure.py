"""What a figure of the paper is made of: parts to measure, and how their numbers are drawn and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from efface.linear.solution import Status
from efface.report.html import Table
from efface.reproduce.bench import Bench

SOLVED = str(Status.CONVERGED)
Values = dict[str, Any]
Results = Mapping[str, Values]  # by part: "paper/0" is a name and a seed


@dataclass(frozen=True)
class Drawing:
    """``name`` ends the file's name; empty for the main one of a figure."""

    svg: str
    caption: str
    name: str = ""


@dataclass(frozen=True)
class PaperFigure:
    """One experiment of the paper.

    Args:
        claim: what the paper says, in our words.
        parts: what has to be measured, by name; each is a small dictionary for JSON.
        passes: about how many passes over the data all parts take, for the expected time.
        solves: how many models all parts solve for; each is looked at in float64 (``run.expected``).
        draw, table, verdict: from results alone; they compute nothing else.
        settings: what the results depend on; the bench's own by default.
    """

    name: str
    title: str
    claim: str
    parts: Callable[[Bench], dict[str, Callable[[], Values]]]
    passes: Callable[[Bench], float]
    solves: Callable[[Bench], float]
    draw: Callable[[Results], list[Drawing]]
    table: Callable[[Results], Table]
    verdict: Callable[[Results], str]
    settings: Callable[[Bench], Values] = lambda bench: bench.settings


def seeds(bench: Bench) -> range:
    return range(bench.preset.seeds)


def three_solves(bench: Bench) -> float:
    """The trained model, all requests as one, and the retrained model, a seed."""
    return 3.0 * bench.preset.seeds


def by_name(results: Results, start: str = "") -> dict[str, list[Values]]:
    """The values of all seeds, by the part's name without the seed."""
    grouped: dict[str, list[Values]] = {}
    for key, value in results.items():
        name = key.rpartition("/")[0]
        if name.startswith(start):
            grouped.setdefault(name.removeprefix(start), []).append(value)
    return grouped


def mean(rows: Sequence[Values], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def spread(rows: Sequence[Values], key: str) -> float:
    """Standard deviation over seeds; 0 for one."""
    values = [row[key] for row in rows]
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def percent(rows: Sequence[Values], key: str) -> str:
    """Mean ± standard deviation in percent."""
    shown = f"{100 * mean(rows, key):.1f}"
    return f"{shown} ± {100 * spread(rows, key):.1f} %" if len(rows) > 1 else f"{shown} %"


def judged(results: Results, holds: bool, partly: bool = False, *, above: bool = True) -> str:
    """The word that a verdict begins with; by a rule on the numbers, never by hand.

    A verdict on the paper needs models that were solved and, with ``above``, are better than their last
    layer alone: there is nothing to forget in the layers below otherwise.
    """
    reason = _untested(results, above)
    if reason:
        return f"**Not tested.** {reason}"
    return "**Agrees.**" if holds else "**Partly.**" if partly else "**Disagrees.**"


def _untested(results: Results, above: bool) -> str:
    rows = [row for row in results.values() if "training_status" in row]
    keys = ("training_status", "reference_status")
    open_ = [row for row in rows if any(row.get(key, SOLVED) != SOLVED for key in keys)]
    if open_:
        return f"{len(open_)} of {len(rows)} parts rest on a model that was not solved."
    pairs = [row for row in rows if "last_layer_error" in row] if above else []
    if pairs and mean(pairs, "trained_error") >= mean(pairs, "last_layer_error"):
        errors = [
            f"{100 * mean(pairs, key):.1f} %" for key in ("trained_error", "last_layer_error")
        ]
        return f"The model is no better than its last layer alone ({errors[0]} error, {errors[1]})."
    return ""


def short(value: float) -> str:
    return f"{value:.3g}"
