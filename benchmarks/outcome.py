"""What a benchmark found, in the one form that all of them write and ``run.py`` draws.

``ours`` and ``peers`` are seconds (or another ``unit``) by what was run, all in one process turn by turn;
``ratios`` are peers over ours, so that above 1 ours is faster; ``limit`` is what this machine could do at
best, measured in the same run, and which fraction of it was reached; ``guards`` are ratios with the least
that is accepted (``run.py --check``): always ratios, never seconds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCHEMA = "efface.benchmark/1"
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "curvlinops-for-pytorch")


@dataclass(frozen=True)
class Outcome:
    """One benchmark. ``series``: the same by a growing ``x``, for a plot; ``details``: what else it saw."""

    name: str
    question: str
    setting: Mapping[str, Any]
    ours: Mapping[str, float]
    peers: Mapping[str, float] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)
    limit: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "seconds"
    notes: Sequence[str] = ()
    guards: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Any] = field(default_factory=dict)
    details: Any = None

    def write(self, out: Path | None) -> None:
        """As JSON on stdout, and in a file where one is named."""
        values = {"schema": SCHEMA, **asdict(self), "environment": environment()}
        text = json.dumps(rounded(values), indent=1, ensure_ascii=False)
        print(text)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text + "\n", encoding="utf-8")


def wrong_form(values: Any) -> list[str]:
    """What keeps a file from being an outcome, in words; ``environment`` is null where it is not known."""
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        return [f"its schema is not {SCHEMA}"]
    names = {one.name for one in fields(Outcome)} | {"schema", "environment"}
    found = [f"no {name}" for name in sorted(names - set(values))]
    found += [f"{name} is no part of it" for name in sorted(set(values) - names)]
    for name in ("ours", "peers", "ratios"):
        numbers = values.get(name)
        if not isinstance(numbers, dict) or not all(map(_is_number, numbers.values())):
            found.append(f"{name} are not numbers by name")
    if not values.get("ours"):
        found.append("nothing of ours was measured")
    limit = values.get("limit")
    if limit and not {"what", "fraction_reached"} <= set(limit):
        found.append("the limit does not say what it is, and how much of it was reached")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def missed(values: Mapping[str, Any]) -> list[str]:
    """The guards of a benchmark, as its file has it, that do not hold."""
    ratios = values["ratios"]
    return [
        f"{values['name']}: {name} is {ratios.get(name)}, not {least} or more"
        for name, least in values["guards"].items()
        if not ratios.get(name, 0) >= least
    ]


def rounded(value: Any) -> Any:
    """To five digits: more are noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value


def environment() -> dict[str, Any]:
    """Machine, libraries, threads, and how busy it was."""
    import torch

    libraries: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = None
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "python": platform.python_version(),
        **libraries,
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "load": load,
        "busy": load is not None and load > (os.cpu_count() or 1) + 0.5,
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return clock() - start


def turns(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each way, turn by turn: a machine that slows down slows all of them."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + warm):
        for name, way in ways.items():
            taken = seconds(way, clock)
            if turn or not warm:
                found[name].append(taken)
    return found


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in found.items()}


def over(times: Mapping[str, float], ours: str) -> dict[str, float]:
    """All others over ours: above 1, ours is faster."""
    return {f"{name} / ours": t / times[ours] for name, t in times.items() if name != ours}
