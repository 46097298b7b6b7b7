"""What holds for every test: the same examples on every run, and what a system must have for some.

``HYPOTHESIS_PROFILE=search`` draws new examples each time; what it finds becomes an ``@example``.
``@pytest.mark.needs("posix")`` or ``("linux")`` says that a test makes pipes, modes or signals there.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

for helper in ("workspaces", "processes", "shell"):
    pytest.register_assert_rewrite(f"tests.{helper}")

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

HERE = {os.name, sys.platform}
NEEDS = {  # whole files, because they cannot even be imported elsewhere
    "workspace/test_kills.py": "posix",  # children by forkserver, which are killed (tests/processes.py)
    "workspace/test_at_the_same_time.py": "posix",
    "workspace/test_noise.py": "posix",
    "workspace/test_replacing.py": "posix",
    "workspace/test_interrupts.py": "posix",
    "workspace/test_kept.py": "posix",  # … and modes of files
    "workspace/test_messages.py": "posix",
    "workspace/test_full_disk.py": "posix",  # … and limits on the size of files
    "test_faults.py": "posix",  # counts the calls that a POSIX disk sees
    "test_fuzz.py": "linux",  # limits its own memory by what /proc says
}
collect_ignore = [name for name, system in NEEDS.items() if system not in HERE]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("needs"):
            if mark.args[0] not in HERE:
                item.add_marker(pytest.mark.skip(reason=f"needs {mark.args[0]}"))
