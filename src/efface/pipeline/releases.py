"""Two releases of a model beside each other, for ``efface releases``: from what the workspace still keeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from efface.errors import EffaceError, FormatError
from efface.receipts import check
from efface.regular import read_regular
from efface.report.releases import page
from efface.workspace.history import Accuracy, Release, facts, releases

LARGEST = 1 << 24  # bytes of an evaluation


@dataclass(frozen=True)
class Brought:
    """What people kept elsewhere: whole receipts with the key to check them, and evaluations."""

    receipts: Sequence[Path] = ()
    key: Path | None = None
    evaluations: Sequence[Path] = ()


def run(
    model: Path, first: int | None, last: int | None, out: Path, brought: Brought | None = None
) -> dict[str, Any]:
    """Write the page; by default about the first release and the served one."""
    brought = brought or Brought()
    if brought.receipts and brought.key is None:
        raise EffaceError(
            "a receipt is only as good as its signature.", "give --key FILE.pub, too."
        )
    held = [check.load(path, brought.key) for path in brought.receipts if brought.key is not None]
    measured = dict(_measured(path) for path in brought.evaluations)
    found = {release.number: release for release in releases(model, held, measured)}
    start = _chosen(found, min(found) if first is None else first)
    end = _chosen(found, max(found) if last is None else last)
    if start.number >= end.number:
        message = f"release {end.number} does not come after release {start.number}."
        raise EffaceError(message, "give two of them: --from 1 --to 3.")
    between = [r for r in found.values() if start.number < r.number <= end.number]
    page(model, start, end, between).write(out)
    return {
        "model": str(model),
        "from": asdict(start),
        "to": asdict(end),
        "between": [asdict(release) for release in between],
        "facts": [{**asdict(fact), "changed": fact.changed} for fact in facts(start, end)],
        "out": str(out),
    }


def _chosen(found: dict[int, Release], number: int) -> Release:
    if number not in found:
        message = f"there is no release {number}."
        raise EffaceError(message, f"choose one of {', '.join(map(str, found))}.")
    return found[number]


def _measured(path: Path) -> tuple[int, Accuracy]:
    """From the one line of ``efface evaluate --json``."""
    try:
        values = json.loads(read_regular(path, LARGEST))
        number, right, n = (values[name] for name in ("release", "accuracy", "num_records"))
        if type(number) is not int or type(n) is not int or not 0 <= float(right) <= 1:
            raise ValueError("numbers that are none")
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as problem:
        fix = "give what `efface evaluate MODEL DATA --json` printed."
        raise FormatError(
            f"{path} is no evaluation of a release: {problem!r:.80}.", fix
        ) from problem
    return number, Accuracy(float(right), n, path.name)
