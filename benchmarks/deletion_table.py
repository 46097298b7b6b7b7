"""The table of benchmarks/README.md about ten records that are deleted, from what `make bench` measured.

    python benchmarks/deletion_table.py          # writes it, from results/bench/after-deletion.json
    python benchmarks/deletion_table.py --check  # exit code 1 if the page says anything else

Each number is a peer's seconds over ours, at the same n in the same run. Nothing is measured here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE, RESULTS = HERE / "README.md", HERE / "results" / "bench" / "after-deletion.json"
BEGIN, END = "<!-- table: benchmarks/deletion_table.py -->", "<!-- end of table -->"
OURS = "efface"
PEERS = {  # as the benchmark calls them, and as people do
    "scikit-learn Ridge": "scikit-learn `Ridge`, fitted again",
    "scikit-learn LogisticRegression": "scikit-learn `LogisticRegression`, fitted again",
    "SISA, one of 10 shards": "SISA, one of ten shards fitted again",
    "recursive least squares, float64": "recursive least squares, float64",
    "efface, all again from cached rows": "ours, all again from cached rows",
}


def table(values: dict[str, Any]) -> Iterator[str]:
    sizes, lines = values["series"]["at"], values["series"]["lines"]
    if set(lines) != {OURS, *PEERS}:
        raise SystemExit(f"{RESULTS.name} has other peers: {sorted(lines)}")
    yield f"| peer, over ours | {' | '.join(f'n = {n:,}' for n in sizes)} |"
    yield "|---" * (len(sizes) + 1) + "|"
    for name, shown in PEERS.items():
        ratios = [_ratio(*pair) for pair in zip(lines[name], lines[OURS], strict=True)]
        yield f"| {shown} | {' | '.join(ratios)} |"


def _ratio(theirs: float | None, ours: float) -> str:
    """Two digits that count; –: it was not run at this size."""
    if theirs is None:
        return "–"
    ratio = theirs / ours
    return f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.1f} ×" if ratio >= 1 else f"{ratio:.2g} ×"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    rows = "\n".join(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
    new = f"{head}{BEGIN}\n{rows}\n{END}{tail}"
    if "--check" in sys.argv:
        told = f"{PAGE.name} is not what the results say: run {Path(__file__).name}"
        sys.exit(0 if new == text else told)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
