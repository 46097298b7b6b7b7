"""The fixtures of this room: a place to work at, an office, and somebody who speaks to it."""

import pytest

pytest.importorskip("fastapi", reason="the service needs efface[service]")

from tests.service.offices import client, folder, office, place, settings, worker
from tests.workspaces import as_in_other_processes, made

__all__ = [
    "as_in_other_processes",
    "client",
    "folder",
    "made",
    "office",
    "place",
    "settings",
    "worker",
]
