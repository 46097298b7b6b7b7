"""Remaining information and test error against the ridge μ, after ten requests of 1 %."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from efface.report.figures import Line, Scale, lines
from efface.report.html import Table
from efface.reproduce.bench import Bench, Spot
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
from efface.reproduce.procedures import paper
from efface.reproduce.specimen import specimen_of


def parts(bench: Bench) -> dict[str, Callable[[], Values]]:
    return {
        f"mu-{factor * bench.mu:g}/{seed}": partial(
            forgotten, bench, bench.spot(mu=factor * bench.mu, seed=seed)
        )
        for seed in seeds(bench)
        for factor in bench.preset.mus
    }


def forgotten(bench: Bench, spot: Spot) -> Values:
    """Information and error after the paper's forgetting at one spot, at the planned σ of that spot."""
    specimen = specimen_of(bench, spot)
    run = paper(bench.paper_epochs).run(specimen)
    sigma = specimen.guarantee.sigma
    return {
        **specimen.information(run, sigma),
        "mu": spot.mu,
        "fraction": spot.fraction,
        "sigma": sigma,
        "core_error": specimen.test_errors(torch.zeros_like(specimen.weights))[0],
        "test_error": float(np.mean(specimen.test_errors(run.state, sigma))),
        "retrained_error": specimen.test_errors(specimen.retrained)[0],
        **specimen.standing,
        "moved": float((specimen.weights - specimen.retrained).norm()),
    }


def passes(bench: Bench) -> float:
    p = bench.preset
    return p.seeds * len(p.mus) * (120 + sgd_passes(bench, bench.paper_epochs))


def solves(bench: Bench) -> float:
    return three_solves(bench) * len(bench.preset.mus)


def _sorted(results: Results) -> list[list[Values]]:
    return sorted(by_name(results).values(), key=lambda rows: rows[0]["mu"])


def against(
    groups: list[list[Values]], key: str, scale: Scale, name: str, errors: dict[str, str]
) -> list[Drawing]:
    """Information left after the paper's forgetting, and test errors (key: label), against ``key``."""
    x = [mean(rows, key) for rows in groups]
    curves = [
        Line(word, x, [mean(rows, f"information_nats_{kind}") for rows in groups])
        for kind, word in (("estimate", "measured"), ("bound", "proved"))
    ]
    tests = [Line(word, x, [mean(rows, e) for rows in groups]) for e, word in errors.items()]
    return [
        Drawing(
            lines(curves, scale, Scale("remaining information (nats)", log=True)),
            f"Information left after the paper's forgetting, against {name}.",
        ),
        Drawing(
            lines(tests, scale, Scale("test error", percent=True, low=0.0)),
            f"Test error against {name}.",
            "error",
        ),
    ]


def draw(results: Results) -> list[Drawing]:
    errors = {"test_error": "after forgetting", "retrained_error": "retrained"}
    return against(_sorted(results), "mu", Scale("ridge μ", log=True), "μ", errors)


def table(results: Results) -> Table:
    columns = (
        "μ",
        "nats (measured)",
        "nats (proved)",
        "nats if nothing is done",
        "test error",
        "retrained",
        "training passes",
    )
    rows = [
        (
            short(mean(rows, "mu")),
            short(mean(rows, "information_nats_estimate")),
            short(mean(rows, "information_nats_bound")),
            short(0.5 * (mean(rows, "moved") / mean(rows, "sigma")) ** 2),
            percent(rows, "test_error"),
            percent(rows, "retrained_error"),
            f"{mean(rows, 'training_passes'):.0f}",
        )
        for rows in _sorted(results)
    ]
    return Table(columns, rows, numeric=tuple(range(7)))


def verdict(results: Results) -> str:
    groups = _sorted(results)
    nats = [mean(rows, "information_nats_estimate") for rows in groups]
    falls = "falls" if nats[-1] < nats[0] else "does not fall"
    low, high = (percent(groups[i], "test_error") for i in (0, -1))
    return (
        f"{judged(results, nats[-1] < nats[0], above=False)} "
        f"The information {falls} as μ grows: {short(nats[0])} nats at μ = {short(mean(groups[0], 'mu'))}, "
        f"{short(nats[-1])} at {short(mean(groups[-1], 'mu'))}; the test error goes from {low} to {high}."
    )


FIGURE = PaperFigure(
    "l2",
    "Remaining information and test error against the ridge",
    "A stronger ridge makes forgetting easier and, taken too far, the model worse.",
    parts,
    passes,
    solves,
    draw,
    table,
    verdict,
)
