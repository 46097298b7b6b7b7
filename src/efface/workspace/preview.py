"""What a request would do, before it is one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preview:
    """What a request would do."""

    num_forgotten: int
    num_retained: int
    ids: tuple[str, ...]
    num_in_core: int = 0
    num_people: int = 0
    notes: tuple[str, ...] = ()
