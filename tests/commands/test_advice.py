"""What the command line advises can be done on the command line: no advice that only Python can follow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import efface

SOURCE = Path(efface.__file__).parent
PYTHON = re.compile(  # an argument with its value, a call; "channel(s)" is neither
    r"\b[a-z_]+=(?!=)|\b[A-Za-z_][\w.]{2,}\((?!s\))"
)
OTHERWISE = re.compile(r"--[a-z]|`efface |\b[Ii]n Python\b")
TOLD = frozenset({"warn", "fail", "tell", "Check", "Note"})
TEXTS = frozenset({"fix", "message", "text", "hint", "note", "advice"})
NOT_FOR_COMMANDS = {  # a place: why no command prints what it says
    "door/": "the classes for people who come from scikit-learn",
    "data/readers/examples.py": "arrays, tensors and data sets that a program hands over",
    "report/images.py": "SVG, which has attributes",
    "pipeline/check.py": "about the network's own source, which is Python",
}


def said(node: ast.AST) -> str:
    """The text of an expression, with {} for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "{}"
    if isinstance(node, ast.JoinedStr):
        return "".join(said(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return said(node.left) + said(node.right)
    if isinstance(node, ast.IfExp):
        return f"{said(node.body)} {said(node.orelse)}"
    return "{}"


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Errors with their fixes, remarks, and texts that are put together for them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in TOLD or name.endswith("Error"):
                yield node.lineno, " ".join(said(part) for part in node.args)
        elif isinstance(node, ast.Assign) and {ast.unparse(t) for t in node.targets} & TEXTS:
            yield node.lineno, said(node.value)


def python_only(tree: ast.AST) -> list[tuple[int, str]]:
    found = messages(tree)
    return [(n, text) for n, text in found if PYTHON.search(text) and not OTHERWISE.search(text)]


FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
CHECKED = [name for name in FILES if not name.startswith(tuple(NOT_FOR_COMMANDS))]


@pytest.mark.parametrize("name", CHECKED)
def test_no_advice_for_python_alone(name: str) -> None:
    assert python_only(ast.parse(FILES[name].read_text(encoding="utf-8"))) == []


def test_the_places_without_commands_are_there() -> None:
    assert all(any(name.startswith(place) for name in FILES) for place in NOT_FOR_COMMANDS)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise EffaceError('no network.', 'give module=…')", 1),
        ("raise errors.FormatError(f'{x} is none.', 'use MixedLinear(core) instead.')", 1),
        ("fix = 'pass power=1.'", 1),
        ("warn(f'call model.fit() first')", 1),
        ("raise EffaceError('no network.', 'give --trust-module NAME (module=…)')", 0),
        ("raise EffaceError('no network.', 'in Python: load(path, module=…)')", 0),
        ("raise EffaceError(f'{n} channel(s).', 'check the image.')", 0),
        ("other = 'features=3'", 0),
    ],
)
def test_what_is_looked_for(code: str, found: int) -> None:
    assert len(python_only(ast.parse(code))) == found


def test_it_looks_at_many() -> None:
    trees = (ast.parse(FILES[name].read_text(encoding="utf-8")) for name in CHECKED)
    assert sum(1 for tree in trees for _ in messages(tree)) > 400
