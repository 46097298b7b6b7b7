"""How a compact request grows with records n, features k and classes c: times, and exponents fitted to them.

    python benchmarks/slopes.py --axis k --sizes 1024 2048 4096

One of the three grows, the others stay (``--records``, ``--features``, ``--classes``). The exponent p of
``t ∝ x^p`` is the slope of log t over log x by least squares; ``last`` is that between the two largest sizes,
where what does not grow weighs least. Rows are synthetic integers, as in ``compact_requests.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from compact_requests import measure
from limits import Limits
from outcome import Outcome

LINES = {
    "a request": "request_seconds",
    "with a kept factor": "kept_factor_seconds",
    "a new factor to keep": "new_factor_seconds",
    "retraining from cached rows": "retrain_from_rows_seconds",
}
AXES = {"n": "records that stay", "k": "features", "c": "classes"}


def exponents(sizes: Sequence[int], times: Sequence[float]) -> dict[str, float]:
    """p of ``t ∝ x^p``: over all sizes, and between the last two."""
    x, y = np.log(sizes), np.log(times)
    last = (y[-1] - y[-2]) / (x[-1] - x[-2])
    return {"fitted": round(float(np.polyfit(x, y, 1)[0]), 2), "last": round(float(last), 2)}


def sentence(axis: str, found: Mapping[str, Mapping[str, float]]) -> str:
    told = (f"{name} {axis}^{p['fitted']:.2f} ({p['last']:.2f})" for name, p in found.items())
    return "Fitted over all sizes, in brackets between the last two: " + ", ".join(told) + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axis", choices=AXES, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--records", type=int, default=4096)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    measure(1000, 512, args.classes, 1)  # warm up
    fixed = {"n": args.records, "k": args.features, "c": args.classes}
    runs: list[dict[str, Any]] = []
    for size in args.sizes:
        shape = {**fixed, args.axis: size}
        runs.append({**shape, **measure(shape["n"], shape["k"], shape["c"], args.rounds)})
    lines = {name: [run[key] for run in runs] for name, key in LINES.items()}
    found = {name: exponents(args.sizes, times) for name, times in lines.items()}
    last = runs[-1]
    bound = Limits.measured().request_seconds(last["k"], last["c"])
    del fixed[args.axis]
    Outcome(
        name=f"growth-{args.axis}",
        question=f"How does a request of ten records grow with the {AXES[args.axis]}?",
        setting={**fixed, "deleted": 10, "rounds": args.rounds},
        ours={f"{args.axis} = {run[args.axis]}": run["request_seconds"] for run in runs},
        peers={},
        ratios={},
        limit={
            "what": "a new float32 factor at the speed of a product, sums read and written once",
            "seconds": bound,
            "fraction_reached": bound / last["request_seconds"],
        },
        notes=[sentence(args.axis, found)],
        series={"x": AXES[args.axis], "y": "seconds", "at": args.sizes, "lines": lines},
        details={"exponents": found, "runs": runs},
    ).write(args.out)


if __name__ == "__main__":
    main()
