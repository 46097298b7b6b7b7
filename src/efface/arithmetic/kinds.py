"""The forms by the names that files have for them, and what a certificate may claim of each."""

from __future__ import annotations

INTEGER, EXACT, FLOAT = "integer", "exact", "float32"
ARITHMETIC = {INTEGER: "integer", EXACT: "integer", FLOAT: "float32"}
