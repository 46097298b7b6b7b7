"""The notebooks run from top to bottom, and are committed without what they printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.places import ROOT

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
