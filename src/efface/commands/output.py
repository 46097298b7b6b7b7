"""What the commands share: options, and how results reach a person or a program."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")
]
TRUST = "Run this code, module.path:callable, to build the network of a model made with torch:…"
TrustModule = Annotated[str | None, typer.Option(help=TRUST)]
DeviceName = Annotated[
    str, typer.Option("--device", help="Where the network is computed: auto, cuda, mps or cpu.")
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Who computes the rows: here, processes:4, ray or ray://HOST:PORT. Default: here.",
    ),
]
ShardCount = Annotated[
    int | None,
    typer.Option("--shards", min=1, help="How many, with --engine. Default: 4 a worker."),
]
AbsolutePaths = Annotated[
    bool,
    typer.Option(
        "--absolute-paths", help="Let a list name files anywhere, by their absolute paths."
    ),
]
ModelPath = Annotated[Path, typer.Argument(help="A folder written by `efface train`.")]


def finish(values: Mapping[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """End a command: ``values`` as one line of JSON, or drawn by ``render``."""
    if as_json:
        print(_json_line(values), flush=True)
        return
    from rich.console import Console

    render(Console(highlight=False))


def _json_line(values: Mapping[str, Any]) -> str:
    """As people read it, unless something in it is not Unicode (a file's name): then all is escaped."""
    text = json.dumps(values, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(values)
    return text


def plain(text: object) -> str:
    """Text from elsewhere (names, paths, messages) without anything that a terminal would act upon."""
    return "".join(
        f"\\x{ord(c):02x}"
        if unicodedata.category(c) in ("Cc", "Cs", "Cf") and c not in "\n\t\u200d\u200c\u00ad"
        else c
        for c in str(text)
    )


def cell(text: object) -> str:
    """The same for a table's cell: markup in it is shown, not followed."""
    from rich.markup import escape

    return escape(plain(text).replace("\n", " "))


def warn(message: str) -> None:
    """One line on stderr; stdout stays the result's."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("note:", plain(message), style="yellow", markup=False)


def fail(
    message: str,
    fix: str,
    *,
    exit_code: int = 2,
    as_json: bool = False,
    details: Mapping[str, Any] | None = None,
) -> None:
    """``error: … Fix: …`` in red, on one line of stderr; as JSON, one object on stdout."""
    from rich.console import Console

    if as_json:
        values = {"error": message, "fix": fix, "exit_code": exit_code, **(details or {})}
        print(json.dumps(values), flush=True)
    text = f"error: {message} Fix: {fix}" if fix else f"error: {message}"
    text = " ".join(plain(text).split())
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(text, style="bold red", markup=False)
    sys.stderr.flush()


def table(*columns: str, title: str | None = None, right: tuple[int, ...] = ()) -> Table:
    """A plain table; the columns numbered in ``right`` hold numbers."""
    from rich import box
    from rich.table import Table

    result = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for i, name in enumerate(columns):
        result.add_column(name, justify="right" if i in right else "left")
    return result


def percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f} %"
