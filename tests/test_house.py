"""The house as docs/architecture.md draws it: rooms one above the other, imports that only go down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import efface

SOURCE = Path(efface.__file__).parent
GROUND = ("errors", "version", "files", "regular", "digests", "progress", "environment", "alone")
ROOMS = (
    "data",
    "network",
    "linear",
    "arithmetic",
    "guarantee",
    "parts",
    "model",
    "workspace",
    "audit",
    "report",
    "reproduce",
    "pipeline",
    "commands",
)
FLOORS = [*GROUND, "containers", *ROOMS, "door", "cli"]  # each may import those before it

MODULES = {
    ".".join(("efface", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def imports_of(path: Path) -> set[str]:
    """The modules of ours that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "efface":
            assert node.module is not None
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                found.add(inner if inner in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found.update(a.name for a in node.names if a.name.split(".")[0] == "efface")
    return found


GRAPH = {name: imports_of(path) - {name} for name, path in MODULES.items() if name != "efface"}


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_module_is_in_a_room() -> None:
    assert {room(name) for name in GRAPH} == set(FLOORS)


@pytest.mark.parametrize("module", sorted(GRAPH))
def test_imports_go_down(module: str) -> None:
    floor = FLOORS.index(room(module))
    up = [name for name in GRAPH[module] if name == "efface" or FLOORS.index(room(name)) > floor]
    assert not up, f"{module} imports {up}, which lie above it"


def cycles() -> Iterator[tuple[str, ...]]:
    """A walk through the imports that meets itself."""
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if name in way:
            yield (*way[way.index(name) :], name)
        elif name not in done:
            for other in sorted(GRAPH.get(name, ())):
                yield from walk(other, (*way, name))
            done.add(name)

    for name in sorted(GRAPH):
        yield from walk(name, ())


def test_no_modules_import_each_other() -> None:
    assert next(cycles(), None) is None
