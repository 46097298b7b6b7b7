"""From a matplotlib figure to SVG text that belongs in a page: small, themed, without outside links.

Colours are written as CSS variables with the light colour as fallback, so that the page's dark theme
reaches into the figures and a figure saved on its own still looks right. Text stays text.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Ink:
    """A colour: its CSS variable, and its value on white paper."""

    variable: str
    light: str


TEXT = Ink("--ink", "#1b2430")
SOFT = Ink("--ink-soft", "#5b6775")
GRID = Ink("--rule", "#dfe4ea")
PAPER = Ink("--panel", "#ffffff")
BAND = Ink("--band", "#b9c2cc")
# Okabe and Ito's palette: told apart with every common colour blindness, and in grey print.
SERIES = (
    Ink("--c0", "#0072b2"),
    Ink("--c1", "#d55e00"),
    Ink("--c2", "#009e73"),
    Ink("--c3", "#cc79a7"),
    Ink("--c4", "#e69f00"),
    Ink("--c5", "#56b4e9"),
)
READABLE = 0.8  # of a drawing's own size: words of 10 pixels are 8 then
INKS = (TEXT, SOFT, GRID, PAPER, BAND, *SERIES)

_SETTINGS: Any = {  # Any: matplotlib's type lists every key it knows
    "svg.fonttype": "none",
    "svg.hashsalt": "efface",  # the same figure gives the same text
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": TEXT.light,
    "axes.edgecolor": SOFT.light,
    "axes.labelcolor": TEXT.light,
    "axes.labelsize": 10.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID.light,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT.light,
    "ytick.color": SOFT.light,
    "xtick.labelcolor": TEXT.light,
    "ytick.labelcolor": TEXT.light,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 2,
}


class Canvas:
    """A figure to draw on; ``svg`` is there once the ``canvas`` block has ended."""

    def __init__(self, figure: Figure, axes: Axes) -> None:
        self.figure, self.axes, self.svg = figure, axes, ""


@contextmanager
def canvas(title: str, width: float, height: float) -> Iterator[Canvas]:
    """Axes of ``width`` × ``height`` inches; ``title`` is what a screen reader says."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0)
        drawing = Canvas(figure, figure.add_subplot())
        drawing.axes.patch.set_alpha(0)
        yield drawing
        drawing.svg = _text(figure, title)


def _text(figure: Figure, title: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # the XML header and doctype have no place inside HTML
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"font: [^;\"]*;?", _font, text)
    return _with_own_ids(_responsive(_themed(text), title))


def _font(match: re.Match[str]) -> str:
    """Keep the size; the family is the page's."""
    size = re.search(r"([\d.]+)px", match[0])
    return f"font-size: {size[1]}px;" if size else ""


def _themed(text: str) -> str:
    for ink in INKS:
        text = text.replace(f": {ink.light}", f": var({ink.variable}, {ink.light})")
    return text


def _responsive(text: str, title: str) -> str:
    """No fixed size between a largest width and one where its words can just be read (narrower screens scroll
    the drawing sideways), and a name for screen readers."""
    opening = text[: text.index(">") + 1]
    box = re.search(r'viewBox="([^"]+)"', opening)
    assert box is not None
    width = float(box[1].split()[2])
    new = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box[1]}" role="img" aria-label="{html.escape(title)}" '
        f'style="width:100%;max-width:{width * 4 / 3:.0f}px;min-width:{READABLE * width:.0f}px;'
        'height:auto;font-family:inherit">'
    )
    return new + text[len(opening) :].strip()


def _with_own_ids(text: str) -> str:
    """Ids get the figure's digest in front: several figures share one page."""
    mark = "f" + hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'\bid="([^"]+)"', rf'id="{mark}-\1"', text)
    return re.sub(r'(url\(#|href="#)', rf"\1{mark}-", text)
