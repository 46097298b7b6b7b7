"""Seconds of `efface forget` as somebody types it: from the shell's fork to the program's end.

    python benchmarks/shell.py --out benchmarks/results/shell.json
    python benchmarks/shell.py --fresh --images 1156 --out benchmarks/results/shell-fresh.json

`workspace.py` has the request once Python is up; here is the rest of it, too: Python, imports, options, the
certificate on the screen, the end. The workspace is of the default's size (4,077 features, 40 classes, 1,200
images of 120 people, as cub40 has them), its rows are synthetic; one person after the other asks. With
``--fresh`` each asks a copy that nobody has asked before, as in the first hour (which has 1,156 rows of 40
classes). The first request is a warm-up, and compiles Python's files, as an installation does. Processor
seconds, of all threads, are beside those of the clock: they hardly know what else is running.

    python benchmarks/shell.py --warm --features 8192 --images 1000 --requests 5

`--warm` keeps a factor (`efface warm`). Such a request is published first and makes the next factor after
that, so both are measured: in this process, by turns with the shell, and beside them the same in memory
alone (`compact_requests.py`), where nothing is read or written.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import compact_requests
from outcome import Outcome
from torch import nn

from efface import Workspace
from efface.workspace import protocol
from efface.workspace.published import CURRENT
from efface.workspace.steps import Milestone
from efface.workspace.verify import all_checks
from workspace import PER_OWNER, fitted, network

ROOT = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """This checkout's package, whose compiled files are kept."""
    found = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def ask(path: Path, owner: str) -> tuple[float, float, float]:
    """Seconds of the whole, of the request in it, as the command says, and of processors."""
    words = [sys.executable, "-m", "efface", "forget", str(path), "--owner", owner]
    start, before = time.perf_counter(), processor_seconds()
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=True)
    whole = time.perf_counter() - start
    (inner,) = [line.split()[-1] for line in done.stdout.splitlines() if "seconds" in line]
    return whole, float(inner), processor_seconds() - before


