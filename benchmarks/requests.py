"""Time and memory of one compact request of 10 samples, as the number of retained samples grows.

    python benchmarks/requests.py --features 4096 --classes 40

The rows are synthetic integers (the cost does not depend on what they say). Beside the request, in the same
run: retraining from cached rows, our own fastest way to start over (sum all rows again, then solve). Peak
memory is this process's own high-water mark over the request, against the size of G and of the rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from efface.compact.ridge import solve
from efface.compact.statistics import Statistics


def synthetic(n: int, k: int, c: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    rows = generator.integers(-127, 128, (n, k), dtype=np.int8)
    targets = generator.integers(-4000, 4000, (n, c)).astype(np.int16)
    return rows, targets


def fit(n: int, k: int, c: int) -> tuple[Statistics, float]:
    """Statistics of ``n`` rows made in chunks (so that n = 10⁵ fits), and the seconds of summing."""
    statistics, seconds = Statistics(k, c), 0.0
    for start in range(0, n, 4096):
        rows, targets = synthetic(min(4096, n - start), k, c, seed=start)
        seconds += _time(lambda r=rows, t=targets: statistics.add(r, t))  # type: ignore[misc]
    return statistics, seconds


def measure(n: int, k: int, c: int, rounds: int) -> dict[str, Any]:
    statistics, summing = fit(n, k, c)
    rows, targets = synthetic(min(4096, n), k, c, seed=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times, removing = [], []
    for i in range(rounds):
        part = slice(10 * i, 10 * (i + 1))

        def request(part: slice = part) -> None:
            removing.append(_time(lambda: statistics.remove(rows[part], targets[part])))
            solve(statistics, 1e-3, scale=2.0**-6, target_scale=2.0**-10).checked()

        times.append(_time(request))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = min(times)
    gram = 8 * k * k
    return {
        "n": n,
        "request_seconds": round(best, 4),
        "removing_seconds": round(min(removing), 4),
        "retrain_from_rows_seconds": round(summing + best - min(removing), 4),
        "faster_than_retraining": round((summing + best - min(removing)) / best, 2),
        "extra_memory_over_gram": round(max(0, peak - before) * 1024 / gram, 2),
    }


def _time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--features", type=int, default=4096)
    options.add_argument("--classes", type=int, default=40)
    options.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--out", type=Path)
    args = options.parse_args()
    measure(1000, 512, args.classes, 1)  # warm up
    runs = [measure(n, args.features, args.classes, args.rounds) for n in args.sizes]
    times = [r["request_seconds"] for r in runs]
    result = {
        "features": args.features,
        "classes": args.classes,
        "threads": torch.get_num_threads(),
        "runs": runs,
        "slowest_over_fastest": round(max(times) / min(times), 2),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
