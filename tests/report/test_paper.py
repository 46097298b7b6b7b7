"""The page about a request on a phone and on paper: nothing hangs out, A4, few sheets; in every language."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browsers import CHROMIUM, QUIET, needs_chromium

from efface.guarantee.certificates import NOT_COVERED
from efface.ledger.row import EMPTY, LedgerRow
from efface.receipts.receipt import Receipt
from efface.report.evidence import Account, Beside, SignedBy, page
from efface.report.language import Language

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = needs_chromium
TIME, DIGEST = "2030-01-02T03:04:05+00:00", "ab" * 32
FILES = ("CHECK.txt", "keys.pub", "ledger.jsonl", "pages/2.html", "receipts/3.json", "audit/a.json")


def account() -> Account:
    rows: list[LedgerRow] = []
    for step in ("accepted", "prepared", "published", "purged"):
        body = {"number": 3, "action": "forget", "step": step}
        rows.append(LedgerRow.after(rows[-1].head if rows else EMPTY, TIME, "step", body))
    receipt = Receipt(
        subjects={"core": DIGEST, "releases/3/user.safetensors": DIGEST},
        action="forget",
        release=3,
        request=[DIGEST],
        certificate={"kind": "exact", "passed": True, "num_people": 3},
        arithmetic="integer",
        environment={},
        version="0",
        not_covered=NOT_COVERED,
        rows=tuple(rows),
        time=TIME,
    )
    beside = Beside("receipts/3.json", "keys.pub", "ledger.jsonl", FILES)
    return Account(receipt, SignedBy(DIGEST, DIGEST), beside=beside, num_rows=4)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.mark.parametrize("language", Language)
def test_on_a_phone_and_on_paper(browser: Any, tmp_path: Path, language: Language) -> None:
    (tmp_path / "page.html").write_text(page(account(), language).render(), encoding="utf-8")
    shown = browser.new_page(viewport={"width": 360, "height": 700})
    shown.goto((tmp_path / "page.html").as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth") == 360
    printed = shown.pdf(prefer_css_page_size=True)
    shown.close()
    sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)
    assert {(round(float(w)), round(float(h))) for w, h in sizes} == {(595, 842)}  # A4, in points
    assert 2 <= len(sizes) <= 4
