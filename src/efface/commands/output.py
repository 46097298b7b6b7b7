"""What the commands share: options, and how results reach a person or a program."""

from __future__ import annotations

import json
import sys
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
ModelPath = Annotated[Path, typer.Argument(help="A folder written by `efface train`.")]


def finish(values: Mapping[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """End a command: ``values`` as one line of JSON, or drawn by ``render``."""
    if as_json:
        print(json.dumps(values, ensure_ascii=False), flush=True)
        return
    from rich.console import Console

    render(Console(highlight=False))


def warn(message: str) -> None:
    """One line on stderr; stdout stays the result's."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("note:", message, style="yellow", markup=False)


def fail(message: str, fix: str) -> None:
    """``error: … Fix: …`` in red, on one line of stderr."""
    from rich.console import Console

    text = " ".join(f"error: {message} Fix: {fix}".split() if fix else f"error: {message}".split())
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
