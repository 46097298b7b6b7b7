"""A check: something that a certificate, a workspace or a receipt claims, and whether it is so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """``ok`` is None for what cannot be checked (any more): it neither holds nor fails."""

    name: str
    ok: bool | None
    detail: str