def processor_seconds() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copied(model: Path, to: Path) -> Path:
    """A copy that is on disk, so that nobody waits for it later."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(model, to)
    os.sync()
    return to


@dataclass(frozen=True)
class Warm:
    """One request to a workspace that keeps a factor. Seconds from the first word to the release being
    served, and to the end; those of processors, until then where that is known."""

    published: float
    done: float
    published_processors: float
    processors: float

    @classmethod
    def from_the_shell(cls, path: Path, owner: str) -> Warm:
        began = time.time()
        whole, _, used = ask(path, owner)
        published = (path / CURRENT).stat().st_mtime - began  # that file is the release's number
        return cls(published, whole, math.nan, used)

    @classmethod
    def in_process(cls, path: Path, net: nn.Module, owner: str) -> Warm:
        served: list[tuple[float, float]] = []

        def reach(step: Milestone) -> None:
            if step is Milestone.SWITCHED:
                served.append((time.perf_counter(), time.process_time()))

        with mock.patch.object(protocol, "reach", reach):
            start, used = time.perf_counter(), time.process_time()
            Workspace.open(path, module=net).forget(owner=owner)
            end, processors = time.perf_counter() - start, time.process_time() - used
        ((clock, processor),) = served
        return cls(clock - start, end, processor - used, processors)


PUBLISHED, DONE = "published", "done, with the next factor"


def warm_measured(images: int, features: int, classes: int, requests: int) -> dict[str, Any]:
    net = network(features)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        Workspace.create(path, fitted(images, net, features, classes), module=net)
        if not Workspace.open(path, module=net).warm():
            raise SystemExit("there is no factor to keep")
        ours: dict[str, list[Warm]] = {"in process": [], "efface forget": []}
        for i in range(2 * (requests + 1)):
            owner = f"user-{i}"
            if i % 2:
                ours["efface forget"].append(Warm.from_the_shell(path, owner))
            else:
                ours["in process"].append(Warm.in_process(path, net, owner))
        if not all(check.ok for check in all_checks(Workspace.open(path, module=net))):
            raise SystemExit("the workspace does not verify")
    alone = in_memory(images, features, classes, requests)
    return {"in memory": alone, **{name: _medians(asked[1:]) for name, asked in ours.items()}}


def _medians(asked: Sequence[Warm]) -> dict[str, float]:
    columns = {f.name: [getattr(one, f.name) for one in asked] for f in fields(Warm)}
    found = {name: statistics.median(values) for name, values in columns.items()}
    found |= {f"most_{name}": max(columns[name]) for name in ("published", "done")}
    return {name: round(value, 4) for name, value in found.items() if not math.isnan(value)}


def in_memory(images: int, features: int, classes: int, requests: int) -> dict[str, float]:
    """The median of the same request to sums and a factor that are there: the least it can take."""
    sums, _ = compact_requests.fit(images, features, classes)
    rows, targets = compact_requests.synthetic(min(4096, images), features, classes, seed=0)
    found = {}
    for name, clock in (("", time.perf_counter), ("_processors", time.process_time)):
        asked, rows, targets = (rows, targets), rows[::-1], targets[::-1]  # others the next time
        both = compact_requests.with_kept_factors(sums, *asked, requests, images * 1e-3, clock)
        for what, times in zip(("published", "new_factor"), both, strict=True):
            found[what + name] = round(statistics.median(times), 4)
    return found


def warm_outcome(shape: dict[str, int], load: float, note: str | None) -> Outcome:
    found = warm_measured(**shape)
    alone = found["in memory"]["published"]
    ours = {
        f"{where}, {what}": found[where][key]
        for where in ("in process", "efface forget")
        for what, key in ((PUBLISHED, "published"), (DONE, "done"))
    }
    within, shell = (ours[f"{where}, {PUBLISHED}"] for where in ("in process", "efface forget"))
    return Outcome(
        name="warm",
        question="How soon is a request served in a workspace that keeps a factor?",
        setting={**shape, "deleted": PER_OWNER, "load_before": load},
        ours=ours,
        ratios={
            "in memory / in process": alone / within,
            "in process / efface forget": within / shell,
        },
        limit={
            "what": "the same request in memory, to sums and a factor that are there",
            "seconds": alone,
            "fraction_reached": alone / within,
        },
        notes=[] if note is None else [note],
        details=found,
    )


WHOLE, WITHIN = "efface forget", "the request in it"


def measured(
    images: int, features: int, classes: int, requests: int, *, fresh: bool
) -> dict[str, Any]:
    net = network(features)
    with tempfile.TemporaryDirectory() as folder:
        made = path = Path(folder) / "model"
        Workspace.create(made, fitted(images, net, features, classes), module=net)
        asked = []
        for i in range(requests + 1):
            if fresh:
                path = copied(made, Path(folder) / "fresh")
            asked.append(ask(path, f"user-{i}"))
        del asked[0]
        if not all(check.ok for check in all_checks(Workspace.open(path, module=net))):
            raise SystemExit("the workspace does not verify")
    whole = sorted(seconds for seconds, _, _ in asked)
    return {
        "seconds": [round(seconds, 3) for seconds, _, _ in asked],
        "median_seconds": round(statistics.median(whole), 3),
        "least_seconds": round(whole[0], 3),
        "most_seconds": round(whole[-1], 3),
        "median_of_the_request": round(statistics.median(inner for _, inner, _ in asked), 3),
        "median_of_processors": round(statistics.median(used for _, _, used in asked), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("images", 1200), ("features", 4077), ("classes", 40), ("requests", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--warm", action="store_true", help="With a kept factor.")
    parser.add_argument("--fresh", action="store_true", help="Each request on a new workspace.")
    parser.add_argument("--note", help="What else was running, for the JSON.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shape = {name: getattr(args, name) for name in ("images", "features", "classes", "requests")}
    load = round(os.getloadavg()[0], 1)
    if args.warm:
        warm_outcome(shape, load, args.note).write(args.out)
        return
    found = measured(**shape, fresh=args.fresh)
    whole, within = found["median_seconds"], found["median_of_the_request"]
    Outcome(
        name="shell-fresh" if args.fresh else "shell",
        question="How long does `efface forget` take, from the shell's fork to the program's end?",
        setting={**shape, "fresh": args.fresh, "load_before": load},
        ours={WHOLE: whole, WITHIN: within},
        ratios={f"{WITHIN} / the whole": within / whole},
        limit={
            "what": "the request alone, as the command says, once Python is up",
            "seconds": within,
            "fraction_reached": within / whole,
        },
        notes=[] if args.note is None else [args.note],
        details=found,
    ).write(args.out)


if __name__ == "__main__":
    main()
