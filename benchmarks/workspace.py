"""Time of a request of 10 samples in a workspace on disk, as the number of retained samples grows.

    python benchmarks/workspace.py --features 4096 --classes 40

`compact_requests.py` has the sums and the solve alone; here is all that `efface forget` does once Python
is up: find the records, read the sums, subtract, solve, write and sync the new release, switch to it, delete
the old one. Rows and names are synthetic; a network of random features stands for the backbone, which a
request does not run. The first request is a warm-up.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import growth
import numpy as np
import torch
from torch import nn

from efface import Core, MixedLinear, Preprocess, Record, Records, Split, Workspace
from efface.data.stored_records import NOWHERE
from efface.parts.compact.rows import Rows
from efface.parts.training_set import TrainingSet

PER_OWNER = 10


def network(k: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, k - 1), nn.ReLU()))


Taught = tuple[np.ndarray, np.ndarray, np.ndarray]  # features, targets, labels


def fitted(n: int, net: nn.Module, k: int, c: int, taught: Taught | None = None) -> MixedLinear:
    """A model fitted on ``n`` synthetic rows of ``k`` features, ten an owner; or on those that are given."""
    classes = [f"class-{i}" for i in range(c)]
    look = Preprocess(8, 8, 1, (0.5,), (0.5,))
    core = Core(net, classes=classes, linearize="head", preprocess=look)
    model = MixedLinear(core, features=k, total_ridge=0.2, core_weight=1.0)
    model.calibrate()
    features, targets, labels = taught or random_rows(n, k, c)
    records = Records([_record(i, classes[labels[i]]) for i in range(n)], classes)
    rows = Rows(features, targets)
    model.user.reset()
    model.user.add_rows(rows)
    model.data = TrainingSet(records, None, labels, rows=rows)
    return model


def random_rows(n: int, k: int, c: int) -> Taught:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, c, n)
    features = generator.integers(-127, 128, (n, k), dtype=np.int8)
    return features, generator.integers(-4000, 4000, (n, c)).astype(np.int16), labels


def _record(i: int, label: str) -> Record:
    owner, digest = f"user-{i // PER_OWNER}", hashlib.sha256(str(i).encode()).hexdigest()
    return Record(
        f"photos/{i:07d}.jpg", owner, "default", label, Split.USER, NOWHERE, digest=digest
    )


def measure(n: int, k: int, c: int, rounds: int, folder: Path) -> dict[str, Any]:
    net, path = network(k), folder / str(n)
    Workspace.create(path, fitted(n, net, k, c), module=net)
    times = []
    for i in range(rounds + 1):
        before = time.perf_counter()
        Workspace.open(path, module=net).forget(owner=f"user-{i + 3}")
        times.append(time.perf_counter() - before)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"n": n, "request_seconds": round(min(times[1:]), 3), "workspace_mb": round(size / 1e6)}


def main() -> None:
    parser = growth.options(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--folder", type=Path, help="On the disk to measure. Default: temporary.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        shape = (args.features, args.classes, args.rounds, Path(folder))
        runs = [measure(n, *shape) for n in args.sizes]
    question = "How long does all of a request take in a workspace, on disk?"
    growth.report(args, runs, name="workspace", question=question)


if __name__ == "__main__":
    main()
