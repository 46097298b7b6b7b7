"""Measuring: run the parts of figures that a folder does not hold yet, and keep each as it comes.

out/FIGURE.json      settings, environment, results by part; what is there is not measured again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from efface.parts.tangent.problem import RidgeProblem
from efface.reproduce.bench import Bench
from efface.reproduce.figure import PaperFigure
from efface.reproduce.results import Results
from efface.reproduce.specimen import specimen_of

SOME = 256  # images that are timed
FEW = 32  # … in float64, which takes far longer
TURNS = 3  # the fastest counts: on a busy machine any one may take ten times as long
LOOKS = 5  # at the weights in float64, a solve: where it starts, and twice after each of two rounds


@dataclass(frozen=True)
class Pace:
    """Seconds over all images: of one pass, and of one look at the weights in float64."""

    each: float
    look: float


def pace(bench: Bench) -> Pace:
    """Measured on a few of the images, prepared on their own."""
    scene = specimen_of(bench, bench.spot()).scene

    def of(count: int) -> RidgeProblem:
        inputs, targets = scene.train.inputs[slice(count)], scene.targets(scene.train)[:count]
        return RidgeProblem(scene.operator, inputs, targets, scene.ridge(len(targets)))

    few, fewer = of(SOME), of(FEW)
    few.pool()
    few.product(few.zeros())  # prepares them
    each = min(_seconds(lambda: few.product(few.zeros())) for _ in range(TURNS))
    look = min(_seconds(lambda: fewer.gradient(fewer.zeros(), torch.float64)) for _ in range(2))
    return Pace(each / few.n * len(scene.train), look / fewer.n * len(scene.train))


def expected(figure: PaperFigure, bench: Bench, pace: Pace, missing: Sequence[str]) -> float:
    """Seconds of the parts that are missing, about: passes, and what proves that models are solved."""
    whole = pace.each * figure.passes(bench) + pace.look * LOOKS * figure.solves(bench)
    return whole * len(missing) / len(figure.parts(bench))


def measure(
    bench: Bench, figures: Sequence[PaperFigure], out: Path, say: Callable[[str], None]
) -> None:
    """Measure what is missing in ``out``."""
    kept = {f.name: Results(out / f"{f.name}.json", f.settings(bench), show=False) for f in figures}
    missing = {f.name: [p for p in f.parts(bench) if p not in kept[f.name]] for f in figures}
    figures = [f for f in figures if missing[f.name]]
    if figures:
        found = pace(bench)
        seconds = {f.name: expected(f, bench, found, missing[f.name]) for f in figures}
        say(f"expected time: about {_duration(sum(seconds.values()))}")
    for figure in figures:
        say(f"{figure.name}: {figure.title} (about {_duration(seconds[figure.name])})")
        first = time.monotonic()
        for name, part in figure.parts(bench).items():
            if name not in kept[figure.name]:
                begin = time.monotonic()
                kept[figure.name].put(name, part())
                say(f"  {name}: {time.monotonic() - begin:.0f} s")
        kept[figure.name].finish()
        say(f"{figure.name}: done after {_duration(time.monotonic() - first)}")


def _seconds(run: Callable[[], object]) -> float:
    begin = time.monotonic()
    run()
    return time.monotonic() - begin


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
