"""One callback for progress, defined once; low rooms do not draw it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import efface
from efface.progress import part

SOURCE = Path(efface.__file__).parent


def test_parts_of_a_task_never_run_backwards() -> None:
    seen: list[tuple[float, str]] = []
    progress = part(lambda fraction, message: seen.append((fraction, message)), 0.5, 1.0, "solve")
    for fraction in (0.0, 0.5, 0.2, 1.0, 3.0):
        progress(fraction, "x")
    assert seen == [(f, "solve: x") for f in (0.5, 0.75, 0.75, 1.0, 1.0)]


def defines_progress(path: Path) -> bool:
    """Whether a file gives the name a meaning of its own (an import does not)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(name, ast.Name) and name.id == "Progress" for name in names):
            return True
        if isinstance(node, ast.ClassDef) and node.name == "Progress":
            return True
    return False


def test_progress_is_defined_in_one_place() -> None:
    found = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")]
    assert [name for name in found if defines_progress(SOURCE / name)] == ["progress.py"]


def test_the_type_comes_without_the_drawing() -> None:
    code = "import sys, efface.progress; print([n for n in ('rich', 'typer') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
