"""Accuracy over releases as a small SVG; numbers are in the table beside it."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from efface.service.evaluations import Evaluation

WIDTH, HEIGHT, PAD = 640.0, 160.0, 24.0


def accuracy_chart(entries: Sequence[Evaluation]) -> Markup:
    """A line from release to release, its range that of the data, at least two points wide."""
    if len(entries) < 2:
        return Markup("")
    values = [entry.accuracy for entry in entries]
    middle, half = (max(values) + min(values)) / 2, max((max(values) - min(values)) / 2, 0.01)
    first, last = entries[0].release, entries[-1].release

    def place(entry: Evaluation) -> tuple[float, float]:
        x = PAD + (WIDTH - 2 * PAD) * (entry.release - first) / (last - first)
        y = HEIGHT / 2 - (HEIGHT / 2 - PAD) * (entry.accuracy - middle) / half
        return x, y

    points = [place(entry) for entry in entries]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)
    label = f"Accuracy from release {first} to release {last}"
    return Markup(
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{label}" class="chart">'
        f'<polyline points="{line}" fill="none"/>{dots}</svg>'
    )
