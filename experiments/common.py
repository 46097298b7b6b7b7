"""What the table scripts share: their options, and where their results go."""

from __future__ import annotations

import argparse
from pathlib import Path

from efface.model.mixed_linear import MixedLinear
from efface.parts.compact.rows import Rows
from efface.parts.part import require_training_data
from efface.reproduce.results import Results, name_of

__all__ = ["RESULTS", "Results", "name_of", "parser", "rows_of"]

RESULTS = Path(__file__).parent / "results"


def parser(about: str | None) -> argparse.ArgumentParser:
    """The options that all of them take; the first line of ``about`` is the help's heading."""
    result = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    result.add_argument("--data", required=True, help="a data set, as for `efface train`")
    result.add_argument("--backbone", default="cnn", help="hf:DIR, timm:NAME, cnn")
    result.add_argument("--cache", help="where boundary activations are kept")
    result.add_argument("--seeds", type=int, nargs="+", default=[0])
    result.add_argument("--core-fraction", type=float, default=0.3)
    result.add_argument("--linearize", default="last-block")
    result.add_argument("--leaky-slope", type=float, default=0.01)
    result.add_argument("--calibrate-to", type=float, default=5.0, help="0: logits as trained")
    result.add_argument("--resize", type=int, help="short side before the central crop")
    result.add_argument("--crop", type=int, help="its side, where --resize is given (else 224)")
    result.add_argument("--mirror", action="store_true", help="read every image mirrored, too")
    result.add_argument("--out", type=Path, help="the JSON file to write")
    return result


def rows_of(model: MixedLinear) -> Rows:
    """The integers of every record that a compact model was fitted on."""
    rows = require_training_data(model.data).rows
    assert rows is not None
    return rows.whole()
