"""Where everything lies in a workspace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STAGING, ROWS = "staging", "rows"  # folders in private/, beside that of the release
BASE_MODEL = "base_model"  # in core/k/model.json, of a network that came from a hub
PARTNERS = "partners.json"  # a file there


@dataclass(frozen=True)
class Paths:
    """The folders and files below ``root``; ``number`` is that of a release, or of a core."""

    root: Path

    def core(self, number: int) -> Path:
        return self.root / "core" / str(number)

    def release(self, number: int) -> Path:
        return self.root / "releases" / str(number)

    def private(self, number: int) -> Path:
        return self.root / "private" / str(number)

    @property
    def staging(self) -> Path:
        """Records that are to be added, until they are."""
        return self.root / "private" / STAGING

    @property
    def buckets(self) -> Path:
        """The rows: releases share the files that do not change."""
        return self.root / "private" / ROWS

    @property
    def warm(self) -> Path:
        """There where a factor is kept from one request to the next."""
        return self.root / "private" / "warm.json"

    @property
    def certificates(self) -> Path:
        return self.root / "certificates"

    @property
    def activations(self) -> Path:
        return self.root / "activations"

    @property
    def lock(self) -> Path:
        return self.root / "lock"
