"""Measuring: run the parts of figures that a folder does not hold yet, and keep each as it comes.

out/FIGURE.json      settings, environment, results by part; what is there is not measured again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from efface.parts.tangent.problem import RidgeProblem
from efface.reproduce.bench import Bench
from efface.reproduce.figure import PaperFigure
from efface.reproduce.results import Results
from efface.reproduce.specimen import specimen_of

SOME = 256


def pass_seconds(bench: Bench) -> float:
    """One pass over all images, measured on a few of them, prepared on their own."""
    scene = specimen_of(bench, bench.spot()).scene
    inputs, targets = scene.train.inputs[slice(SOME)], scene.targets(scene.train)[:SOME]
    few = RidgeProblem(scene.operator, inputs, targets, scene.ridge(len(targets)))
    few.pool()
    few.product(few.zeros())
    begin = time.monotonic()
    few.product(few.zeros())
    return (time.monotonic() - begin) / few.n * len(scene.train)


def measure(
    bench: Bench, figures: Sequence[PaperFigure], out: Path, say: Callable[[str], None]
) -> None:
    """Measure what is missing in ``out``."""
    kept = {f.name: Results(out / f"{f.name}.json", f.settings(bench), show=False) for f in figures}
    missing = [f for f in figures if any(part not in kept[f.name] for part in f.parts(bench))]
    each = pass_seconds(bench) if missing else 0.0
    if missing:
        say(f"expected time: up to {_duration(each * sum(f.passes(bench) for f in missing))}")
    for figure in missing:
        say(f"{figure.name}: {figure.title} (up to {_duration(each * figure.passes(bench))})")
        first = time.monotonic()
        for name, part in figure.parts(bench).items():
            if name not in kept[figure.name]:
                begin = time.monotonic()
                kept[figure.name].put(name, part())
                say(f"  {name}: {time.monotonic() - begin:.0f} s")
        kept[figure.name].finish()
        say(f"{figure.name}: done after {_duration(time.monotonic() - first)}")


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
