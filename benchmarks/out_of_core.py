"""A million records on a small machine: time and peak memory of training, of a request and of a retrain.

    python benchmarks/out_of_core.py --sizes 1000000 --features 2048 --classes 40 --out out-of-core.json

Rows are synthetic 8-bit integers; from there on it is the code of `efface train` and `efface forget`: rows go
through a temporary file into the exact sums, the weights are solved for and proved, a workspace is written;
one record is forgotten in it; at last the sums are made again from the rows that are left on disk, and their
digest and that of the weights must be those of the certificate. Each step is a process of its own, and
peak memory is what the system says that process had (`ru_maxrss`). Rows take n · k bytes on disk, for a while
twice that.

This file imports nothing large before it knows which step it is: a child counts its parent's memory, too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efface.parts.compact.rows import Rows

STEPS = ("train", "forget", "retrain")
BLOCK = 4096  # rows that are made at once
FORGOTTEN = 3  # the record that asks to be forgotten
MOST_MIB = 2048


def blocks(n: int, k: int, c: int) -> Iterator[Rows]:
    """Seeded integers, some rows at a time: in all the same ones every time."""
    import numpy as np

    from efface.parts.compact.rows import Rows

    for start in range(0, n, BLOCK):
        size, generator = min(BLOCK, n - start), np.random.default_rng(start)
        features = generator.integers(-127, 128, (size, k), dtype=np.int8)
        yield Rows(features, generator.integers(-4000, 4000, (size, c)).astype(np.int16))


def train(folder: Path, n: int, k: int, c: int) -> dict[str, Any]:
    """Rows, sums, weights, workspace: as `MixedLinear.fit` and `Workspace.create` once there are rows."""
    import hashlib

    from efface import Workspace
    from efface.data.stored_records import StoredRecords
    from efface.parts.compact.spooled_rows import kept
    from efface.parts.training_set import TrainingSet
    from workspace import fitted, network

    net, seconds, watch = network(k), {}, Stopwatch()
    model = fitted(0, net, k, c)
    labels = [i % c for i in range(n)]
    columns = {
        "id": [f"photos/{i:07d}.jpg" for i in range(n)],
        "owner": [f"user-{i // 10}" for i in range(n)],
        "label": [model.classes[i] for i in labels],
        "split": ["user"] * n,
        "digest": [hashlib.sha256(str(i).encode()).hexdigest() for i in range(n)],
    }
    records = StoredRecords(columns, model.classes)
    seconds["names"] = watch.lap()
    rows = kept(blocks(n, k, c))
    seconds["rows_to_disk"] = watch.lap()
    data = TrainingSet(records, None, records.labels, rows=rows, looks=("",) * n)
    model.data, model.solution = data, model.user.learn(data)
    seconds["sums_and_weights"] = watch.lap()
    Workspace.create(folder, model, module=net)
    seconds["workspace"] = watch.lap()
    return {"seconds": seconds, "proved": model.user.weights_proved}


def forget(folder: Path, n: int, k: int, c: int) -> dict[str, Any]:
    """One record, as `efface forget` does it: without the network and without torch."""
    from efface.guarantee.certificates import ExactCertificate
    from efface.workspace import Workspace

    watch = Stopwatch()
    result = Workspace.open(folder).forget(ids=[f"photos/{FORGOTTEN:07d}.jpg"])
    assert "torch" not in sys.modules
    assert isinstance(result.certificate, ExactCertificate)
    return {
        "seconds": {"request": watch.lap()},
        "statistics_digest": result.certificate.statistics_digest,
        "weights_digest": result.certificate.weights_digest,
    }


def retrain(folder: Path, n: int, k: int, c: int) -> dict[str, Any]:
    """The sums and the weights anew, from the rows on disk."""
    from efface import Workspace
    from workspace import network

    model, watch = Workspace.open(folder, module=network(k)).model(), Stopwatch()
    assert model.data is not None
    model.user.learn(model.data)
    return {
        "seconds": {"sums_and_weights": watch.lap()},
        "statistics_digest": model.user.statistics_digest,
        "weights_digest": model.user.weights_digest,
        "num_rows": len(model.data),
    }


class Stopwatch:
    """Seconds since it was asked last."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        return round(lap, 2)


def child(step: str, folder: Path, shape: list[int]) -> None:
    found = {"train": train, "forget": forget, "retrain": retrain}[step](folder, *shape)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found["peak_mib"] = round(peak / (1024 if sys.platform == "linux" else 1 << 20), 1)
    print(json.dumps(found))


def measure(n: int, k: int, c: int, place: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        found = {step: _run(step, Path(folder) / "model", (n, k, c)) for step in STEPS}
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    digests = [[found[s][f"{d}_digest"] for d in ("statistics", "weights")] for s in STEPS[1:]]
    assert digests[0] == digests[1], "the request and the retrain differ"
    peak = max(found[step]["peak_mib"] for step in STEPS)
    shape = {"n": n, "features": k, "classes": c}
    return {**shape, "workspace_mib": round(size / (1 << 20)), "peak_mib": peak, "steps": found}


def _run(step: str, folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--step", step, str(folder), *map(str, shape)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    if sys.argv[1:2] == ["--step"]:
        return child(sys.argv[2], Path(sys.argv[3]), [int(value) for value in sys.argv[4:]])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--folder", type=Path, help="On the disk to use. Default: temporary.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs = [measure(n, args.features, args.classes, args.folder) for n in args.sizes]
    report(runs, {"features": args.features, "classes": args.classes}, args.out)


def report(runs: list[dict[str, Any]], setting: dict[str, Any], out: Path | None) -> None:
    """A request beside what it spares, and the most memory that anything took beside what it may."""
    from outcome import Outcome

    def taken(run: dict[str, Any], step: str) -> float:
        return float(sum(run["steps"][step]["seconds"].values()))

    def by_size(step: str, text: str = "") -> dict[str, float]:
        return {f"{text}n = {run['n']}": taken(run, step) for run in runs}

    again, peak = "sums made again from the rows on disk", max(run["peak_mib"] for run in runs)
    ratios = {
        f"{again} / ours, n = {r['n']}": taken(r, "retrain") / taken(r, "forget") for r in runs
    }
    Outcome(
        name="out-of-core",
        question="What do training and a request take with more records than memory holds?",
        setting=setting,
        ours={**by_size("forget"), **by_size("train", "training from rows, ")},
        peers=by_size("retrain", f"{again}, "),
        ratios=ratios,
        limit={
            "what": f"{MOST_MIB} MiB of memory, which no step may pass",
            "mebibytes": MOST_MIB,
            "fraction_reached": peak / MOST_MIB,
        },
        details={"runs": runs},
    ).write(out)


if __name__ == "__main__":
    main()
