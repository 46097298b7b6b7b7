"""The notebooks run from top to bottom, and are committed without what they printed."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from tests.places import ROOT, script

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["1-first-request", "2-audit", "3-the-papers-model"]
    page = (ROOT / "docs/notebooks.md").read_text(encoding="utf-8")
    assert all(f"notebooks/{path.name}" in page for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Cell after cell, as a kernel would; all of them say something but the imports."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells(path, "code"):
        exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) >= 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_that_it_printed_is_committed(path: Path) -> None:
    code = cells(path, "code")
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    assert len(cells(path, "markdown")) >= len(code) - 1  # each step is told


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """tools/docs_notebooks.py, by which ``make docs`` makes the pages."""
    return script("tools/docs_notebooks.py")


def test_each_is_a_page_of_the_site_with_all_of_its_words_and_code(site: ModuleType) -> None:
    pages = site.pages()
    assert list(pages) == [f"notebooks/{path.stem}.md" for path in NOTEBOOKS]
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    assert all(page in str(nav["nav"]) for page in pages)
    for path, text in zip(NOTEBOOKS, pages.values(), strict=True):
        assert text.startswith("# ")
        assert f"({path.name})" in text
        assert all("".join(cell["source"]).strip() in text for cell in cells(path, "markdown"))
        code = ["".join(cell["source"]).strip() for cell in cells(path, "code")]
        assert all(f"```python\n{source}\n```" in text for source in code)
        assert site.page_of(f"notebooks/{path.name}") == f"notebooks/{path.stem}.md"
    assert site.page_of("experiments/a.ipynb") == "experiments/a.ipynb"


def test_what_a_notebook_printed_and_drew_is_on_its_page(site: ModuleType, tmp_path: Path) -> None:
    fence = "print('```')"
    outputs = [
        {"output_type": "stream", "text": ["two\n", "lines\n"]},
        {"output_type": "execute_result", "data": {"text/plain": "42"}},
        {"output_type": "display_data", "data": {"image/png": "QUJD\n", "text/plain": "<Figure>"}},
        {"output_type": "error", "evalue": "no such thing"},
    ]
    values = [
        {"cell_type": "markdown", "source": "# Title"},
        {"cell_type": "code", "source": fence, "outputs": outputs},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": values}))
    text = site.markdown(tmp_path / "n.ipynb")
    assert f"````python\n{fence}\n````" in text
    assert "```text\ntwo\nlines\n```" in text
    assert "```text\n42\n```" in text
    assert "![](data:image/png;base64,QUJD)" in text
    assert "<Figure>" not in text
    assert "no such thing" in text
