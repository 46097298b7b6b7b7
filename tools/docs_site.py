"""What mkdocs cannot do by itself: the checkout as one site (``make docs``; see ``hooks`` in mkdocs.yml).

On a forge the docs are files that link to each other across folders: ``README.md``, ``docs/method.md``,
``experiments/results/….json``. Here each of them becomes a page or a file of the site, and links between them
are rewritten. Notebooks become pages, too. Pages of the API are one per room, made from the list of modules,
so none can be forgotten.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import docs_notebooks
import docs_tables
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "efface"
OUTSIDE = {  # a page of the site: where it lies in the checkout
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
    "experiments.md": "experiments/README.md",
    "benchmarks.md": "benchmarks/README.md",
}
PAGES = {origin: page for page, origin in OUTSIDE.items()}
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)")
GROUND = "ground"  # the page of the modules without a room


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/, what they link to, and the API."""
    for page, origin in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / origin)))
    for linked in sorted(_linked_files()):
        files.append(File.generated(config, linked, abs_src_path=str(ROOT / linked)))
    for page, content in docs_notebooks.pages().items():
        files.append(File.generated(config, page, content=content))
    for room, modules in rooms().items():
        files.append(File.generated(config, f"api/{room}.md", content=api_page(room, modules)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the checkout, to where their targets are on the site."""
    if page.file.src_uri in docs_notebooks.pages():
        return markdown  # its one link is beside it, and its words link to nothing
    origin = OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    here = posixpath.dirname(page.file.src_uri) or "."

    def moved(match: re.Match[str]) -> str:
        target = site_path(_in_checkout(origin, match[2]))
        return match[1] + posixpath.relpath(target, here)

    return LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Tables that can be read on a phone."""
    return docs_tables.readable(html)


def _in_checkout(origin: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def site_path(path: str) -> str:
    """Where a file of the checkout is on the site."""
    path = f"{path}/README.md" if (ROOT / path).is_dir() else path
    return PAGES.get(path, docs_notebooks.page_of(path.removeprefix("docs/")))


def _linked_files() -> set[str]:
    """Files of the checkout that pages link to and that are no pages: results, the licence."""
    found = set()
    for origin in [*PAGES, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]:
        for _, target in LINK.findall((ROOT / origin).read_text(encoding="utf-8")):
            path = _in_checkout(origin, target)
            if (ROOT / path).is_file() and path not in PAGES and not path.startswith("docs/"):
                found.add(path)
    return found


# --- the API --------------------------------------------------------------------------------------


def rooms() -> dict[str, list[str]]:
    """The modules of each room, as dotted names."""
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        words = path.relative_to(SOURCE).with_suffix("").parts
        if words == ("__init__",):
            continue
        room = words[0] if len(words) > 1 else GROUND
        found.setdefault(room, []).append(".".join(("efface", *words)).removesuffix(".__init__"))
    return {room: sorted(modules) for room, modules in found.items()}


def api_page(room: str, modules: list[str]) -> str:
    title = "The ground floor" if room == GROUND else room
    return "\n\n".join([f"# {title}", *(f"::: {module}" for module in modules)]) + "\n"
