"""``efface reproduce``: run figures, keep their numbers as JSON, and draw everything from that JSON alone.

out/FIGURE.json      settings, environment, results by part; what is there is not measured again
out/FIGURE*.svg      the drawings
out/results.md       every claim, table and verdict
out/report.html      the same to look at
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import complete_vs_stochastic
import core_data
import error_comparison
import forget_class
import info_vs_epochs
import info_vs_noise
import l2
import readouts
import speed_growth
from bench import Bench
from common import Results
from figure import Figure

from efface.errors import EffaceError
from efface.report.html import Figure as Shown
from efface.report.html import Report, Section, Table

FIGURES: dict[str, Figure] = {
    module.FIGURE.name: module.FIGURE
    for module in (
        error_comparison,
        info_vs_noise,
        info_vs_epochs,
        readouts,
        complete_vs_stochastic,
        core_data,
        forget_class,
        l2,
        speed_growth,
    )
}


def chosen(name: str) -> list[Figure]:
    """One figure, several with commas between them, or ``all``."""
    names = list(FIGURES) if name == "all" else name.split(",")
    for wanted in names:
        if wanted not in FIGURES:
            raise EffaceError(f"no figure {wanted!r}.", f"use all, or {', '.join(FIGURES)}.")
    return [FIGURES[wanted] for wanted in names]


def expected_seconds(bench: Bench, figures: Sequence[Figure]) -> float:
    """Passes that the figures say they take, times one measured on a few images."""
    trial = bench.trial(bench.spot())
    few = trial.scene.problem(trial.scene.everyone[:256])
    few.product(few.zeros())
    begin = time.monotonic()
    few.product(few.zeros())
    each = (time.monotonic() - begin) / few.n * len(trial.scene.train)
    return each * sum(figure.passes(bench) for figure in figures)


def measure(bench: Bench, figures: Sequence[Figure], out: Path, say: Callable[[str], None]) -> None:
    """Measure what is missing in ``out``."""
    kept = {f.name: Results(out / f"{f.name}.json", f.settings(bench), show=False) for f in figures}
    missing = [f for f in figures if any(part not in kept[f.name] for part in f.parts(bench))]
    if missing:
        say(f"expected time: up to {_duration(expected_seconds(bench, missing))}")
    for figure in missing:
        say(f"{figure.name}: {figure.title}")
        for name, part in figure.parts(bench).items():
            if name not in kept[figure.name]:
                begin = time.monotonic()
                kept[figure.name].put(name, part())
                say(f"  {name}: {time.monotonic() - begin:.0f} s")
        kept[figure.name].finish()


def present(out: Path) -> dict[str, Any]:
    """Draw, tabulate and judge the figures in ``out`` that are complete; nothing is measured here."""
    found = finished(out)
    if not found:
        raise EffaceError(
            f"{out} holds no results of a complete figure.", "run efface reproduce with this --out."
        )
    sections, text = [], [_heading(found)]
    for name, whole in found.items():
        figure, results = FIGURES[name], whole["results"]
        drawings = figure.draw(results)
        for drawing in drawings:
            (out / _svg_name(name, drawing.name)).write_text(drawing.svg + "\n", encoding="utf-8")
        table, verdict = figure.table(results), figure.verdict(results)
        prose = f"**The paper:** {figure.claim}\n\n**Here:** {verdict}"
        shown = [Shown(d.svg, d.caption) for d in drawings]
        sections.append(Section(figure.title, prose, tables=[table], figures=shown))
        text += [f"## {figure.title}", prose, markdown(table)]
        text += [f"![{d.caption}]({_svg_name(name, d.name)})" for d in drawings]
    (out / "results.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    settings = next(iter(found.values()))["settings"]
    title = f"The paper's experiments on {settings.get('data', out.name)}"
    report = Report(title, subtitle(settings), sections=sections)
    return {"report": str(report.write(out / "report.html")), "figures": list(found)}


def finished(out: Path) -> dict[str, Any]:
    """The JSON of each figure in ``out`` whose parts were all measured."""
    paths = {name: out / f"{name}.json" for name in FIGURES}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}
    return {name: whole for name, whole in found.items() if whole.get("complete")}


def _svg_name(figure: str, drawing: str) -> str:
    return f"{figure}-{drawing}.svg" if drawing else f"{figure}.svg"


def _heading(found: dict[str, Any]) -> str:
    first = next(iter(found.values()))
    settings, environment = first["settings"], first["environment"]
    machine = f"{environment['cpus']} cores, torch {environment['torch']}"
    return (
        f"# The paper's experiments on {settings.get('data', 'this data')}\n\n{subtitle(settings)}\n\n"
        f"Made by `efface reproduce` from the JSON files beside this one ({machine}). "
        f"± is the standard deviation over seeds; seconds were measured on a machine with other work."
    )


def subtitle(settings: dict[str, Any]) -> str:
    if "num_train" not in settings:
        return ""
    return (
        f"{settings['backbone']}, {settings['num_train']} training and {settings['num_test']} test images "
        f"of {settings['num_classes']} classes, {settings['requests']} requests of "
        f"{100 * settings['share']:g} %{_side(settings)}, μ = {settings['mu']:g}, preset {settings['name']}"
    )


def _side(settings: dict[str, Any]) -> str:
    return f", images of {settings['side']} pixels" if settings.get("side") else ""


def markdown(table: Table) -> str:
    marks = ["---:" if i in table.numeric else "---" for i in range(len(table.columns))]
    lines = [table.columns, marks, *table.rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
