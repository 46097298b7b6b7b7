"""The gallery of reports, docs/gallery/: pages that efface writes, made on digits, and a picture of each.

    python tools/gallery.py             # all of it, in some minutes; then look at it, and commit
    python tools/gallery.py --pictures  # the pictures alone, of the pages that are there
    python tools/gallery.py --folder work --only compare  # one page, in a folder where the others were made

A picture shows the page on a wide screen and on a phone; that takes Chromium and playwright (extra ``dev``).
docs/gallery.md has the list between two comments, written from here.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from served_pages import pages, served

ROOT = Path(__file__).parents[1]
FOLDER, PAGE = ROOT / "docs" / "gallery", ROOT / "docs" / "gallery.md"
BEGIN, END = "<!-- pages: tools/gallery.py -->", "<!-- end of pages -->"
WIDE, PHONE = (1280, 800), (390, 800)
PORT = 18_765  # of the service while its pages are taken
HEIGHT, GAP, QUALITY = 500, 16, 70  # of a picture, in pixels; of WebP
MODEL = "efface-demo/workspace"
SERVE = f"efface serve {MODEL} --config served/demo.toml"


@dataclass(frozen=True)
class Shown:
    """A page: what to type for it (``commands``, the last one writes ``made``), and what it is for.

    ``given`` are results that are in the repository already, and are put where the page will be.
    """

    name: str
    title: str
    words: str
    commands: tuple[str, ...]
    made: str
    given: tuple[str, ...] = ()


SHOWN = (
    Shown(
        "demo",
        "The demo",
        "A model, a request, a certificate and attacks, on handwritten digits: what `make demo` ends in.",
        ("efface demo --out efface-demo",),
        "efface-demo/report.html",
    ),
    Shown(
        "releases",
        "Two releases",
        "What was asked in between, what changed, what is not known any more.",
        (
            "efface keys new signing.key",
            f"efface evaluate {MODEL} digits --json > before.json",
            f"efface forget {MODEL} --owner u23 --key signing.key",
            f"efface evaluate {MODEL} digits --json > after.json",
            f"efface releases {MODEL} --evaluation before.json --evaluation after.json",
        ),
        "releases.html",
    ),
    Shown(
        "request",
        "A request, for a privacy officer",
        "One page in plain words, to print and sign. [What it says](officer.md).",
        (f"efface evidence {MODEL} --request 2 --out request.html",),
        "request.html",
    ),
    Shown(
        "request-de",
        "The same in German",
        "One template; the words of a language are a file.",
        (f"efface evidence {MODEL} --request 2 --language de --out request-de.html",),
        "request-de.html",
    ),
    Shown(
        "request-fr",
        "In French",
        "The same request.",
        (f"efface evidence {MODEL} --request 2 --language fr --out request-fr.html",),
        "request-fr.html",
    ),
    Shown(
        "request-es",
        "In Spanish",
        "The same request.",
        (f"efface evidence {MODEL} --request 2 --language es --out request-es.html",),
        "request-es.html",
    ),
    Shown(
        "audit",
        "An audit",
        "Of somebody who is still in the model: all influence is left. [How to read it](audit.md).",
        (f"efface audit {MODEL} digits --owner u24 --worlds 8 --out audit",),
        "audit/report.html",
    ),
    Shown(
        "compare",
        "Methods side by side",
        "Ways to forget, each beside a retrained model. `--worlds` and `--canaries` add the attacks.",
        ("efface compare digits --seeds 1 --worlds 0 --canaries 0 --out compare",),
        "compare/report.html",
    ),
    Shown(
        "reproduce",
        "The paper's experiments",
        "Four of the nine, drawn from the results in `experiments/results/digits`. [Verdicts](paper.md).",
        ("efface reproduce all --data digits --draw-only --out efface-reproduce/digits",),
        "efface-reproduce/digits/report.html",
        tuple(
            f"experiments/results/digits/{figure}.json"
            for figure in ("error-comparison", "info-vs-noise", "info-vs-epochs", "readouts")
        ),
    ),
    Shown(
        "service",
        "The deletion service",
        "What is asked, what became of it, what is guaranteed: the page that `make serve` is for. "
        "[How it works](service.md). Here it is a picture of itself: nothing can be pressed.",
        ("efface keys new efface-demo/signing.key", SERVE),
        "served/service.html",
        ("deploy/demo.toml",),
    ),
    Shown(
        "service-request",
        "A request to the service",
        "Step by step, each with its row of the ledger; receipt and page to take away.",
        (SERVE,),
        "served/service-request.html",
        ("deploy/demo.toml",),
    ),
)


def make(folder: Path, only: Sequence[str] = ()) -> None:
    """Every page, by the commands that the gallery shows, in an empty folder; or these, where others were."""
    FOLDER.mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for shown in SHOWN:
        if only and shown.name not in only:
            continue
        for name in shown.given:
            (folder / shown.made).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, (folder / shown.made).parent)
        for command in shown.commands:
            print(command, flush=True)
            if command != SERVE:
                _run(command, folder)
            elif not (folder / shown.made).exists():  # one visit brings all pages
                _visit(folder)
        shutil.copy(folder / shown.made, FOLDER / f"{shown.name}.html")


def _program(words: str) -> tuple[list[str], dict[str, str]]:
    """The command line with this checkout's efface, and its environment."""
    return [sys.executable, "-m", *shlex.split(words)], os.environ | {
        "PYTHONPATH": str(ROOT / "src")
    }


