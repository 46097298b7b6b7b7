"""The whole way in a real browser: submit, watch, receipt, verify; skipped where there is no Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.service.offices import picture
from tests.workspaces import OWNER
from typer.testing import CliRunner

from efface.cli import app
from efface.receipts.keys import make

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next((p for p in map(shutil.which, ("chromium", "google-chrome")) if p), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this system"),
    pytest.mark.needs("posix"),
]
SETTINGS = "signing_key = 'signing.key'\n[batch]\nwindow_seconds = 1\n[limits]\nper_minute = 6000\n"
PATIENCE = 120_000  # milliseconds, for busy machines


@dataclass(frozen=True)
class Running:
    url: str
    key: str
    workspace: Path


@pytest.fixture(scope="module")
def running(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`efface serve` as people start it, worker included; once, since that takes its time."""
    tmp_path = tmp_path_factory.mktemp("running")
    folder = shutil.copytree(made["compact"], tmp_path / "workspace")
    make(tmp_path / "signing.key")
    (tmp_path / "service.toml").write_text(SETTINGS)
    port = str(20_000 + os.getpid() % 20_000)
    words = ["serve", str(folder), "--config", str(tmp_path / "service.toml"), "--port", port]
    program = "import sys; from efface.cli import main; sys.argv[0] = 'efface'; main()"
    server = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().decode().strip()
        key = server.stdout.readline().decode().split()[-1]
        until_it_answers(url)
        yield Running(url, key, folder)
    finally:
        server.terminate()
        server.wait(60)


def until_it_answers(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the server does not answer")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_submit_watch_receipt_verify(running: Running, chromium: Any, tmp_path: Path) -> None:
    page = chromium.new_context().new_page()
    page.set_default_timeout(PATIENCE)
    problems: list[str] = []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.on("console", lambda m: problems.append(m.text) if "Content Security" in m.text else None)

    page.goto(running.url)
    page.get_by_label("Key").fill(running.key)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Requests to be forgotten").wait_for()

    image = tmp_path / "picture.png"
    image.write_bytes(picture())
    page.get_by_label("Picture").set_input_files(image)
    page.locator("#seen tbody tr").first.wait_for()

    watcher = page.context.new_page()
    watcher.set_default_timeout(PATIENCE)
    watcher.goto(running.url)
    watcher.get_by_label("Who").focus()
    watcher.keyboard.type(OWNER)
    watcher.keyboard.press("Enter")  # by keyboard alone
    watcher.get_by_role("heading", name="Request ").wait_for()
    watcher.get_by_role("link", name="Download receipt").wait_for()  # it appears by itself
    assert OWNER not in watcher.content()
    with watcher.expect_download() as download:
        watcher.get_by_role("link", name="Download receipt").click()
    download.value.save_as(tmp_path / "receipt.json")
    with watcher.expect_download() as download:
        watcher.get_by_role("link", name="public keys").click()
    download.value.save_as(tmp_path / "receipts.pub")
    with watcher.expect_download() as download:
        watcher.get_by_role("link", name="Français").click()
    download.value.save_as(tmp_path / "page.html")
    assert '<html lang="fr">' in (tmp_path / "page.html").read_text(encoding="utf-8")
    words = ["verify", str(tmp_path / "receipt.json"), "--key", str(tmp_path / "receipts.pub")]
    assert CliRunner().invoke(app, words).exit_code == 0
    changed = (tmp_path / "receipt.json").read_bytes().replace(b"A", b"B", 1)
    (tmp_path / "receipt.json").write_bytes(changed)
    assert CliRunner().invoke(app, words).exit_code == 4

    page.bring_to_front()
    page.locator("#seen tbody tr").nth(1).wait_for()  # before and after
    releases = page.locator("#seen tbody tr td:first-child").all_inner_texts()
    assert releases == ["1", "2"]
    assert problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_on_a_phone(running: Running, chromium: Any, scheme: str) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(running.url)
    page.get_by_label("Key").fill(running.key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="What is guaranteed").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    styled = "getComputedStyle(document.body).backgroundColor != 'rgba(0, 0, 0, 0)'"
    page.wait_for_function(styled)  # the style sheet may come after the words
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = int(ground.removeprefix("rgb(").partition(",")[0]) > 128
    assert light == (scheme == "light")
