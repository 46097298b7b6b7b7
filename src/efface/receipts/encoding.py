"""JSON in one spelling, and base64 in one: what is signed can be written in one way only."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

LARGEST = 1 << 24  # bytes


def canonical(values: Mapping[str, Any]) -> bytes:
    """Sorted keys, no spaces, ASCII, no NaN."""
    text = json.dumps(dict(values), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def read(data: bytes) -> dict[str, Any]:
    """What :func:`canonical` wrote, and a line break perhaps; ValueError for any other spelling."""
    if len(data) > LARGEST:
        raise ValueError("it is too long")
    try:
        values = json.loads(data)
        same = isinstance(values, dict) and canonical(values) == data.removesuffix(b"\n")
    except (RecursionError, UnicodeError) as problem:
        raise ValueError("it cannot be read") from problem
    if not same:
        raise ValueError("it is not spelt as efface writes it")
    found: dict[str, Any] = values
    return found


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def from_base64(text: Any) -> bytes:
    """ValueError for anything that :func:`to_base64` would not write."""
    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, binascii.Error) as problem:
        raise ValueError("it is not base64") from problem
    if to_base64(data) != text:
        raise ValueError("it is not base64 as it is written")
    return data
