"""A long solve on its way, in a file: killed, it goes on where it was.

It holds numbers about every sample of the problem, so it is for experiments and not for a workspace; it is
deleted when the solve is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from efface import files
from efface.errors import FormatError

EVERY = 180.0  # seconds


class SolveState:
    """``path`` belongs to one problem and one way to solve it: whoever names it sees to that."""

    def __init__(self, path: Path, *, every: float = EVERY) -> None:
        self.path, self.every = path, every
        self._kept = time.monotonic()

    def read(self) -> dict[str, Tensor] | None:
        """What was kept last; None: nothing, or a file that is damaged."""
        if not self.path.is_file():
            return None
        try:
            return files.read_tensors(self.path)
        except FormatError:
            return None

    def keep(self, tensors: Callable[[], dict[str, Tensor]]) -> None:
        """Write ``tensors()`` if it is time for it; the old file stays until the new one is whole."""
        if time.monotonic() - self._kept >= self.every:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_tensors(self.path, tensors())
            self._kept = time.monotonic()

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
