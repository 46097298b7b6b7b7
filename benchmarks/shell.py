"""Seconds of `efface forget` as somebody types it: from the shell's fork to the program's end.

    python benchmarks/shell.py --out benchmarks/results/shell.json

`workspace.py` has the request once Python is up; here is the rest of it, too: Python, imports, options, the
certificate on the screen, the end. The workspace is of the default's size (4,077 features, 40 classes, 1,200
images of 120 people, as cub40 has them), its rows are synthetic; one person after the other asks. The first
request is a warm-up, and compiles Python's files, as an installation does. Processor seconds, of all
threads, are beside those of the clock: they hardly know what else is running.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outcome import Outcome

from efface import Workspace
from efface.workspace.verify import all_checks
from workspace import fitted, network

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


WHOLE, WITHIN = "efface forget", "the request in it"


def measured(images: int, features: int, classes: int, requests: int) -> dict[str, Any]:
    net = network(features)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        Workspace.create(path, fitted(images, net, features, classes), module=net)
        asked = [ask(path, f"user-{i}") for i in range(requests + 1)][1:]
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
    parser.add_argument("--note", help="What else was running, for the JSON.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shape = {name: getattr(args, name) for name in ("images", "features", "classes", "requests")}
    load, found = round(os.getloadavg()[0], 1), measured(**shape)
    whole, within = found["median_seconds"], found["median_of_the_request"]
    Outcome(
        name="shell",
        question="How long does `efface forget` take, from the shell's fork to the program's end?",
        setting={**shape, "load_before": load},
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
