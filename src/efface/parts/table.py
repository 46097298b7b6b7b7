"""The user parts by name: the one place that knows which there are.

Each is loaded when it is asked for: a part that only forgets needs no network, and so no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from efface.errors import EffaceError

if TYPE_CHECKING:
    from efface.network.device import Placement
    from efface.parts.part import Forgetter, UserPart
    from efface.parts.view import LinearView

PARTS = {
    "compact": "efface.parts.compact.user:CompactUser",
    "tangent": "efface.parts.tangent.user:TangentUser",
}
# Parts whose requests need their files alone; all others load the whole model.
STORED = {"compact": "efface.parts.compact.stored_sums:StoredSums"}
VIEWS = {
    "compact": "efface.parts.compact.view:CompactView",
    "tangent": "efface.parts.tangent.view:TangentView",
}


def part_named(kind: str) -> type[UserPart]:
    part: type[UserPart] = _load(PARTS, kind)
    return part


def stored_part(kind: str) -> type[Any] | None:
    """The part as its files have it: it forgets without a network. None where that cannot be."""
    return _load(STORED, kind) if kind in STORED else None


def forgetter_named(kind: str) -> type[Forgetter]:
    """What can be asked about a part's requests before one is made."""
    return stored_part(kind) or part_named(kind)


def place_for(kind: str, device: str) -> Placement:
    """Where a core under such a part is computed: the device of this name, if the part can use it."""
    from efface.network.device import Placement, device_named

    return Placement(device_named(device, float64=part_named(kind).float64))


def view_of(part: UserPart) -> LinearView[Any]:
    """The part as a linear problem."""
    view: LinearView[Any] = _load(VIEWS, part.kind)(part)
    return view


def _load(table: dict[str, str], kind: str) -> Any:
    if kind not in table:
        raise EffaceError(f"unknown user part {kind!r}.", f"use one of {', '.join(sorted(PARTS))}.")
    module, _, name = table[kind].partition(":")
    return getattr(import_module(module), name)
