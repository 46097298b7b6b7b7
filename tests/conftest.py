"""What holds for every test: the same examples on every run, and what a system must have for some.

``HYPOTHESIS_PROFILE=search`` draws new examples each time; what it finds becomes an ``@example``.
``@pytest.mark.needs("posix")`` or ``("linux")`` says that a test makes pipes, modes or signals there.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

HERE = {os.name, sys.platform}
NEEDS = {  # whole files, because they cannot even be imported elsewhere
    "workspace/test_workspace.py": "posix",  # children by forkserver, limits on the size of files
    "test_hardening.py": "posix",  # takes those children, and modes of files
    "test_faults.py": "posix",  # counts the calls that a POSIX disk sees
    "test_fuzz.py": "linux",  # limits its own memory by what /proc says
}
collect_ignore = [name for name, system in NEEDS.items() if system not in HERE]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("needs"):
            if mark.args[0] not in HERE:
                item.add_marker(pytest.mark.skip(reason=f"needs {mark.args[0]}"))
