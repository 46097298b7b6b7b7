"""Presenting: draw, tabulate and judge from the JSON of a run alone; nothing is measured here.

out/FIGURE*.svg      the drawings
out/results.md       every claim, table and verdict
out/report.html      the same to look at
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from efface.errors import EffaceError
from efface.report.html import Card, Figure, Report, Section, Table
from efface.reproduce.catalog import FIGURES


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
        for drawing in filter(lambda drawing: drawing.svg, drawings):
            (out / svg_name(name, drawing.name)).write_text(drawing.svg + "\n", encoding="utf-8")
        table, verdict = figure.table(results), figure.verdict(results)
        prose = f"**The paper:** {figure.claim}\n\n**Here:** {verdict}"
        shown = [Figure(d.svg, d.caption, instead=f"{d.caption} All are 0.") for d in drawings]
        sections.append(Section(figure.title, prose, tables=[table], figures=shown))
        text += [f"## {figure.title}", prose, markdown(table)]
        text += [f"![{d.caption}]({svg_name(name, d.name)})" for d in drawings if d.svg]
    (out / "results.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    settings = next(iter(found.values()))["settings"]
    title = f"The paper's experiments on {settings.get('data', out.name)}"
    report = Report(
        title,
        subtitle(settings),
        cards=_cards(found),
        sections=sections,
        made=datetime.now(UTC),
        subject=f"{settings.get('data', out.name)}, the results in {out}",
    )
    return {"report": str(report.write(out / "report.html")), "figures": list(found)}


def _cards(found: dict[str, Any]) -> list[Card]:
    """How many of the paper's claims came out as it says, by the verdicts' own first words."""
    words = [
        FIGURES[name].verdict(whole["results"]).partition(".")[0] for name, whole in found.items()
    ]
    notes = {
        "Agrees": "of the paper's claims hold",
        "Partly": "hold in part",
        "Disagrees": "do not hold",
        "Not tested": "were not tested: a model was not solved, or no better than its last layer",
    }
    counted = {word: sum(text.strip("*") == word for text in words) for word in notes}
    return [Card(word.lower(), str(count), notes[word]) for word, count in counted.items()]


def finished(out: Path) -> dict[str, Any]:
    """The JSON of each figure in ``out`` whose parts were all measured."""
    paths = {name: out / f"{name}.json" for name in FIGURES}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}
    return {name: whole for name, whole in found.items() if whole.get("complete")}


def svg_name(figure: str, drawing: str) -> str:
    """The file of a drawing; the main one of a figure has no name of its own."""
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
