"""The page of the benchmarks: ratios and plots of what ``run.py`` found. It computes no results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from efface.report.figures import Line, Scale, lines
from efface.report.html import Card, Figure, Report, Section, Table
from efface.version import VERSION

Values = Mapping[str, Any]


def page(outcomes: Sequence[Values], preset: str, made: datetime) -> Report:
    busy = any(_of(values, "busy") for values in outcomes)
    about = f"preset {preset}" + (", on a busy machine: read ratios, not seconds" if busy else "")
    return Report(
        "Benchmarks",
        about,
        cards=[card for values in outcomes for card in _card(values)],
        sections=[_section(values) for values in outcomes] + [_machine(outcomes)],
        made=made,
        subject=_subject(outcomes),
    )


def _of(values: Values, name: str) -> Any:
    """Of the machine, where that was written down."""
    return (values["environment"] or {}).get(name)


def _subject(outcomes: Sequence[Values]) -> str:
    """What was measured, and on what."""
    names = ", ".join(values["name"] for values in outcomes)
    machines = {
        f"{_of(v, 'processor')}, {_of(v, 'cpus')} cores" for v in outcomes if _of(v, "cpus")
    }
    return f"efface {VERSION} on {'; '.join(sorted(machines)) or 'an unknown machine'}: {names}"


def _card(values: Values) -> list[Card]:
    """The ratio to the strongest peer, where there are some."""
    ratios = {n: r for n, r in values["ratios"].items() if "ours" in n and "efface" not in n}
    if not ratios:
        return []
    name = min(ratios, key=lambda one: ratios[one])
    return [Card(values["name"], f"{ratios[name]:.3g} ×", name.replace(" / ours", " over ours"))]


def _section(values: Values) -> Section:
    setting = ", ".join(f"{_said(n)} {_whole(value)}" for n, value in values["setting"].items())
    limit = dict(values["limit"])
    prose = [f"{values['question']} Measured with {setting}."]
    if limit:
        reached = f"**{limit['fraction_reached']:.0%}** of the limit was reached"
        prose.append(f"{reached}: {limit['what']}.")
    prose += [str(note) for note in values["notes"]]
    tables = [_times(values)]
    if values["ratios"]:
        rows = [[_said(name), f"{ratio:.3g}"] for name, ratio in values["ratios"].items()]
        peers = any(" / ours" in name for name in values["ratios"])
        heading = "ratio (above 1: ours is faster)" if peers else "ratio"
        tables.append(Table((heading, "×"), rows, numeric=(1,)))
    return Section(values["name"], "\n\n".join(prose), tables=tables, figures=_plots(values))


def _times(values: Values) -> Table:
    mark = " (ours)" if values["peers"] else ""
    rows = [[f"{_said(name)}{mark}", _number(value)] for name, value in values["ours"].items()]
    rows += [[_said(name), _number(value)] for name, value in values["peers"].items()]
    return Table(("what", values["unit"]), rows, numeric=(1,))


def _plots(values: Values) -> list[Figure]:
    series = values["series"]
    if not series:
        return []
    curves = []
    for name, heights in series["lines"].items():
        points = [(x, y) for x, y in zip(series["at"], heights, strict=True) if y is not None]
        if len(points) > 1:
            curves.append(Line(name, [x for x, _ in points], [y for _, y in points]))
    heights = [height for curve in curves for height in curve.y]
    if not heights:
        return []
    wide = max(heights) > 10 * min(heights)  # else a logarithmic axis would have no numbers on it
    x = Scale(series["x"], log=True, ticks=tuple(series["at"]))  # where it was measured
    y = Scale(series["y"], log=wide, low=None if wide else 0)
    svg = lines(curves, x, y, title=str(values["question"]), width=6.8, height=4.2)
    return [Figure(svg, str(values["question"]))]


def _machine(outcomes: Sequence[Values]) -> Section:
    known = [values["environment"] for values in outcomes if values["environment"]]
    rows = [[name, str(value)] for name, value in (known[0] if known else {}).items()]
    loads = ", ".join(f"{values['name']} {_of(values, 'load')}" for values in outcomes)
    text = (
        f"One process each, one after the other. Load of the machine at the end of each: {loads}."
    )
    return Section("The machine", text, tables=[Table(("what", "is"), rows)])


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _whole(value: object) -> str:
    return f"{value:,}" if type(value) is int else str(value)


def _said(name: str) -> str:
    """A name of the JSON, as one reads it."""
    return name.replace("_", " ")