def _visit(folder: Path) -> None:
    command, environment = _program(f"{SERVE} --port {PORT}")
    with served(command, folder, environment) as visitor:
        for name, text in pages(visitor).items():
            (folder / "served" / name).write_text(text, encoding="utf-8")


def _run(command: str, folder: Path) -> None:
    words, _, to = command.partition(" > ")
    program, environment = _program(words)
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: an attack succeeded, which a page may well show
        raise SystemExit(f"{command}: {done.stderr[-2000:]}")
    if to:
        (folder / to).write_text(done.stdout, encoding="utf-8")


def draw(only: Sequence[str] = ()) -> None:
    """A picture of each page, or of these, as WebP."""
    from playwright.sync_api import sync_playwright

    found = next((p for p in map(shutil.which, ("chromium", "google-chrome")) if p), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for shown in SHOWN:
            if only and shown.name not in only:
                continue
            picture(browser, FOLDER / f"{shown.name}.html").save(
                FOLDER / f"{shown.name}.webp", quality=QUALITY, method=6
            )
        browser.close()


def picture(browser: Any, page: Path) -> Image.Image:
    """Its beginning on a wide screen, and on a phone beside it."""
    screens = [_screen(browser, page, *size) for size in (WIDE, PHONE)]
    scaled = [s.resize((round(s.width * HEIGHT / s.height), HEIGHT)) for s in screens]
    whole = Image.new("RGB", (sum(s.width for s in scaled) + GAP, HEIGHT), "white")
    whole.paste(scaled[0], (0, 0))
    whole.paste(scaled[1], (scaled[0].width + GAP, 0))
    return whole


def _screen(browser: Any, page: Path, width: int, height: int) -> Image.Image:
    opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    opened.goto(page.as_uri())
    taken = Image.open(io.BytesIO(opened.screenshot()))
    opened.close()
    return taken


def listing() -> Iterator[str]:
    """The gallery in Markdown."""
    for shown in SHOWN:
        yield f"## {shown.title}"
        yield f"{shown.words} [Open it](gallery/{shown.name}.html)."
        yield "```\n" + "\n".join(shown.commands) + "\n```"
        alternative = f"{shown.title}, on a wide screen and on a phone"
        yield f"[![{alternative}](gallery/{shown.name}.webp)](gallery/{shown.name}.html)"


def written(text: str) -> str:
    """docs/gallery.md with the list as it should be."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n" + "\n\n".join(listing()) + f"\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--folder", type=Path, help="Where to work; it is kept.")
    parser.add_argument("--only", default="", help="Only these pages, separated by commas.")
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name]
    if not args.pictures:
        with tempfile.TemporaryDirectory() as folder:
            make(args.folder or Path(folder), only)
    draw(only)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
