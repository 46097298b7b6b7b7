"""How a training is run: what is none of the model's settings, and changes none of its bits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class How:
    """``overwrite`` replaces a workspace that is there; ``allow_reingest`` takes what was forgotten in it.

    ``core_only`` leaves the user records out. ``engine`` computes rows in ``shards`` (by default some per
    worker); ``trusted`` is code that the caller named for its workers.
    """

    overwrite: bool = False
    allow_reingest: bool = False
    core_only: bool = False
    engine: str | None = None
    shards: int | None = None
    trusted: str | None = None
