"""A report on real screens: nothing hangs out, no tile stands alone, no columns of a word; light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browsers import CHROMIUM, QUIET, needs_chromium

from efface.report.figures import bars
from efface.report.html import Card, Digest, Figure, HowToCheck, Report, Section, Table

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = needs_chromium
WIDE, NARROW = 1280, 390
WORDS = "Words enough that a narrow column would hold one of them a line, and be read by nobody."


def report() -> Report:
    worded = Table(
        ("step", "time", "what"), [(1, "2030-01-02T03:04:05+00:00", WORDS)], numeric=(0,)
    )
    numbers = Table(
        ("method", *"abcdefgh"), [("exact", *range(1000, 9000, 1000))], numeric=range(1, 9)
    )
    drawing = Figure(bars(["one", "two"], [1.0, 2.0], title="bars"), "two bars")
    return Report(
        "A report",
        WORDS,
        cards=[Card(f"key figure {i}", f"AUC 0.98{i}", "a few words of context") for i in range(7)],
        sections=[
            Section("A table of words", WORDS, tables=[worded]),
            Section("A table of numbers", WORDS, tables=[numbers]),
            Section("A drawing", f"A digest: `{'ab' * 32}`. {WORDS}", figures=[drawing]),
            Section("Keys", tables=[Table(("key", "until"), [(Digest("cd" * 32), "now")])]),
        ],
        checks=[
            HowToCheck("Look.", "efface verify receipts/2.json --key keys.pub --ledger l.jsonl")
        ],
        digests={"releases/2/user.safetensors": "ef" * 32},
        subject="the model in here/model",
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = report().write(tmp_path_factory.mktemp("report") / "report.html")
    return path.as_uri()


def opened(browser: Any, address: str, width: int, scheme: str = "light") -> Any:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(address)
    return page


def boxes(page: Any, selector: str) -> list[dict[str, float]]:
    return [item.bounding_box() for item in page.query_selector_all(selector)]


@pytest.mark.parametrize("width", [NARROW, 800, WIDE])
def test_nothing_hangs_out(browser: Any, address: str, width: int) -> None:
    page = opened(browser, address, width)
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("width", "rows"), [(NARROW, [2, 2, 2, 1]), (800, [4, 3]), (WIDE, [4, 3])])
def test_every_row_of_tiles_is_full(
    browser: Any, address: str, width: int, rows: list[int]
) -> None:
    found = boxes(opened(browser, address, width), ".cards li")
    tops = sorted({round(box["y"]) for box in found})
    assert [sum(round(box["y"]) == top for box in found) for top in tops] == rows
    ends = {max(round(b["x"] + b["width"]) for b in found if round(b["y"]) == top) for top in tops}
    assert max(ends) - min(ends) <= 1


def test_on_a_wide_screen_the_width_is_used(browser: Any, address: str) -> None:
    page = opened(browser, address, WIDE)
    assert all(box["width"] > 0.9 * WIDE for box in boxes(page, "section"))
    (words,), (drawing,) = boxes(page, ".beside .words"), boxes(page, ".beside figure")
    assert drawing["x"] >= words["x"] + words["width"]


@pytest.mark.parametrize(("count", "rows"), [(2, [2]), (3, [3]), (4, [2, 2]), (5, [3, 2])])
def test_no_drawing_stands_alone(browser: Any, tmp_path: Path, count: int, rows: list[int]) -> None:
    drawn = [
        Figure(bars(["one", "two"], [1.0, 2.0 + i], title="bars"), "two") for i in range(count)
    ]
    path = Report("Drawings", sections=[Section("Many", WORDS, figures=drawn)]).write(
        tmp_path / "drawings.html"
    )
    for width, expected in ((WIDE, rows), (NARROW, [1] * count)):
        page = opened(browser, path.as_uri(), width)
        found = boxes(page, "figure")
        tops = sorted({round(box["y"]) for box in found})
        assert [sum(round(box["y"]) == top for box in found) for top in tops] == expected
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_on_a_phone_words_have_the_whole_width(browser: Any, address: str) -> None:
    page = opened(browser, address, NARROW)
    assert all(box["width"] > 0.75 * NARROW for box in boxes(page, "table.worded td"))
    (table,) = boxes(page, "table.numbers")
    assert table["width"] > NARROW  # moved sideways, and not squeezed


def test_a_dark_screen_has_light_ink(browser: Any, address: str) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = opened(browser, address, WIDE, scheme)
        style = "getComputedStyle(document.body)"
        colours[scheme] = [
            sum(int(n) for n in page.evaluate(f"{style}.{what}").strip("rgb()").split(","))
            for what in ("backgroundColor", "color")
        ]
    assert colours["light"][0] > 600 > 200 > colours["light"][1]
    assert colours["dark"][0] < 200 < 600 < colours["dark"][1]
