"""What training, a request and training again cost at 10⁶ and 10⁹ photos, from slopes that were measured.

    python benchmarks/cost_model.py          # writes the numbers into docs/scale.md
    python benchmarks/cost_model.py --check  # exit code 1 if the page says anything else

A worker is one core like those of the measurements (``benchmarks/results/``). Nothing is measured here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "scale.md"
BEGIN, END = "<!-- numbers: benchmarks/cost_model.py -->", "<!-- end of numbers -->"
PHOTO_BYTES = 100_000  # assumed, of a JPEG
PRICE = 0.04  # assumed, dollars for an hour of one core
BANDWIDTH = 1e9  # assumed, bytes a second into the machine that merges
PHOTOS, WORKERS = (10**6, 10**9), (1, 16, 1000)


@dataclass(frozen=True)
class Slopes:
    """Seconds of one core, at ``features`` k and ``classes`` c, as they were measured."""

    features: int
    classes: int
    row: float  # from the file of an image to its row
    side: int  # of the images, in pixels
    sums: float  # a row into the sums
    sums_below: float  # the same between smaller n
    solve: float  # weights from sums, by a version that did not prove them yet
    listed: float  # of a request in a workspace: a record more in the list

    @classmethod
    def measured(cls) -> Slopes:
        requests, rows, disk = (_read(name) for name in ("requests", "rows-cub40", "workspace"))
        few, some, many = requests["runs"][:3]
        again, disks = "retrain_from_rows_seconds", disk["runs"]
        return cls(
            requests["features"],
            requests["classes"],
            row=rows["environment"]["threads"] / rows["images_a_second"]["integer"],
            side=rows["side"],
            sums=(many[again] - some[again]) / (many["n"] - some["n"]),
            sums_below=(some[again] - few[again]) / (some["n"] - few["n"]),
            solve=many["request_seconds"] - many["removing_seconds"],
            listed=(disks[2]["request_seconds"] - disks[1]["request_seconds"])
            / (disks[2]["n"] - disks[1]["n"]),
        )

    @property
    def message(self) -> int:
        """Bytes of sums: a triangle of G, and B."""
        k, c = self.features, self.classes
        return 8 * (k * (k + 1) // 2 + k * c)

    @property
    def row_flops(self) -> int:
        """Of adding one row to the sums: a triangle of products and sums, and B."""
        return self.features * (self.features + 2 * self.classes)


def _read(name: str) -> dict[str, Any]:
    """What a benchmark found, with its ``setting`` and ``details``."""
    found: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    rates = {"images_a_second": found["ours"]}
    return {**found, **rates, **found["setting"], **found["details"]}


@dataclass(frozen=True)
class Cost:
    """Of ``num_photos`` on ``num_workers``."""

    slopes: Slopes
    num_photos: int
    num_workers: int

    @property
    def seconds_rows(self) -> float:
        return self.num_photos * self.slopes.row / self.num_workers

    @property
    def seconds_sums(self) -> float:
        return self.num_photos * self.slopes.sums / self.num_workers

    @property
    def seconds_merge(self) -> float:
        """Sums of all workers into one machine; nothing to send where there is one."""
        sent = self.num_workers if self.num_workers > 1 else 0
        return sent * self.slopes.message / BANDWIDTH

    @property
    def train(self) -> float:
        return self.seconds_rows + self.again

    @property
    def again(self) -> float:
        """From rows that are kept."""
        return self.seconds_sums + self.seconds_merge + self.slopes.solve

    @property
    def dollars(self) -> float:
        return self.train * self.num_workers / 3600 * PRICE


def tables(slopes: Slopes) -> Iterator[str]:
    k, c = slopes.features, slopes.classes
    yield f"At k = {k:,} features and c = {c} classes, one core:"
    yield ""
    yield "| step | measured | from |"
    yield "|---|---|---|"
    yield f"| image → row (ResNet-50, {slopes.side} px) | {slopes.row * 1000:.0f} ms | `rows-cub40.json` |"
    rate = slopes.row_flops / slopes.sums / 1e9
    yield (
        f"| row → sums, {slopes.row_flops / 1e6:.1f} Mflop | {slopes.sums * 1e6:.0f} µs ({rate:.0f} Gflop/s) "
        "| `requests.json`, slope from 10⁴ to 10⁵ rows |"
    )
    yield (
        f"| the same from 10³ to 10⁴ rows | {slopes.sums_below * 1e6:.0f} µs | the slope is linear within "
        f"{slopes.sums / slopes.sums_below:.2f} × |"
    )
    yield (
        f"| sums → weights, before they were proved | {slopes.solve:.2f} s, whatever n "
        "| `requests.json`, version of 16 November 2026, 02:39 |"
    )
    yield (
        f"| a request in a workspace, a record more | {slopes.listed * 1e6:.1f} µs "
        "| `workspace.json`, slope from 10⁴ to 10⁵ records |"
    )
    yield ""
    yield "| photos | workers | images | rows kept | sums sent | rows | sums | merge | in all | dollars |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for photos in PHOTOS:
        for workers in WORKERS:
            yield _line(Cost(slopes, photos, workers))
    yield ""
    yield "| photos | a request, sums to weights | again from rows, 16 cores | again from images, 16 cores |"
    yield "|---|---|---|---|"
    for photos in PHOTOS:
        cost = Cost(slopes, photos, 16)
        yield (
            f"| {photos:,} | {_time(slopes.solve)} | {_time(cost.again)} "
            f"({cost.again / slopes.solve:,.0f} ×) | {_time(cost.train)} "
            f"({cost.train / slopes.solve:,.0f} ×) |"
        )


def _line(cost: Cost) -> str:
    slopes, photos, workers = cost.slopes, cost.num_photos, cost.num_workers
    row_bytes = slopes.features + 2 * slopes.classes
    sent = workers * slopes.message if workers > 1 else 0
    cells = (
        *(f"{photos:,}", f"{workers:,}", _size(photos * PHOTO_BYTES), _size(photos * row_bytes)),
        *(_size(sent) if sent else "–", _time(cost.seconds_rows), _time(cost.seconds_sums)),
        *(_time(cost.seconds_merge) if sent else "–", _time(cost.train), f"{cost.dollars:,.0f}"),
    )
    return f"| {' | '.join(cells)} |"


def _time(seconds: float) -> str:
    for size, unit in ((86_400.0 * 365, "years"), (86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.2g} s"


def _size(number: float) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB")):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 1e6:,.0f} MB"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    new = f"{head}{BEGIN}\n" + "\n".join(tables(Slopes.measured())) + f"\n{END}{tail}"
    if "--check" in sys.argv:
        sys.exit(
            0
            if new == text
            else f"{PAGE.name} is not what the results say: run {Path(__file__).name}"
        )
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
