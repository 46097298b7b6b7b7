"""The report: one file that is well-formed, escaped, offline; figures that show what they are given."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from efface.report.figures import (
    Band,
    Line,
    Point,
    Scale,
    bars,
    heatmap,
    histograms,
    lines,
    scatter,
)
from efface.report.html import (
    Card,
    Digest,
    Figure,
    HowToCheck,
    Report,
    Section,
    Table,
    duration,
    paragraphs,
    tiles,
)
from efface.report.images import Thumbnail, image_grid, png_uri

VOID = {"meta", "link", "img", "br", "hr", "input"}
NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")


class Page(HTMLParser):
    """Checks that tags nest, and keeps text, ids, and every address the page would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._attributes(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(attrs)

    def _attributes(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "srcset", "action"):
                self.addresses.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def is_offline(page: str) -> bool:
    """No address but data: URIs and #fragments; no import in the styles; http only in namespaces."""
    for namespace in NAMESPACES:
        page = page.replace(f'"{namespace}"', '""')
    inside = all(a.startswith(("data:", "#")) for a in Page(page).addresses)
    return inside and not re.search(r"https?:|@import|url\((?!#)|<script", page)


def sample_figures() -> dict[str, str]:
    x = Scale("false positives", log=True, low=1e-4, high=1)
    curve = Line("attack", [1e-4, 1e-2, 1], [1e-3, 0.1, 1], [1e-4, 0.05, 1], [1e-2, 0.2, 1])
    return {
        "bars": bars(
            ["core", "user"],
            [0.1, 0.25],
            errors=[0.01, 0.02],
            band=Band(0.2, 0.3, "retrained"),
            percent=True,
        ),
        "lines": lines([curve], x, x, diagonal=True, levels={"goal": 0.5}),
        "histograms": histograms({"in": [1.0, 2.0, 3.0], "out": [0.0, 1.0]}, xlabel="score"),
        "scatter": scatter(
            [Point("σ = 1", 1e-3, 0.9, "a"), Point("σ = 2", 1e-5, 0.8, "b")],
            Scale("information", log=True),
            Scale("accuracy", percent=True),
            band=Band(0.8, 0.9, "retrained"),
        ),
        "heatmap": heatmap([[5, 1], [0, 7]], ["a", "b"], ["a", "b"]),
        "grid": image_grid([Thumbnail(np.zeros((8, 8), np.uint8), "a & b", True)], title='"x"'),
    }


def test_a_logarithmic_axis_has_its_numbers_where_it_is_told() -> None:
    curve = Line("a request", [500, 2000, 8000], [1, 2, 3])
    drawn = {
        ticks: lines([curve], Scale("records", log=True, ticks=ticks), Scale("seconds"))
        for ticks in ((), (500.0, 2000.0, 8000.0))
    }
    for ticks, svg in drawn.items():
        assert [f">{number}<" in svg for number in ("500", "2,000", "8,000")] == [bool(ticks)] * 3


@pytest.fixture(scope="module")
def figures() -> dict[str, str]:
    return sample_figures()


def sample_report(figures: dict[str, str]) -> Report:
    tables = [Table(("id", "digest"), [("<i>r1</i>", Digest("ab" * 32)), (1.5, 2)], numeric=(1,))]
    shown: list[str | Figure] = [*figures.values(), Figure(figures["bars"], "bars & more")]
    return Report(
        "Title <script>",
        "sub & title",
        [Card("accuracy", "97 %", "of <359>")],
        [Section("Heading", "one `x<y`\n\ntwo **bold**", "<p>ours</p>", tables, shown)],
        [HowToCheck("look", "efface evaluate model <data>")],
        {"core": "cd" * 32},
        datetime(2030, 1, 2, 3, 4, tzinfo=UTC),
    )


def test_the_page_is_well_formed_and_offline(figures: dict[str, str]) -> None:
    page = sample_report(figures).render()
    assert is_offline(page)
    assert not is_offline(page.replace("</main>", '<img src="https://example.org/x.png"></main>'))


def test_the_page_shows_what_it_was_given_as_text(figures: dict[str, str]) -> None:
    page = sample_report(figures).render()
    text = " ".join(Page(page).text)
    for expected in (
        "Title <script>",
        "sub & title",
        "of <359>",
        "<i>r1</i>",
        "ab" * 32,
        "cd" * 32,
        "x<y",
        "efface evaluate model <data>",
        "2030-01-02 03:04 UTC",
        "How to check this yourself",
        "bars & more",
    ):
        assert expected in text
    assert "<p>ours</p>" in page


def test_different_figures_share_no_ids(figures: dict[str, str]) -> None:
    ids = [identity for svg in figures.values() for identity in Page(svg).ids]
    assert len(ids) > 20
    assert len(ids) == len(set(ids))


def test_ids_that_are_used_exist(figures: dict[str, str]) -> None:
    for svg in figures.values():
        used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
        assert used <= set(Page(svg).ids)


def test_write_leaves_one_file(tmp_path: Path, figures: dict[str, str]) -> None:
    report = sample_report(figures)
    path = report.write(tmp_path / "deep" / "report.html")
    assert path.read_text(encoding="utf-8") == report.render()
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_report_has_no_empty_boxes() -> None:
    page = Report("Nothing").render()
    assert "<section" not in page
    assert "<aside" not in page
    assert '<ul class="cards"' not in page


def test_what_it_is_about_and_when_stand_on_top(figures: dict[str, str]) -> None:
    head = replace(sample_report(figures), subject="model <3>").render().partition("<main>")[0]
    assert "model <3>" in Page(head + "</body></html>").text
    assert "2030-01-02 03:04 UTC" in head
    assert "facts" not in Report("Nothing").render().partition("</style>")[2]


@pytest.mark.parametrize("most", [2, 4, 6])
@pytest.mark.parametrize("count", range(1, 13))
def test_no_tile_stands_alone_in_a_row(count: int, most: int) -> None:
    in_a_row = tiles(count, most)
    assert 1 <= in_a_row <= most
    rows = [min(in_a_row, count - start) for start in range(0, count, in_a_row)]
    assert count < 3 or most < 3 or in_a_row > 1
    assert in_a_row == 1 or 1 not in rows


def test_the_width_is_used_by_what_there_is(figures: dict[str, str]) -> None:
    small, large = Table(("a", "b"), [(1, 2)]), Table(tuple("abcdefghi"), [range(9)])
    drawing = Figure(figures["bars"])
    assert Section("s", "few words", figures=[drawing], tables=[small]).layout == "beside"
    assert Section("s", "few words", figures=[drawing], tables=[large]).layout == "stacked"
    assert Section("s", "few words", figures=[drawing, drawing]).layout == "stacked"
    assert Section("s", "few words", tables=[small]).layout == "margin"
    assert Section("s", "many words " * 99, tables=[small]).layout == "stacked"
    assert Section("s", "few words", tables=[large]).layout == "stacked"
    assert Section("s", "few words", tables=[small], figures=[Figure("")]).layout == "margin"


def test_paragraphs_escape_before_they_mark_up() -> None:
    assert paragraphs("a `<b>`\n \nc **d**") == (
        "<p>a <code>&lt;b&gt;</code></p>\n<p>c <strong>d</strong></p>"
    )


@pytest.mark.parametrize("name", ["bars", "lines", "histograms", "scatter", "heatmap", "grid"])
def test_figures_are_xml_with_themed_colours(figures: dict[str, str], name: str) -> None:
    svg = figures[name]
    root = ET.fromstring(svg)
    assert root.tag == f"{{{NAMESPACES[0]}}}svg"
    assert "var(--" in svg
    assert root.get("role") == "img"


def test_a_figure_is_the_same_every_time(figures: dict[str, str]) -> None:
    assert sample_figures() == figures


def texts(svg: str) -> set[str]:
    return {"".join(node.itertext()).strip() for node in ET.fromstring(svg).iter() if node.text}


def test_figures_write_their_values_and_labels(figures: dict[str, str]) -> None:
    assert {"core", "user", "10.0 %", "25.0 %", "retrained"} <= texts(figures["bars"])
    assert {"attack", "chance", "goal", "10⁻⁴", "0.01"} <= texts(figures["lines"])
    assert {"in", "out", "score"} <= texts(figures["histograms"])
    assert {"σ = 1", "a", "b", "80 %"} <= texts(figures["scatter"])
    assert {"5", "1", "7"} <= texts(figures["heatmap"])
    assert "0" not in texts(figures["heatmap"])  # empty cells stay empty
    assert "a & b" in texts(figures["grid"])


def bar_heights(svg: str) -> list[float]:
    """Heights of the bars: filled paths of four corners in the first series' colour."""
    paths = re.findall(r'<path d="([^"]+)"[^>]*style="fill: var\(--c0', svg)
    ys = [[float(y) for y in re.findall(r"[ML] \S+ (\S+)", path)] for path in paths]
    return [max(y) - min(y) for y in ys]


def test_bars_are_as_high_as_their_values() -> None:
    heights = bar_heights(bars(["a", "b", "c"], [1.0, 2.0, 3.0]))
    assert np.allclose(np.array(heights) / heights[0], [1, 2, 3], rtol=1e-4)  # six written digits


@pytest.mark.parametrize(
    "nothing",
    [
        bars([], []),
        bars(["a", "b"], [0.0, 0.0], errors=[0.0, 0.0], band=Band(0.0, 0.0, "retrained")),
        lines([], Scale(), Scale()),
        lines([Line("one point", [1.0], [2.0])], Scale(), Scale()),
        histograms({"in": [], "out": []}),
        scatter([], Scale(), Scale()),
        heatmap([[0, 0]], ["a"], ["a", "b"]),
        image_grid([]),
    ],
)
def test_where_nothing_can_be_seen_nothing_is_drawn(nothing: str) -> None:
    assert nothing == ""
    page = Report("t", sections=[Section("s", figures=[Figure(nothing, instead="All are 0.")])])
    assert "All are 0." in Page(page.render()).text
    assert "<figure" not in page.render()


def test_a_band_that_can_be_seen_is_drawn_behind_bars_of_zero() -> None:
    assert "<path" in bars(["a"], [0.0], band=Band(0.1, 0.2, "retrained"))


def test_points_on_each_other_share_a_label() -> None:
    points = [Point("exact", 1.0, 0.5), Point("retrain", 1.0, 0.5), Point("far", 9.0, 0.9)]
    found = texts(scatter(points, Scale(), Scale(percent=True)))
    assert {"exact, retrain", "far"} <= found
    assert "exact" not in found


def test_labels_of_neighbours_do_not_lie_on_each_other() -> None:
    """The second goes below its point, the first stays above."""
    near = [Point("a rather long name", 1.0, 0.5), Point("another one", 3.2, 0.5)]
    svg = scatter([*near, Point("far", 9.0, 0.9)], Scale(), Scale(percent=True))
    placed = re.findall(r'rotate\(-0 [\d.]+ ([\d.]+)\)">([a-z ]+)</text>', svg)
    heights = {name: float(height) for height, name in placed}
    assert heights["another one"] - heights["a rather long name"] > 10


def test_no_share_is_above_everything_and_releases_are_whole() -> None:
    svg = lines(
        [Line("right", [1, 2, 3], [0.986, 0.986, 0.986])],
        Scale("release", whole=True),
        Scale("accuracy", percent=True),
    )
    shares = [float(text[:-2]) for text in texts(svg) if re.fullmatch(r"[\d.]+ %", text)]
    assert 98 < max(shares) <= 100
    assert {text for text in texts(svg) if re.fullmatch(r"[\d.]+", text)} == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.1236, "124 ms"), (24.612, "24.6 s"), (1, "1.0 s"), (180, "3 min")]
)
def test_times_are_said_as_people_do(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_equal_values_still_make_a_histogram() -> None:
    assert "<path" in histograms({"all the same": [2.0, 2.0]})


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 1), (8, 6, 3)])
def test_pictures_survive_as_png(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    head, data = png_uri(pixels).split(",")
    assert head == "data:image/png;base64"
    back = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert np.array_equal(back, pixels.squeeze())


def test_a_grid_has_one_picture_each_in_rows() -> None:
    pictures = [Thumbnail(np.full((4, 4), i, np.uint8)) for i in range(7)]
    root = ET.fromstring(image_grid(pictures, columns=3))
    images = root.findall(f"{{{NAMESPACES[0]}}}image")
    assert len(images) == 7
    assert len({node.get("x") for node in images}) == 3
    assert len({node.get("y") for node in images}) == 3
