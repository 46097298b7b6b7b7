"""Warnings of the Python door: what the command line says as a note, pointing at the caller's own line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

from efface.errors import EffaceWarning


def warn(sentence: str) -> None:
    """An ``EffaceWarning`` at the line that called efface, however deep this is."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, EffaceWarning, stacklevel=level)


def warn_of(notes: Iterable[str]) -> None:
    """A warning each."""
    for note in notes:
        warn(note)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "efface"
