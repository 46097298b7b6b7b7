"""Time to add, remove and solve compact statistics, against the machine's own matrix product.

    python benchmarks/compact_statistics.py --sizes 1024 4096 8192 --out statistics.json

For each k: adding 1,024 rows, removing 10 rows, the digest and the solve, each the best of a few
runs. ``ratio_to_float64_peak`` is the rate of the multiply-adds that the task needs (one triangle
of G for an update, k³/3 for the factorisation) over that of a plain float64 product measured in the
same run; updates with 8-bit rows may pass 1. Removals are bound by memory: see their GB/s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from limits import Limits
from outcome import Outcome, seconds, turns

from efface.parts.compact.exact import int8_kernel_is_exact, pick_kernel
from efface.parts.compact.ridge import solve
from efface.parts.compact.statistics import Statistics

TASKS = ("add_1024_rows", "remove_10_rows", "digest", "solve")


def best_seconds(task: Callable[[], object], repeats: int) -> float:
    """The least of ``repeats`` runs, after one to warm up."""
    return min(turns({"task": task}, repeats)["task"])


def alternating(
    statistics: Statistics, rows: np.ndarray, targets: np.ndarray
) -> tuple[float, float]:
    """Seconds to remove the rows, and to add them again."""
    start = time.perf_counter()
    statistics.remove(rows, targets)
    middle = time.perf_counter()
    statistics.add(rows, targets)
    return middle - start, time.perf_counter() - middle


def measure(k: int, c: int, bits: int, repeats: int, peak: float) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    top = 2 ** (bits - 1) - 1
    rows = rng.integers(-top, top, (1024, k), endpoint=True, dtype=np.int16)
    rows = rows.astype(np.int8) if bits <= 8 else rows
    targets = rng.integers(-999, 999, (1024, c), dtype=np.int16)
    statistics = Statistics(k, c, bits=bits)
    statistics.add(rows, targets)
    add = min(alternating(statistics, rows, targets)[1] for _ in range(repeats))
    remove = min(alternating(statistics, rows[:10], targets[:10])[0] for _ in range(repeats))
    digest = min(seconds(statistics.copy().digest) for _ in range(repeats))  # then it is kept
    solving = best_seconds(lambda: solve(statistics, 0.1, scale=2.0**-7), max(1, repeats // 2))
    return {
        "k": k,
        "c": c,
        "bits": bits,
        "kernel": pick_kernel(bits, 1024).value,
        "add_1024_rows_seconds": add,
        "add_ratio_to_float64_peak": 1024 * k * (k + 2 * c) / add / peak,
        "remove_10_rows_seconds": remove,
        "remove_10_rows_gigabytes_per_second": 8
        * k
        * k
        / remove
        / 1e9,  # a triangle, read, written
        "digest_seconds": digest,
        "solve_seconds": solving,
        "solve_ratio_to_float64_peak": (k**3 / 3 + 6 * k * k * c) / solving / peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1024, 4096, 8192], help="values of k"
    )
    parser.add_argument("--outputs", type=int, default=100, help="number of outputs c")
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the JSON here instead of printing it")
    args = parser.parse_args()
    limits = Limits.measured()
    found = [
        measure(k, args.outputs, bits, args.repeats, limits.float64)
        for k in args.sizes
        for bits in args.bits
    ]
    last = found[-len(args.bits)]
    k = int(last["k"])
    product = 1024 * k * (k + 2 * args.outputs) / limits.float64
    Outcome(
        name="statistics",
        question="How fast are exact sums made, changed, hashed and solved, beside plain products?",
        setting={"features": k, "outputs": args.outputs, "bits": last["bits"], "rows": 1024},
        ours={name: last[f"{name}_seconds"] for name in TASKS},
        peers={"the sums of 1,024 rows as one float64 product": product},
        ratios={
            "float64 product / adding 1,024 rows": last["add_ratio_to_float64_peak"],
            "float64 factor at peak / solving": last["solve_ratio_to_float64_peak"],
            "memory's speed reached by removing 10 rows": last[
                "remove_10_rows_gigabytes_per_second"
            ]
            * 1e9
            / limits.memory,
        },
        limit={
            "what": "float64 products, of which exact sums are made; above 1 with 8-bit kernels",
            "seconds": product,
            "fraction_reached": last["add_ratio_to_float64_peak"],
            "float64_gflops": limits.float64 / 1e9,
            "float32_gflops": limits.float32 / 1e9,
            "memory_gb_per_second": limits.memory / 1e9,
        },
        details={"int8_kernel_is_exact": int8_kernel_is_exact(), "results": found},
    ).write(args.out)


if __name__ == "__main__":
    main()
