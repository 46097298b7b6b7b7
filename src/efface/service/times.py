"""Times as other programs write them."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """``2026-11-16T21:40:00Z``."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    """Of a date string as RFC 3339 has it, with a zone; ValueError otherwise."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None or "T" not in text.upper():
        raise ValueError("a time has a date, a T and a zone")
    return found.timestamp()
