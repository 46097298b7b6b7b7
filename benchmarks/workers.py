"""Rows of one data set by one worker and by several: does `--engine processes:N` scale?

    python benchmarks/workers.py --data photos/ --backbone hf:./my-resnet50 --features 4096 --workers 1 2

The core is trained first and not timed. Then the same shards are computed by each number of workers, from
starting the processes to the last shard on disk, with one thread each: what N of them could do at best is an
Nth of what one takes. Starting (a process that loads the libraries and computes nothing) is measured beside
it: with little data it is most of it. The sums must be the same integers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from outcome import Outcome

from efface.pipeline.inputs import split_as_trained
from efface.pipeline.sharded import ShardJob, absolute_data, jobs_of, make_missing
from efface.shards import Gathering, Partial, engine_named
from shell import processor_seconds

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def core_of(args: argparse.Namespace, folder: Path) -> Path:
    """A model without user records, for which rows can be made."""
    words = ["train", args.data, "--backbone", args.backbone, "--features", str(args.features)]
    words += ["--core-fraction", str(args.core_fraction), "--core-only", "--out", str(folder)]
    command = [sys.executable, "-m", "efface", *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **ONE_THREAD})
    return folder


def load_libraries(_: object) -> None:
    """A job that only starts: what every worker does once."""
    import_module("efface.pipeline.sharded")


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model = core_of(args, folder / "model")
    values = absolute_data(split_as_trained(model, args.data)).model_dump(mode="json")
    job, runs, digests = ShardJob(str(model), values, "", ""), [], set()
    for workers in args.workers:
        engine, jobs = engine_named(f"processes:{workers}"), []
        start = time.perf_counter()
        engine.run(load_libraries, range(workers))
        starting = time.perf_counter() - start
        jobs = jobs_of(folder / str(workers), job, args.shards)
        start, used = time.perf_counter(), processor_seconds()
        engine.run(make_missing, jobs)
        seconds, used = time.perf_counter() - start, processor_seconds() - used
        made = Gathering.of(Partial.load(Path(j.out)) for j in jobs if Path(j.out).exists())
        assert made.sums is not None
        digests.add(made.sums.digest())
        runs.append({"workers": workers, "seconds": seconds, "starting_seconds": starting})
        runs[-1] |= {"records": len(made.ids), "processor_seconds": used}
    if len(digests) != 1:
        raise SystemExit("the sums differ by the number of workers")
    return {"runs": runs, "statistics_digest": digests.pop()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--backbone", default="cnn")
    parser.add_argument("--features", type=int, default=600)
    parser.add_argument("--core-fraction", type=float, default=0.3)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ.update(ONE_THREAD)  # workers are started anew, and read it then
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args, Path(folder))
    first, last = found["runs"][0], found["runs"][-1]
    times = {f"{run['workers']} workers": run["seconds"] for run in found["runs"]}
    best = first["seconds"] * first["workers"] / last["workers"]
    names = ("data", "backbone", "features", "core_fraction", "shards")
    Outcome(
        name="workers",
        question="How much sooner are rows there by several workers?",
        setting={name: getattr(args, name) for name in names} | {"records": first["records"]},
        ours=times,
        ratios={
            f"{first['workers']} workers / {run['workers']}": first["seconds"] / run["seconds"]
            for run in found["runs"][1:]
        },
        limit={
            "what": f"{first['workers']} workers' seconds, divided among {last['workers']}",
            "seconds": best,
            "fraction_reached": best / last["seconds"],
        },
        series={
            "x": "workers",
            "y": "seconds",
            "at": args.workers,
            "lines": {
                "rows": [run["seconds"] for run in found["runs"]],
                "starting alone": [run["starting_seconds"] for run in found["runs"]],
            },
        },
        details=found,
    ).write(args.out)


if __name__ == "__main__":
    main()
