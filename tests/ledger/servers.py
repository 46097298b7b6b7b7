"""A PostgreSQL server of the tests' own: on a socket in a temporary folder, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SETTINGS = ("fsync=off", "listen_addresses=", "max_connections=20", "shared_buffers=1MB")


def _found(name: str) -> str | None:
    """In PATH, or where Debian puts it."""
    places = [os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    return shutil.which(name, path=os.pathsep.join(places))


def _somebody() -> str | None:
    """PostgreSQL does not run as root: somebody else, if we are."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


def _run(*command: str, user: str | None) -> None:
    done = subprocess.run(command, user=user, cwd="/", capture_output=True, timeout=120, text=True)
    if done.returncode:
        pytest.skip(f"PostgreSQL cannot be started here: {done.stderr or done.stdout:.300}")


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database; skips the test, with the reason, where no server can be had."""
    pytest.importorskip("psycopg")
    pytest.importorskip("sqlalchemy")
    initdb, pg_ctl = _found("initdb"), _found("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("there is no PostgreSQL server on this machine (initdb, pg_ctl)")
    user = _somebody()
    with tempfile.TemporaryDirectory(prefix="efface-pg-", dir="/tmp") as folder:
        data = Path(folder) / "data"
        if user is not None:
            shutil.chown(folder, user)
        _run(initdb, "-D", str(data), "-U", "efface", "-A", "trust", "-N", user=user)
        options = " ".join(
            f"-c {setting}" for setting in (*SETTINGS, f"unix_socket_directories={folder}")
        )
        start = ("-D", str(data), "-w", "-l", f"{folder}/log", "-o", options, "start")
        _run(pg_ctl, *start, user=user)
        try:
            yield f"postgresql+psycopg://efface@/postgres?host={folder}"
        finally:
            _run(pg_ctl, "-D", str(data), "-m", "immediate", "stop", user=user)
