"""Large matrix products of float32 by oneDNN, the library torch's convolutions use.

torch's matrix products go to MKL, which uses half of the vector width on processors of other makers than
Intel: there a 1 × 1 convolution, which is the same product, is twice as fast. Whatever oneDNN does not take
(float64, other devices, small products, a torch without it) is an ordinary product. The two differ by their
rounding; which is taken depends on types and shapes alone.
"""

from __future__ import annotations

import math
import threading
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

LARGE = 1 << 24  # multiplications from which a call's own cost is small


def times(x: Tensor, weight: Tensor) -> Tensor:
    """X Wᵀ, (…, k) and (o, k) -> (…, o)."""
    if not _suits(x, weight.shape[0]):
        return (x.reshape(-1, x.shape[-1]) @ weight.T).view(*x.shape[:-1], len(weight))
    y = F.conv2d(_places(x), weight[:, :, None, None])
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], len(weight))


def rows_product(dy: Tensor, x: Tensor) -> Tensor:
    """Σ over places of dy xᵀ, (…, o) and (…, k) -> (o, k)."""
    o, k = dy.shape[-1], x.shape[-1]
    if not _suits(x, o):
        return dy.reshape(-1, o).T @ x.reshape(-1, k)
    if k > o:  # oneDNN is faster when the wider of the two is what would be the output
        return rows_product(x, dy).T
    return conv2d_weight(_places(x), (o, k, 1, 1), _places(dy)).view(o, k)


def _places(x: Tensor) -> Tensor:
    """(…, k) as one image of k channels, channels last."""
    return x.reshape(1, 1, -1, x.shape[-1]).permute(0, 3, 1, 2)


def _suits(x: Tensor, o: int) -> bool:
    kind = x.dtype == torch.float32 and x.device.type == "cpu"
    return kind and x.numel() * o >= LARGE and torch.backends.mkldnn.is_available()


class Room:
    """Memory that is used again. What the system hands out anew it clears first, page by page: for results of
    tens of megabytes that takes longer than to write them. Whoever gets some may keep it until the next call
    by the same name; each thread has its own. What is in it may be of somebody: see ``let_go``."""

    def __init__(self) -> None:
        self._mine = threading.local()
        _ROOMS.add(self)

    def __len__(self) -> int:
        """Numbers that this thread has there."""
        return sum(kept.numel() for kept in self._mine.__dict__.values())

    def let_go(self) -> None:
        self._mine.__dict__.clear()

    def __call__(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """Numbers of ``like``'s kind, in any state."""
        kept: dict[str, Tensor] = self._mine.__dict__
        size, found = math.prod(shape), kept.get(name)
        kind = (like.dtype, like.device)
        if found is None or found.numel() < size or (found.dtype, found.device) != kind:
            found = kept[name] = like.new_empty(size)
        return found[:size].view(shape)


_ROOMS: WeakSet[Room] = WeakSet()


def let_go() -> None:
    """What products of this thread left in memory is gone (other threads of ours end with their work)."""
    for room in list(_ROOMS):
        room.let_go()
