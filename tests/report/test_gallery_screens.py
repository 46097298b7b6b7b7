"""Every page of the gallery on real screens: nothing hangs out, no columns of a word, readable ink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browsers import CHROMIUM, QUIET, needs_chromium
from tests.places import ROOT

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = needs_chromium
PAGES = sorted((ROOT / "docs/gallery").glob("*.html"))
WIDTHS = (390, 1280)
READABLE = 4.5  # WCAG 2.2, 1.4.3: contrast of text with what is behind it

SIDEWAYS = """e => {  // inside of something that is scrolled by itself
  for (let p = e; p; p = p.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(p).overflowX)) return true;
  return false;
}"""
HANGING = f"""() => {{
  const sideways = {SIDEWAYS}, width = document.documentElement.clientWidth;
  return [...document.body.querySelectorAll('*')].filter(e => {{
    const box = e.getBoundingClientRect();
    return box.width && (box.right > width + 1 || box.left < -1) && !sideways(e);
  }}).map(e => e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 40));
}}"""
ONE_WORD = """() => [...document.querySelectorAll('p, li, td, th, dt, dd, figcaption, pre')].filter(e => {
  if ([...e.children].some(inner => getComputedStyle(inner).display !== 'inline')) return false;
  const words = e.innerText.trim().split(/\\s+/).length, range = document.createRange();
  range.selectNodeContents(e);
  const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top / 4)));
  return words >= 4 && tops.size >= words;
}).map(e => e.tagName + ' ' + e.innerText.slice(0, 60))"""
PALE = """least => {
  const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = text => numbers(text).slice(0, 3).map(n => n / 255)
    .map(n => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4)
    .reduce((sum, n, i) => sum + n * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (let p = e; p; p = p.parentElement) {
      const colour = getComputedStyle(p).backgroundColor, parts = numbers(colour);
      if (parts.length === 3 || parts[3] === 1) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = [];
  for (const e of document.body.querySelectorAll('*')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const box = e.getBoundingClientRect();
    if (!own || !box.width || ['STYLE', 'TITLE', 'DESC'].includes(e.tagName.toUpperCase())) continue;
    const style = getComputedStyle(e), drawn = e instanceof SVGElement;
    const pair = [light(drawn ? style.fill : style.color), light(behind(e))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < least)
      found.push(`${contrast.toFixed(1)} ${e.tagName} ${e.textContent.trim().slice(0, 40)}`);
  }
  return found;
}"""


SMALL = """least => [...document.querySelectorAll('svg text')].map(text => {
  const scale = text.getScreenCTM();
  return [parseFloat(getComputedStyle(text).fontSize) * Math.hypot(scale.a, scale.b), text.textContent];
}).filter(([size]) => size < least)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


def opened(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> Any:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(address)
    return page


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_nothing_is_wider_than_the_page(browser: Any, path: Path, width: int) -> None:
    page = opened(browser, path.as_uri(), width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(HANGING) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_column_holds_a_word_a_line(browser: Any, path: Path, width: int) -> None:
    assert opened(browser, path.as_uri(), width).evaluate(ONE_WORD) == []


DATES = """() => {
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walk.nextNode();)
    for (const date of node.textContent.matchAll(/\\d{4}-\\d\\d-\\d\\d( \\d\\d:\\d\\d)?/g)) {
      const range = document.createRange();
      range.setStart(node, date.index);
      range.setEnd(node, date.index + date[0].length);
      const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (node.parentElement.closest('td, dd') && tops.size > 1) found.push(date[0]);
    }
  return found;
}"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_date_in_a_table_is_on_one_line(browser: Any, path: Path, width: int) -> None:
    assert opened(browser, path.as_uri(), width).evaluate(DATES) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_ink_can_be_read(browser: Any, path: Path, scheme: str) -> None:
    assert opened(browser, path.as_uri(), scheme=scheme).evaluate(PALE, READABLE) == []


@pytest.mark.parametrize(("width", "least"), [(390, 7.5), (1280, 7.5)])
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_words_in_drawings_are_not_tiny(browser: Any, path: Path, width: int, least: float) -> None:
    """In CSS pixels: on a phone drawings are as wide as the page, or are scrolled by themselves."""
    assert opened(browser, path.as_uri(), width).evaluate(SMALL, least) == []


BAD = """<!doctype html><style>body {{ margin: 0; background: #fff; color: {ink}; }}</style>
<div style="width: {width}px">wide</div><table><tr><td style="width: {column}px">
four short words here</td></tr></table>
<svg viewBox="0 0 100 20" style="width: {width}px"><text y="9" font-size="{size}">drawn</text></svg>"""


def test_what_is_wrong_is_seen(browser: Any, tmp_path: Path) -> None:
    """The tests above can fail: on a page where all of it is wrong, and not where nothing is."""
    seen = {}
    for name, values in {
        "good": {"ink": "#000", "width": 300, "column": 300, "size": 9},
        "bad": {"ink": "#aaa", "width": 500, "column": 20, "size": 1},
    }.items():
        path = tmp_path / f"{name}.html"
        path.write_text(BAD.format(**values), encoding="utf-8")
        page = opened(browser, path.as_uri(), 390)
        found = [page.evaluate(HANGING), page.evaluate(ONE_WORD), page.evaluate(PALE, READABLE)]
        found.append(page.evaluate(SMALL, 7.5))
        seen[name] = [bool(items) for items in found]
    assert seen == {"good": [False] * 4, "bad": [True] * 4}
