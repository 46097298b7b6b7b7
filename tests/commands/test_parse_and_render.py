"""Commands parse and render: no arithmetic in them, and nothing heavy loaded before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import efface.commands

COMMANDS = sorted(Path(efface.commands.__file__).parent.glob("*.py"))
ARITHMETIC = {"torch", "numpy", "scipy", "sklearn", "safetensors", "PIL"}
HEAVY = ("torch", "numpy", "sklearn", "scipy", "matplotlib", "PIL", "jinja2")
# What a command may load before it runs: other than these, efface's rooms import torch or numpy.
LIGHT = (
    "efface.commands",
    "efface.errors",
    "efface.progress",
    "efface.pipeline.config",
    "efface.pipeline.options",
)


def imports(nodes: Iterator[ast.AST] | list[ast.stmt]) -> Iterator[str]:
    """The modules that these statements import."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_command_does_not_compute(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {name.split(".")[0] for name in imports(ast.walk(tree))} & ARITHMETIC


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_command_loads_the_library_when_it_runs(path: Path) -> None:
    ours = {n for n in imports(ast.parse(path.read_text()).body) if n.split(".")[0] == "efface"}
    assert [name for name in ours if not name.startswith(LIGHT)] == []


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["train", "digits", "--print-config"]]
)
def test_what_only_prints_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys, efface.cli\n"
        f"sys.argv = ['efface', *{words}]\n"
        "try: efface.cli.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        f"print('LOADED', [name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"
