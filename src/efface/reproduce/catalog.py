"""The figures that `efface reproduce` knows. A new one is a file in ``figures/`` and a line here."""

from __future__ import annotations

from efface.errors import EffaceError
from efface.reproduce.figure import PaperFigure
from efface.reproduce.figures import (
    complete_vs_stochastic,
    core_data,
    error_comparison,
    forget_class,
    info_vs_epochs,
    info_vs_noise,
    l2,
    readouts,
    speed,
)

FIGURES: dict[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        error_comparison.FIGURE,
        info_vs_noise.FIGURE,
        info_vs_epochs.FIGURE,
        readouts.FIGURE,
        complete_vs_stochastic.FIGURE,
        core_data.FIGURE,
        forget_class.FIGURE,
        l2.FIGURE,
        speed.FIGURE,
    )
}


def chosen(names: str) -> list[PaperFigure]:
    """One figure, several with commas between them, or ``all``."""
    wanted = list(FIGURES) if names == "all" else names.split(",")
    for name in wanted:
        if name not in FIGURES:
            raise EffaceError(f"no figure {name!r}.", f"use all, or {', '.join(FIGURES)}.")
    return [FIGURES[name] for name in wanted]
