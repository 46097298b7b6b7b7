"""What holds for every test: the same examples on every run, unless somebody wants others.

``HYPOTHESIS_PROFILE=search`` draws new examples each time; what it finds becomes an ``@example``.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
