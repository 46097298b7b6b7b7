"""The house as docs/architecture.md draws it: rooms one above the other, imports that only go down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import efface
from efface.parts.table import PARTS, STORED, VIEWS

SOURCE = Path(efface.__file__).parent
GROUND = (
    *("errors", "version", "files", "regular", "digests", "progress", "environment", "alone"),
    *("ahead", "spool", "device_names"),
)
ROOMS = (
    "data",
    "network",
    "linear",
    "arithmetic",
    "guarantee",
    "parts",
    "model",
    "ledger",
    "receipts",
    "workspace",
    "shards",
    "export",
    "audit",
    "report",
    "reproduce",
    "service",
    "pipeline",
    "commands",
)
FLOORS = [
    *GROUND,
    "containers",
    *ROOMS,
    "door",
    "cli",
    "__main__",
]  # each may import those before it

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


# --- parts ----------------------------------------------------------------------------------------

OF_PARTS = {
    base.__name__
    for table in (PARTS, STORED, VIEWS)
    for module, _, name in (place.partition(":") for place in table.values())
    for base in getattr(import_module(module), name).__mro__
    if base.__module__.startswith("efface.parts.") and base.__module__.count(".") > 2
}  # CompactUser, its bases in its folder, TangentUser, their views


def _names_a_part(node: ast.AST) -> bool:
    """A part's name as a string, or the class of one, anywhere in the expression."""
    return any(
        (isinstance(n, ast.Constant) and n.value in PARTS)
        or (isinstance(n, ast.Name) and n.id in OF_PARTS)
        or (isinstance(n, ast.Attribute) and n.attr in OF_PARTS)
        for n in ast.walk(node)
    )


def kind_tests(tree: ast.AST) -> list[int]:
    """The lines where code asks which part it has: a comparison, a match or an isinstance."""
    found = []
    for node in ast.walk(tree):
        asks: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            asks = [node.left, *node.comparators]
        elif isinstance(node, ast.match_case):
            asks = [node.pattern]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asks = [*node.args[1:]]
        if any(map(_names_a_part, asks)):
            found.append(node.body[0].lineno if isinstance(node, ast.match_case) else node.lineno)
    return found


@pytest.mark.parametrize(
    "code",
    [
        "if config.user.kind == 'compact': ...",
        "kept = user.kind not in ('tangent', 'other')",
        "assert isinstance(model.user, CompactUser)",
        "isinstance(user, (int, user_module.TangentUser))",
        "isinstance(user, RowMaker)",
        "a = 1 if user.kind != TangentUser.kind else 2",
        "match kind:\n    case 'compact': ...",
    ],
)
def test_a_kind_test_is_seen(code: str) -> None:
    assert kind_tests(ast.parse(code))


@pytest.mark.parametrize(
    "code", ["MixedLinear(core, 'compact')", "part_named(kind).noisy", "form.kind == 'integer'"]
)
def test_naming_a_part_is_a_choice(code: str) -> None:
    assert not kind_tests(ast.parse(code))


def test_no_room_but_parts_asks_which_part_it_has() -> None:
    """Make it a method or an attribute of ``UserPart``."""
    found = {
        name: kind_tests(ast.parse(MODULES[name].read_text(encoding="utf-8")))
        for name in GRAPH
        if room(name) != "parts"
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


# --- sizes ----------------------------------------------------------------------------------------

MOST_LINES, MOST_METHODS = 400, 20
MOST_LINES_OF_TESTS = 450
LONG_FILES: dict[str, str] = {}  # and why
LARGE_CLASSES = {  # the 23 methods of a user part, and what is its own
    "UserPart": "whatever differs between parts is asked there, so that no other room tests for it",
    "CompactUser": "rows in and out of its sums, for tests and experiments, too",
    "RowMaker": "the half of CompactUser that makes rows",
    "TangentUser": "problems, preconditioners and fits, for experiments, too",
}
DEFINED_TWICE: dict[str, str] = {}  # and why


def classes() -> dict[str, list[ast.ClassDef]]:
    """Every class of the package, by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


CLASSES = classes()


def is_value(function: ast.FunctionDef) -> bool:
    """A property is read, not called: it is no method."""
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def public_methods(name: str) -> set[str]:
    """Its own, and those of the classes of ours that it inherits from."""
    found: set[str] = set()
    for node in CLASSES.get(name, ()):
        own = {
            part.name
            for part in node.body
            if isinstance(part, ast.FunctionDef) and not is_value(part)
        }
        found.update(method for method in own if not method.startswith("_"))
        for base in node.bases:
            found |= public_methods(ast.unparse(base))
    return found


def test_no_file_is_too_long() -> None:
    lengths = {
        path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8").count("\n")
        for path in MODULES.values()
    }
    assert {name for name, length in lengths.items() if length > MOST_LINES} == set(LONG_FILES)


def test_no_file_of_tests_is_too_long() -> None:
    lengths = {
        path.name: path.read_text(encoding="utf-8").count("\n")
        for path in Path(__file__).parent.rglob("*.py")
    }
    assert [name for name, length in lengths.items() if length > MOST_LINES_OF_TESTS] == []


def test_no_class_has_too_many_public_methods() -> None:
    """Inherited ones count."""
    found = {name for name in CLASSES if len(public_methods(name)) > MOST_METHODS}
    assert found == set(LARGE_CLASSES)


def test_no_two_classes_have_one_name() -> None:
    assert {name for name, nodes in CLASSES.items() if len(nodes) > 1} == set(DEFINED_TWICE)


def test_methods_of_bases_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that inherits more than it may have is seen, though its own body is empty."""
    methods = "\n".join(f"    def m{i}(self): ..." for i in range(MOST_METHODS))
    tree = ast.parse(
        f"class _A:\n{methods}\n    @property\n    def p(self): ...\nclass _B(_A):\n    def n(self): ..."
    )
    for node in tree.body:
        assert isinstance(node, ast.ClassDef)
        monkeypatch.setitem(CLASSES, node.name, [node])
    assert len(public_methods("_A")) == MOST_METHODS
    assert len(public_methods("_B")) == MOST_METHODS + 1
