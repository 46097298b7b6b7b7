"""Locks that hold between processes and end with them, and a package that needs no POSIX."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import efface
from efface.errors import EffaceError
from efface.files import locked, write_bytes

SOURCES = sorted(Path(efface.__file__).parent.rglob("*.py"))
POSIX_MODULES = {"fcntl", "grp", "pwd", "pty", "resource", "termios", "tty"}
POSIX_CALLS = {
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "geteuid", "getuid", "mkfifo"),
    *("posix_fallocate", "sched_yield", "uname"),
}
HOLDER = """
import sys
from pathlib import Path
from efface.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(lock: Path) -> subprocess.Popen[str]:
    """Another process, once it holds the lock; it lets go when its input ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


@pytest.mark.parametrize("end", ["lets go", "is killed"])
def test_a_lock_is_waited_for_until_its_holder_is_gone(tmp_path: Path, end: str) -> None:
    waited = []
    with holder(tmp_path / "lock") as child:

        def waiting() -> None:
            waited.append(child.poll())
            child.kill() if end == "is killed" else child.communicate()

        with locked(tmp_path / "lock", waiting):
            pass
    assert waited == [None], "asked once, while the other was alive"
    with locked(tmp_path / "lock", lambda: pytest.fail("nobody holds it")):
        pass


@pytest.mark.needs("posix")
def test_a_lock_is_not_followed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EffaceError, match="nothing was changed"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    """Windows opens files as text unless told otherwise."""
    write_bytes(tmp_path / "file", b"a\nb\r\n\x1a\n")
    assert (tmp_path / "file").read_bytes() == b"a\nb\r\n\x1a\n"


def posix_only(tree: ast.AST) -> list[str]:
    """What a file uses that other systems do not have, outside of functions that ask first."""
    asks = ("os.name", "hasattr(os")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    guarded = {
        id(inner)
        for function in functions
        if any(ask in ast.unparse(function) for ask in asks)
        for inner in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found += POSIX_MODULES.intersection(names)
        elif isinstance(node, ast.Attribute) and id(node) not in guarded:
            found += (
                [node.attr] if ast.unparse(node.value) == "os" and node.attr in POSIX_CALLS else []
            )
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_package_asks_before_it_uses_what_only_posix_has(path: Path) -> None:
    assert not posix_only(ast.parse(path.read_text(encoding="utf-8")))


def test_what_only_posix_has_is_seen() -> None:
    code = "import os, fcntl\ndef f():\n    os.fchmod(1, 2)\ndef g():\n    os.name and os.fchmod(1, 2)\n"
    assert posix_only(ast.parse(code)) == ["fcntl", "fchmod"]
