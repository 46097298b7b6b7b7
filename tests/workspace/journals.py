"""Journals as earlier versions wrote them, before there was a ledger."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def write_journal(root: Path, *steps: tuple[int, str, str]) -> None:
    """Lines that follow from each other, and the file that says how many there are."""
    previous, lines = "", []
    for number, action, step in steps:
        values = {
            "number": number,
            "action": action,
            "step": step,
            "when": "then",
            "previous": previous,
        }
        lines.append(json.dumps(values, sort_keys=True))
        previous = hashlib.sha256(lines[-1].encode()).hexdigest()
    head = {"schema": "efface.journal-head/1", "line": len(lines), "digest": previous}
    (root / "journal.head").write_text(json.dumps(head))
    (root / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
