"""Accuracy over releases as a small SVG; numbers are in the table beside it."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from efface.service.evaluations import Evaluation

WIDTH, HEIGHT, PAD, ROOM = 360.0, 110.0, 12.0, 30.0  # on a phone one of its pixels is one of these


def accuracy_chart(entries: Sequence[Evaluation]) -> Markup:
    """A line from release to release, its range that of the data, at least two points wide.

    First and last release have their numbers at the line: what lies between is in the table below.
    """
    if len(entries) < 2:
        return Markup("")
    values = [entry.accuracy for entry in entries]
    middle, half = (max(values) + min(values)) / 2, max((max(values) - min(values)) / 2, 0.01)
    first, last = entries[0].release, entries[-1].release

    def place(entry: Evaluation) -> tuple[float, float]:
        x = PAD + (WIDTH - 2 * PAD) * (entry.release - first) / (last - first)
        y = HEIGHT / 2 - (HEIGHT / 2 - ROOM) * (entry.accuracy - middle) / half
        return x, y

    points = [place(entry) for entry in entries]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)
    ends = ((entries[0], points[0], "start"), (entries[-1], points[-1], "end"))
    words = "".join(_at(*end) for end in ends)
    label = f"Accuracy from release {first} to release {last}"
    return Markup(
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{label}" class="chart">'
        f'<polyline points="{line}" fill="none"/>{dots}{words}</svg>'
    )


def _at(entry: Evaluation, place: tuple[float, float], anchor: str) -> str:
    """Its number above the point, its release at the bottom."""
    x, y = place
    x = x - PAD / 2 if anchor == "start" else x + PAD / 2
    return (
        f'<text x="{x:.1f}" y="{y - 9:.1f}" text-anchor="{anchor}">{100 * entry.accuracy:.1f} %</text>'
        f'<text x="{x:.1f}" y="{HEIGHT - 3:.0f}" text-anchor="{anchor}">release {entry.release}</text>'
    )
