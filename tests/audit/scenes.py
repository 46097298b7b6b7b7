"""Small scenes on digits, built once a session; tests must not change them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from efface.audit.attacks import Worlds, build_worlds
from efface.audit.scene import Scene
from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.training import Stage

FORGET = np.arange(0, 300, 10)


@cache
def records() -> Records:
    """A part of digits: 300 user records, 180 core, 120 test."""
    data = Records.digits()
    parts = [data.core[:180], data.user[:300], data.test[:120]]
    return Records([record for part in parts for record in part], data.classes)


@cache
def core() -> Core:
    data = records()
    return Core("cnn", classes=data.classes).fit(data.core, [Stage("all", epochs=10, lr=0.1)])


@cache
def model(kind: str = "compact") -> MixedLinear:
    options = {"compact": {"features": 300, "total_ridge": 0.1}, "tangent": {"mu": 0.3}}[kind]
    return MixedLinear(core(), kind, **options).fit(records().user, replay=records().core)


@cache
def scene(kind: str = "compact") -> Scene:
    torch.set_num_threads(1)
    return Scene.of(model(kind), FORGET, records().test)


@cache
def shadow() -> Worlds:
    return build_worlds(scene(), 40, 30, seed=3)


@cache
def canaries() -> Worlds:
    return build_worlds(scene(), 1, 150, seed=4, mislabelled=True, base_share=1.0)
