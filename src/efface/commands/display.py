"""Progress on a terminal, in a log, or as JSON lines, as the place it is shown in asks for.

``show`` gives a task its ``Progress`` callback: one that draws a bar, writes JSON lines for programs, or
leaves lines in a log: one when a task is done, and while it runs one every half minute. Everything goes to
stderr: stdout belongs to the result.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from efface.progress import Progress, duration

JSON_INTERVAL = 0.5  # seconds between two JSON lines of one task
LOG_INTERVAL = 30.0  # seconds between two lines of one task in a log


class Mode(StrEnum):
    BAR = "bar"
    JSON = "json"
    LOG = "log"
    SILENT = "silent"


def mode_for(*, as_json: bool) -> Mode:
    """A bar if a person watches stderr; else JSON lines for a program, a few lines for a log."""
    if sys.stderr.isatty():
        return Mode.BAR
    return Mode.JSON if as_json else Mode.LOG


@contextmanager
def show(task: str, mode: Mode) -> Iterator[Progress]:
    """Show the progress of ``task`` while the block runs.

    >>> with show("core", Mode.SILENT) as progress:
    ...     progress(0.5, "epoch 20/40")
    """
    displays = {Mode.BAR: _bar, Mode.JSON: _json_lines, Mode.LOG: _log, Mode.SILENT: _silent}
    with displays[mode](task) as progress:
        yield progress


@contextmanager
def _silent(task: str) -> Iterator[Progress]:
    yield lambda fraction, message: None


@contextmanager
def _bar(task: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.fields[title]:<14}", style="bold"),
        BarColumn(bar_width=32),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", style="dim", markup=False),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        handle = bars.add_task("", total=1.0, title=task)
        yield lambda fraction, message: bars.update(handle, completed=fraction, description=message)
        bars.update(handle, completed=1.0)


@contextmanager
def _json_lines(task: str) -> Iterator[Progress]:
    begin, last = time.monotonic(), float("-inf")

    def progress(fraction: float, message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < JSON_INTERVAL and fraction < 1:
            return
        last = now
        line = {"task": task, "progress": round(fraction, 4), "message": message}
        if fraction > 0:
            line["seconds_left"] = round(_left(now - begin, fraction), 1)
        print(json.dumps(line), file=sys.stderr, flush=True)

    yield progress


def _left(seconds: float, fraction: float) -> float:
    """If it goes on as it went so far."""
    return seconds * (1 - min(fraction, 1.0)) / fraction


@contextmanager
def _log(task: str) -> Iterator[Progress]:
    begin, latest = time.monotonic(), ""
    last = begin

    def progress(fraction: float, message: str) -> None:
        nonlocal latest, last
        latest, now = message, time.monotonic()
        if now - last < LOG_INTERVAL or fraction >= 1:
            return
        last = now
        left = f", about {duration(_left(now - begin, fraction))} left" if fraction > 0 else ""
        text = f"{task}: {fraction:.0%} after {duration(now - begin)}{left}"
        print(f"{text} ({message})" if message else text, file=sys.stderr, flush=True)

    yield progress
    text = f"{task}: {time.monotonic() - begin:.1f} s"
    print(f"{text} ({latest})" if latest else text, file=sys.stderr, flush=True)
