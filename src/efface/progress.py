"""Progress: the one callback by which work says how far it is.

Functions that take long accept a ``Progress``: how far (0 to 1) and what is going on. How it is shown is
none of their business; the command line draws it (``efface.commands.display``).
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]


def duration(seconds: float) -> str:
    """A time as people say it: 12 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def part(whole: Progress | None, start: float, stop: float, name: str = "") -> Progress:
    """A callback for one part of a longer task: its 0…1 is the whole's ``start``…``stop``.

    A part may count to 1 several times (activations, then a solve with restarts); the whole then
    waits instead of running backwards.
    """
    furthest = start

    def progress(fraction: float, message: str) -> None:
        nonlocal furthest
        furthest = max(furthest, start + (stop - start) * min(max(fraction, 0.0), 1.0))
        if whole is not None:
            whole(furthest, f"{name}: {message}" if name else message)

    return progress
