"""The system's Chromium, for tests that look at pages; skipped where there is none."""

from __future__ import annotations

import shutil

import pytest

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "google-chrome")) if p), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this system")
