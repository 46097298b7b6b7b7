"""The residual gradient computed completely once, against estimated stochastically (fine-tuning)."""

from __future__ import annotations

from collections.abc import Callable

from efface.reproduce import procedures
from efface.reproduce.bench import Bench
from efface.reproduce.figure import (
    PaperFigure,
    Results,
    Values,
    by_name,
    judged,
    mean,
    three_solves,
)
from efface.reproduce.figures.info_vs_noise import draw, noise_parts, sgd_passes, table


def parts(bench: Bench) -> dict[str, Callable[[], Values]]:
    epochs = bench.paper_epochs
    runs = {"complete": procedures.paper(epochs), "stochastic": procedures.fine_tuned(epochs)}
    return noise_parts(bench, runs)


def passes(bench: Bench) -> float:
    return bench.preset.seeds * (60 + 2 * sgd_passes(bench, bench.paper_epochs))


def verdict(results: Results) -> str:
    found = by_name(results)
    near, far = (mean(found[name], "distance_estimate") for name in ("complete", "stochastic"))
    errors = [100 * mean(found[name], "noiseless_error") for name in ("complete", "stochastic")]
    less = near**2 < 0.95 * far**2  # closer than that is a tie
    better = errors[0] < errors[1]
    word = judged(results, less and better, less or better)
    return (
        f"{word} Distance to the retrained model {near:.3g} (complete) "
        f"against {far:.3g} (stochastic), whose information left is {(far / near) ** 2:.3g} times that; test "
        f"error {errors[0]:.1f} % against {errors[1]:.1f} %."
    )


FIGURE = PaperFigure(
    "complete-vs-stochastic",
    "Complete against stochastic residual gradient",
    "With as many steps, the complete residual gradient leaves less information and a lower test error.",
    parts,
    passes,
    three_solves,
    draw,
    table,
    verdict,
)
