"""The user parts by name: the one place that knows which there are."""

from __future__ import annotations

from typing import Any

from efface.errors import EffaceError
from efface.parts.compact.user import CompactUser
from efface.parts.compact.view import CompactView
from efface.parts.part import UserPart
from efface.parts.tangent.user import TangentUser
from efface.parts.tangent.view import TangentView
from efface.parts.view import LinearView

PARTS: dict[str, type[UserPart]] = {part.kind: part for part in (CompactUser, TangentUser)}
VIEWS: dict[str, type[LinearView[Any]]] = {
    CompactUser.kind: CompactView,
    TangentUser.kind: TangentView,
}


def part_named(kind: str) -> type[UserPart]:
    if kind not in PARTS:
        raise EffaceError(f"unknown user part {kind!r}.", f"use one of {', '.join(sorted(PARTS))}.")
    return PARTS[kind]


def view_of(part: UserPart) -> LinearView[Any]:
    """The part as a linear problem."""
    return VIEWS[part.kind](part)
