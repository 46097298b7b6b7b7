"""Training in shards: rows and sums of some records made apart from the model, and put together.

The compact part's training is one map (image → row) and one sum of integers, and the sum is exact: it does
not matter who computes which part of it, when, or in which order. ``Shard`` says which records are meant,
``Partial`` is the folder that comes out, ``combine`` puts folders together, and an ``Engine`` runs the jobs:
in this process, in several, or on a Ray cluster. A ``Partner`` is somebody who keeps rows and sends a
``Share``, sums alone; ``take`` takes one in.
"""

from __future__ import annotations

from efface.shards.combining import Gathering, combine
from efface.shards.engine import Engine
from efface.shards.engines import engine_named
from efface.shards.hosting import drop, invite, take
from efface.shards.partial import Partial
from efface.shards.partner import Partner
from efface.shards.shard import Shard
from efface.shards.share import Share

__all__ = [
    "Engine",
    "Gathering",
    "Partial",
    "Partner",
    "Shard",
    "Share",
    "combine",
    "drop",
    "engine_named",
    "invite",
    "take",
]
