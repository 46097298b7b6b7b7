"""Time and memory of one compact request of 10 samples, as the number of retained samples grows.

    python benchmarks/compact_requests.py --features 4096 --classes 40

The rows are synthetic integers (the cost does not depend on what they say). Beside the request, in the same
run: retraining from cached rows, our own fastest way to start over (sum all rows again, then solve). Memory
is what this process holds at most during a request, against a full G of 8 k² bytes: the sums as stored (over
half of G), the rows as they would be kept, and what the request needs besides. The last run has so
small a μ that the solve falls back to a float64 factor.

`kept_factor_seconds` is the same request where a factor of the sums is kept (`efface warm`), to the part as
it is loaded from a workspace: from the subtraction to proved weights and the digest, best and slowest of the
rounds. Making the next factor comes after that: `new_factor_seconds`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import growth
import numpy as np
from outcome import seconds

from efface.parts.compact.kept_factor import KeptFactor
from efface.parts.compact.quantiser import Quantiser
from efface.parts.compact.ridge import factor_of, solve
from efface.parts.compact.row_way import RowWay
from efface.parts.compact.rows import Rows
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.stored_sums import StoredSums
from efface.parts.compact.workers import working

SCALES = (2.0**-6, 2.0**-10)  # of features and targets


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
        seconds += _time(partial(statistics.add, rows, targets))
    return statistics, seconds


def measure(n: int, k: int, c: int, rounds: int, mu: float = 1e-3) -> dict[str, Any]:
    statistics, summing = fit(n, k, c)
    rows, targets = synthetic(min(4096, n), k, c, seed=0)
    times, removing, extra = [], [], []
    for i in range(rounds):
        part = slice(10 * i, 10 * (i + 1))

        def request(part: slice = part) -> None:
            removing.append(_time(lambda: statistics.remove(rows[part], targets[part])))
            with ThreadPoolExecutor(1) as beside:  # as CompactUser.remove does
                beside.submit(statistics.digest)
                way = _way_from_rows(statistics, rows[part.stop :], targets[part.stop :], mu)
                solve(statistics, mu, scale=SCALES[0], target_scale=SCALES[1], near=way).checked()

        before = _restart_peak()
        times.append(_time(request))
        extra.append(_status("VmHWM") - before)
    best = min(times)
    kept, making = with_kept_factors(statistics, rows[::-1], targets[::-1], rounds, mu * n)
    gram, held = 8 * k * k, n * (rows[:1].nbytes + targets[:1].nbytes)
    stored = sum(strip.nbytes for _, _, strip in statistics.strips()) + statistics.cross().nbytes
    return {
        "n": n,
        "mu": mu,
        "request_seconds": round(best, 4),
        "removing_seconds": round(min(removing), 4),
        "kept_factor_seconds": round(min(kept), 4),
        "kept_factor_slowest_seconds": round(max(kept), 4),
        "new_factor_seconds": round(min(making), 4),
        "retrain_from_rows_seconds": round(summing + best - min(removing), 4),
        "faster_than_retraining": round((summing + best - min(removing)) / best, 2),
        "statistics_over_gram": round(stored / gram, 3),
        "extra_memory_over_gram": round(max(extra) / gram, 3),
        "peak_over_gram_and_rows": round((stored + held + max(extra)) / (gram + held), 3),
    }


def _way_from_rows(
    statistics: Statistics, rows: np.ndarray, targets: np.ndarray, mu: float
) -> RowWay | None:
    """As a request has it: of the rows that are left, where these are few."""
    scale, ridge = np.full(rows.shape[1], SCALES[0]), mu * statistics.num_rows
    with working():
        return RowWay.of(Rows(rows, targets), scale, ridge, statistics.num_rows)


def with_kept_factors(
    statistics: Statistics,
    rows: np.ndarray,
    targets: np.ndarray,
    rounds: int,
    ridge: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Seconds, by this clock, of requests to a part that has a kept factor, and of making it."""
    part, times, making = _part(statistics, ridge), [], []
    part.solve_sums()
    for i in range(rounds):
        gone = slice(10 * i, 10 * (i + 1))
        before = clock()
        factor = factor_of(statistics, ridge, *SCALES)
        assert factor is not None
        making.append(clock() - before)
        part.kept_factor = KeptFactor(factor, ridge)
        del factor
        times.append(seconds(partial(part.take_out, Rows(rows[gone], targets[gone])), clock))
        assert part.weights_proved
        assert part.kept_factor is None
    return times, making


def _part(statistics: Statistics, ridge: float) -> StoredSums:
    """A compact part with these sums, as `efface forget` loads it."""
    k, c = statistics.num_features, statistics.num_outputs
    settings = {"mu": None, "total_ridge": ridge, "target_scale": SCALES[1] * 2**12 * 0.99}
    scales = Quantiser(np.zeros(k), np.full(k, SCALES[0]), 8).to_arrays()
    arrays = {f"quantiser.{name}": np.asarray(array) for name, array in scales.items()}
    part = StoredSums(settings, arrays, [str(i) for i in range(c)], "", {})
    part.statistics = statistics
    assert (part.target_quantiser.scale == SCALES[1]).all()
    return part


def _restart_peak() -> int:
    """Set the high-water mark of this process to what it holds now, and return that (Linux)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> int:
    """Bytes, by the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def _time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    args = growth.options(__doc__.splitlines()[0], rounds=3).parse_args()
    measure(1000, 512, args.classes, 1)  # warm up
    shape = (args.features, args.classes, args.rounds)
    runs = [measure(n, *shape) for n in args.sizes]
    growth.report(args, runs, [measure(args.sizes[0], *shape, mu=1e-9)])


if __name__ == "__main__":
    main()
