"""Devices: where networks are computed. Files, calibration, sums and solves are the CPU's whatever is chosen.

Integers below 2^24 add up exactly in float32 on every device, if products are made in float32: so the ways in
which graphics cards save bits (TF32, short accumulators) are switched off here.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from efface.device_names import KNOWN, NAME
from efface.errors import EffaceError

CPU = torch.device("cpu")
TWIN = torch.device("cpu", 0)  # the CPU taken for another device


class Placement:
    """Where a core computes: the device, and copies of its modules there, made when they are needed."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self._copies: dict[int, tuple[nn.Module, nn.Module]] = {}

    def of(self, module: nn.Module) -> nn.Module:
        """The module itself on the CPU, elsewhere its copy."""
        if self.device == CPU:
            return module
        if id(module) not in self._copies:
            self._copies[id(module)] = (module, copy.deepcopy(module).to(self.device))
        return self._copies[id(module)][1]

    def drop(self) -> None:
        """The weights have moved: copies are made anew."""
        self._copies = {}


def found_devices() -> list[torch.device]:
    """Those that this machine has, the fastest first; the CPU is always there."""
    found = []
    if torch.cuda.is_available():
        found.append(torch.device("cuda", 0))
    if torch.backends.mps.is_available():
        found.append(torch.device("mps", 0))
    return [*found, CPU]


def device_named(name: str | torch.device, *, float64: bool = False) -> torch.device:
    """The device of this name (see ``device_names``); one that is not there is an error.

    ``auto`` is the fastest that is there, and that has float64 where that is needed.
    """
    if not isinstance(name, str | torch.device) or NAME.fullmatch(str(name)) is None:
        raise EffaceError(f"there is no device {name!r}.", f"use {KNOWN}.")
    name, found = str(name), found_devices()
    if name == "auto":
        chosen = next(d for d in found if not (float64 and d.type == "mps"))
    elif name == "cpu:0":
        return TWIN
    else:
        chosen = _numbered(name, found)
    full_precision(chosen)
    return chosen


def _numbered(name: str, found: list[torch.device]) -> torch.device:
    kind, _, number = name.partition(":")
    chosen = next((d for d in found if d.type == kind), None)
    fix = 'use --device cpu (in Python: device="cpu").'
    if chosen is None:
        have = ", ".join(device.type for device in found)
        raise EffaceError(f"torch finds no {kind} here, only {have}.", fix)
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise EffaceError(f"there is no {name}: {count} of them are here, from cuda:0.", fix)
    return torch.device(kind, int(number)) if number else chosen


def full_precision(device: torch.device) -> None:
    """From now on float32 products on this device are made and added up in float32."""
    if device.type != "cuda":
        return
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False
