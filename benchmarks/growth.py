"""What `compact_requests.py` and `workspace.py` share: the sizes to measure at, and their JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch


def options(about: str, rounds: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--features", type=int, default=4096)
    made.add_argument("--classes", type=int, default=40)
    made.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--out", type=Path)
    return made


def report(args: argparse.Namespace, runs: list[dict[str, Any]], others: Any = ()) -> None:
    """Print the runs and how flat they are, ``others`` aside; and write it where that is asked for."""
    times = [run["request_seconds"] for run in runs]
    result = {
        "features": args.features,
        "classes": args.classes,
        "threads": torch.get_num_threads(),
        "runs": [*runs, *others],
        "slowest_over_fastest": round(max(times) / min(times), 2),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
