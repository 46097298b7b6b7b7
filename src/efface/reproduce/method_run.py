"""What a forgetting method left after all requests: the figures read it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Run:
    """A method after all requests: ``state`` is before noise, ``steps`` has one entry per request.

    ``bound`` ≥ ‖state − w*_r‖ is proved.
    """

    state: Tensor
    release: Tensor
    steps: tuple[dict[str, float], ...]
    bound: float
