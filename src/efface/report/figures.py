"""The figures of the reports. They take values and return SVG text; they compute no results.

Where there is nothing to see (no values, or only zeros) they return "", and the page has a sentence instead.

>>> svg = bars(["core", "user"], [0.91, 0.97], ylabel="accuracy", percent=True)
>>> svg[:4]
'<svg'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from efface.report.svg import BAND, PAPER, SERIES, SOFT, TEXT, canvas

WIDTH, HEIGHT = 5.6, 3.1  # inches
INVISIBLE = 1e-9  # of a bar's height
CLOSE = (70, 10)  # dots to the side and up between points that share a label
HIGHEST = 1.02  # of an axis in percent
MOST_INSIDE = 4  # curves whose names have a place among them; others stand above
NAME_HEIGHT = 0.19  # inches
STYLES = ("-", "--", "-.", ":")  # beside the colours, for print in grey
MARKERS = "osD^vP"
ERROR_BARS: dict[str, Any] = {"ecolor": TEXT.light, "elinewidth": 1.1, "capsize": 3}


@dataclass(frozen=True)
class Band:
    """A range to compare with, such as what retrained models reach: mean ± spread."""

    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Line:
    """One curve; ``low`` and ``high`` shade a range around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Point:
    """One labelled point; ``group`` chooses its colour and marker."""

    label: str
    x: float
    y: float
    group: str = ""


@dataclass(frozen=True)
class Scale:
    """An axis: its label; logarithmic, in percent or of whole numbers; its limits (None: automatic).

    ``ticks``: where a logarithmic one has its numbers, if not at powers of ten.
    """

    label: str = ""
    log: bool = False
    percent: bool = False
    whole: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] = ()


def bars(
    labels: Sequence[str],
    values: Sequence[float],
    *,
    errors: Sequence[float] | None = None,
    band: Band | None = None,
    ylabel: str = "",
    percent: bool = False,
    low: float | None = None,
    high: float | None = None,
    highlight: int | None = None,
    title: str = "",
    height: float = HEIGHT,
) -> str:
    """Bars with their values on top, an error bar each, and a reference band behind them.

    ``highlight`` colours one bar differently; ``low`` is where the axis begins (0 by default).
    """
    if _flat([*values, band.high if band is not None else 0]):
        return ""
    room = 0.6 if max(map(len, labels), default=0) <= 4 else 1.05  # inches a bar
    width = max(WIDTH * 0.75, room * len(labels) + 0.9)
    with canvas(title or ylabel, width, height) as drawing:
        axes, places = drawing.axes, range(len(labels))
        colors = [SERIES[1 if i == highlight else 0].light for i in places]
        if band is not None:
            axes.axhspan(band.low, band.high, color=BAND.light, alpha=0.55, lw=0, zorder=0)
            axes.plot([], [], color=BAND.light, lw=8, alpha=0.55, label=band.label)
            _legend(axes, above=True)
        axes.bar(places, values, color=colors, width=0.62, yerr=errors, error_kw=ERROR_BARS)
        tops = [v + (errors[i] if errors is not None else 0) for i, v in enumerate(values)]
        for i, (value, top) in enumerate(zip(values, tops, strict=True)):
            _note(axes, _number(value, percent), (i, top), (0, 4), ha="center", va="bottom")
        axes.set_xticks(places, [fill(label, 12) for label in labels])
        axes.tick_params(axis="x", length=0)
        _scale(axes, "y", Scale(ylabel, percent=percent, low=low, high=high))
        axes.margins(y=0.12)
        axes.set_ylim(low if low is not None else min([0, *values]), high)
        axes.grid(axis="y")
    return drawing.svg


