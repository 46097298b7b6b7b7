"""The devices that tests run on: each that torch finds here, and the CPU taken for another device.

On ``cpu:0`` modules and tensors are moved as to a card, and convolutions are products of matrices.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from efface.arithmetic.integer.graph import IntegerGraph
from efface.network.device import CPU, TWIN, Placement, found_devices

DEVICES = [TWIN, *(device for device in found_devices() if device != CPU)]
every_device = pytest.mark.parametrize("device", DEVICES, ids=str)


def watched(monkeypatch: pytest.MonkeyPatch) -> set[torch.device]:
    """Where networks of integers run, and modules are taken to, from now on."""
    seen: set[torch.device] = set()
    run, of = IntegerGraph.__call__, Placement.of

    def running(self: IntegerGraph, *given: Any, **named: Any) -> Any:
        seen.add(self.device)
        return run(self, *given, **named)

    def taking(self: Placement, module: nn.Module) -> nn.Module:
        seen.add(self.device)
        return of(self, module)

    monkeypatch.setattr(IntegerGraph, "__call__", running)
    monkeypatch.setattr(Placement, "of", taking)
    return seen
