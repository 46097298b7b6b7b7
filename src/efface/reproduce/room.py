"""How much memory prepared samples may take where nobody says."""

from __future__ import annotations

from pathlib import Path

SHARE = 0.6  # of what is free: activations, factors and the system need the rest
FALLBACK = 6 << 30


def room(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes: a share of the memory that is free, where the system tells (Linux), else 6 GiB."""
    try:
        lines = meminfo.read_text(encoding="utf-8").splitlines()
        free = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(SHARE * 1024 * int(free))
    except (OSError, StopIteration, IndexError, ValueError):
        return FALLBACK