def lines(
    curves: Sequence[Line],
    x: Scale,
    y: Scale,
    *,
    diagonal: bool = False,
    levels: Mapping[str, float] | None = None,
    title: str = "",
    width: float = WIDTH,
    height: float = HEIGHT,
) -> str:
    """Curves on plain or logarithmic axes; ``diagonal`` draws y = x (chance, in a ROC plot).

    ``levels`` are labelled horizontal lines, such as a target to be reached.
    """
    if all(len(curve.x) < 2 for curve in curves):
        return ""
    many = len(curves) > MOST_INSIDE
    height += NAME_HEIGHT * len(curves) if many else 0.0
    with canvas(title or y.label, width, height) as drawing:
        axes = drawing.axes
        _scale(axes, "x", x)
        _scale(axes, "y", y)
        for i, curve in enumerate(curves):
            color = SERIES[i % len(SERIES)].light
            if curve.low is not None and curve.high is not None:
                axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, lw=0)
            style = STYLES[i // 2 % len(STYLES)]
            axes.plot(curve.x, curve.y, color=color, linestyle=style, label=curve.label)
        _limits(axes, x, y)
        if diagonal:
            ends = axes.get_xlim()
            axes.plot(ends, ends, color=SOFT.light, lw=1, ls=(0, (2, 3)), label="chance")
            axes.set_xlim(ends)
        for name, level in (levels or {}).items():
            axes.axhline(level, color=SOFT.light, lw=1, ls=(0, (4, 3)))
            right = axes.get_xlim()[1]
            _note(axes, name, (right, level), (0, 3), ha="right", va="bottom", color=SOFT.light)
        axes.grid()
        if len(curves) + diagonal > 1:
            _legend(axes, above=many, columns=1)
    return drawing.svg


def histograms(
    samples: Mapping[str, Sequence[float]],
    *,
    bins: int = 30,
    xlabel: str = "score",
    log: bool = False,
    title: str = "",
    height: float = HEIGHT,
) -> str:
    """Distributions laid over each other on common bins, each scaled to the same area."""
    if not any(len(values) for values in samples.values()):
        return ""
    with canvas(title or xlabel, WIDTH, height) as drawing:
        axes = drawing.axes
        everything = np.concatenate([np.asarray(v, dtype=float) for v in samples.values()])
        low, high = float(everything.min()), float(everything.max())
        high = high if high > low else low + 1e-9 * max(1.0, abs(low))  # all values the same
        edges = np.geomspace(low, high, bins + 1) if log else np.linspace(low, high, bins + 1)
        for i, (name, values) in enumerate(samples.items()):
            color = SERIES[i % len(SERIES)].light
            common: dict[str, Any] = {"bins": edges, "density": True, "color": color}
            axes.hist(values, alpha=0.28, histtype="stepfilled", lw=0, **common)
            style = STYLES[i % len(STYLES)]
            axes.hist(values, histtype="step", lw=1.8, ls=style, label=name, **common)
        _scale(axes, "x", Scale(xlabel, log=log))
        axes.set_yticks([])
        axes.set_ylabel("density")
        if len(samples) > 1:
            _legend(axes)
    return drawing.svg


def scatter(
    points: Sequence[Point],
    x: Scale,
    y: Scale,
    *,
    band: Band | None = None,
    title: str = "",
    width: float = WIDTH,
    height: float = HEIGHT,
) -> str:
    """Labelled points, such as information left against accuracy; ``band`` is a range of y."""
    if not points:
        return ""
    with canvas(title or f"{y.label} against {x.label}", width, height) as drawing:
        axes = drawing.axes
        _scale(axes, "x", x)
        _scale(axes, "y", y)
        axes.margins(0.14, 0.18)
        if band is not None:
            axes.axhspan(band.low, band.high, color=BAND.light, alpha=0.55, lw=0, label=band.label)
        for i, group in enumerate(dict.fromkeys(point.group for point in points)):
            members = [point for point in points if point.group == group]
            color, marker = SERIES[i % len(SERIES)].light, MARKERS[i % len(MARKERS)]
            xs, ys = [p.x for p in members], [p.y for p in members]
            axes.scatter(xs, ys, s=46, zorder=3, label=group or None, color=color, marker=marker)
        _limits(axes, x, y)
        _name(axes, points)
        axes.grid()
        if band is not None or any(point.group for point in points):
            _legend(axes, above=True)
    return drawing.svg


def heatmap(
    counts: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
) -> str:
    """A table of numbers as shades, each number written in its cell; zeros stay empty."""
    table = np.asarray(counts, dtype=float)
    if not table.any():
        return ""
    side = max(3.2, 0.42 * max(table.shape) + 1)
    with canvas(title or f"{ylabel} by {xlabel}", side * 1.1, side) as drawing:
        axes, top = drawing.axes, max(float(table.max()), 1.0)
        for (i, j), value in np.ndenumerate(table):
            if value:
                share = 0.12 + 0.88 * value / top
                # Opacity instead of mixed colours: the page's theme shows through.
                cell = Rectangle((j - 0.48, i - 0.48), 0.96, 0.96, color=SERIES[0].light, lw=0)
                cell.set_alpha(share)
                axes.add_patch(cell)
                color = PAPER.light if share > 0.55 else TEXT.light
                axes.text(j, i, f"{value:g}", ha="center", va="center", fontsize=9, color=color)
        axes.set_xlim(-0.5, table.shape[1] - 0.5)
        axes.set_ylim(table.shape[0] - 0.5, -0.5)
        axes.set_aspect("equal")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
    return drawing.svg


# What they share.


def _flat(values: Sequence[float]) -> bool:
    """Whether bars of these heights cannot be seen."""
    return all(abs(value) <= INVISIBLE for value in values)


def _labels(axes: Axes, points: Sequence[Point]) -> list[tuple[str, tuple[float, float]]]:
    """One label for points that lie on each other, else their names would, too."""
    found: list[tuple[list[str], tuple[float, float], np.ndarray]] = []
    for point in points:
        at = axes.transData.transform((point.x, point.y))
        for names, _, place in found:
            if (np.abs(at - place) < CLOSE).all():
                names.append(point.label)
                break
        else:
            found.append(([point.label], (point.x, point.y), at))
    return [(fill(", ".join(names), 30), place) for names, place, _ in found]


def _name(axes: Axes, points: Sequence[Point]) -> None:
    """Labels beside their points: above, or below where another label is; towards the middle."""
    taken: list[Bbox] = []
    for text, at in _labels(axes, points):
        right = axes.transAxes.inverted().transform(axes.transData.transform(at))[0] > 0.75
        across, side = (-7, "right") if right else (7, "left")
        for up, edge in ((4, "bottom"), (-4, "top")):
            note = _note(axes, text, at, (across, up), ha=side, va=edge)
            box = note.get_window_extent()
            if edge == "top" or not any(box.overlaps(other) for other in taken):
                break
            note.remove()
        taken.append(box)


def _scale(axes: Axes, which: str, scale: Scale) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text(scale.label)
    if scale.log:
        axes.set(**{f"{which}scale": "log"})
        axis.set_major_locator(FixedLocator(scale.ticks) if scale.ticks else LogLocator(numticks=8))
        axis.set_minor_locator(NullLocator())
        spelt = "{:,g}".format if scale.ticks else _power
        axis.set_major_formatter(FuncFormatter(lambda value, _: spelt(value)))
    elif scale.percent:  # an axis may go on a little above 100 %, but nothing is there
        axis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{100 * value:g} %" if value < 1 + 1e-9 else "")
        )
    elif scale.whole:
        axis.set_major_locator(MaxNLocator(integer=True))


def _limits(axes: Axes, x: Scale, y: Scale) -> None:
    """Set after drawing: a limit left open is then the data's, a share's at most a little above 100 %."""
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    if y.percent and y.high is None:
        axes.set_ylim(top=min(axes.get_ylim()[1], HIGHEST))


def _power(value: float) -> str:
    """0.01, 1, 100, but 10⁻⁵: as plain text, which the page's own font can show."""
    exponent = round(float(np.log10(value)))
    if -3 <= exponent <= 3:
        return f"{value:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else f"{value:.3g}"


def _note(
    axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **style: Any
) -> Annotation:
    """Text beside a point, shifted by points of the page."""
    options: dict[str, Any] = {"fontsize": 9.5, "textcoords": "offset points", **style}
    return axes.annotate(text, at, xytext=shift, **options)


def _legend(axes: Axes, *, above: bool = False, columns: int = 4) -> None:
    if above:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, handlelength=1.6)
    else:
        axes.legend(handlelength=2.2)
