"""What `compact_requests.py` and `workspace.py` share: the sizes to measure at, and what comes of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limits import Limits
from outcome import Outcome

AGAIN = "retrain_from_rows_seconds"


def options(about: str, rounds: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--features", type=int, default=4096)
    made.add_argument("--classes", type=int, default=40)
    made.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--out", type=Path)
    return made


def report(
    args: argparse.Namespace,
    runs: Sequence[dict[str, Any]],
    others: Sequence[dict[str, Any]] = (),
    *,
    name: str = "requests",
    question: str = "How does a request of ten records grow with the number of those that stay?",
) -> None:
    """Print the runs and how flat they are, ``others`` aside; and write it where that is asked for."""
    k, c, limits = args.features, args.classes, Limits.measured()
    times = {run["n"]: run["request_seconds"] for run in runs}
    again = {run["n"]: run[AGAIN] for run in runs if AGAIN in run}
    bound, last = limits.request_seconds(k, c), max(times)
    ratios = {
        f"retraining from cached rows / ours, n = {n}": t / times[n] for n, t in again.items()
    }
    lines = {"a request": list(times.values())}
    if again:
        lines["retraining from cached rows"] = list(again.values())
    Outcome(
        name=name,
        question=question,
        setting={"features": k, "classes": c, "deleted": 10, "rounds": args.rounds},
        ours={f"n = {n}": t for n, t in times.items()},
        peers={f"retraining from cached rows, n = {n}": t for n, t in again.items()},
        ratios={**ratios, "slowest / fastest n": max(times.values()) / min(times.values())},
        limit={
            "what": "a new float32 factor at the speed of a product, sums read and written once",
            "seconds": bound,
            "fraction_reached": bound / times[last],
        },
        guards={list(ratios)[-1]: 1.0} if ratios else {},
        series={"x": "records that stay", "y": "seconds", "at": list(times), "lines": lines},
        details={"runs": [*runs, *others]},
    ).write(args.out)
