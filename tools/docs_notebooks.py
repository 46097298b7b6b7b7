"""Notebooks as pages of the site: words as they are, code and what it printed in fences, pictures inline.

Needs nothing but the standard library, so that tests can make the pages without mkdocs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
RAW = "*[The notebook itself]({name}): open it in Jupyter to run it.*"


def pages() -> dict[str, str]:
    """The Markdown of each notebook's page, by where the page is on the site."""
    found = sorted(FOLDER.glob("*.ipynb"))
    return {f"notebooks/{path.stem}.md": markdown(path) for path in found}


def page_of(path: str) -> str:
    """Where a notebook of the checkout is read on the site; any other path as it is."""
    return re.sub(r"^(notebooks/[^/]+)\.ipynb$", r"\1.md", path)


def markdown(path: Path) -> str:
    """The page of one notebook: its heading, the link to the file, then cell after cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _cell(cell)]
    return "\n\n".join([*parts[:1], RAW.format(name=path.name), *parts[1:]]) + "\n"


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    text = _text(cell["source"]).strip("\n")
    if cell["cell_type"] == "markdown":
        yield text
    elif cell["cell_type"] == "code" and text:
        yield _fence(text, "python")
        for output in cell.get("outputs", ()):
            yield from _output(output)


def _output(output: Mapping[str, Any]) -> Iterator[str]:
    """One picture, or else its text; of an error what it says."""
    data = output.get("data", {})
    picture = next((kind for kind in PICTURES if kind in data), None)
    if picture == "image/svg+xml":
        yield f"<figure>{_text(data[picture])}</figure>"
    elif picture is not None:
        yield f"![](data:{picture};base64,{''.join(_text(data[picture]).split())})"
    else:
        found = output.get("text") or data.get("text/plain") or output.get("evalue") or ""
        printed = _text(found).strip("\n")
        if printed:
            yield _fence(printed, "text")


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _fence(text: str, language: str) -> str:
    """A fence longer than any in it."""
    longest = max((len(ticks) for ticks in re.findall("`{3,}", text)), default=2)
    ticks = "`" * (longest + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"
