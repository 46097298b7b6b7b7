"""Names of devices, without torch: ``auto``, ``cuda``, ``mps``, ``cpu``, or one of several by number."""

from __future__ import annotations

import re

KNOWN = "auto, cuda, mps or cpu; of several cards one by its number, cuda:1"
# cpu:0 is the CPU taken for another device: modules and tensors are moved as to a card.
NAME = re.compile(r"auto|cpu(:0)?|mps(:0)?|cuda(:\d{1,3})?")


def check_device_name(name: str) -> str:
    """The name as it is; ValueError for what is no name of a device, here or anywhere."""
    if NAME.fullmatch(name) is None:
        raise ValueError(f"should be {KNOWN}")
    return name
