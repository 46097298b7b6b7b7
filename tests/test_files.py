"""Locks that hold between processes and end with them, arrays in files, and a package that needs no POSIX."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import efface
from efface.errors import EffaceError, FormatError
from efface.files import (
    hashing,
    locked,
    map_arrays,
    read_arrays,
    synced_together,
    write_arrays,
    write_bytes,
)

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


ARRAYS = {
    "whole": np.arange(-6, 6, dtype=np.int64).reshape(2, 2, 3),
    "bigger first": np.arange(5, dtype=">f4"),
    "a b": np.ones((2, 3), bool),
    'é\n"': np.zeros((3, 0), np.uint8),
    "one": np.array(2.5),
    "columns": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    **{
        kind: np.arange(3).astype(kind) for kind in ("u1", "i1", "u2", "f2", "u4", "i4", "f8", "u8")
    },
}


@pytest.mark.parametrize("names", [(), ("one",), ("columns", "whole"), tuple(ARRAYS)], ids=len)
def test_arrays_are_written_as_safetensors_writes_them(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """The same bytes, and read again by either."""
    arrays = {name: ARRAYS[name] for name in names}
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    safetensors.numpy.save_file(plain, tmp_path / "theirs")
    write_arrays(tmp_path / "ours", arrays)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    found, theirs = read_arrays(tmp_path / "ours"), safetensors.numpy.load_file(tmp_path / "ours")
    assert set(found) == set(theirs) == set(names)
    for name, array in arrays.items():
        assert found[name].dtype == theirs[name].dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == array.shape
        assert found[name].flags.writeable
        assert found[name].flags.aligned
    mapped = map_arrays(tmp_path / "ours")
    assert list(mapped) == list(found)
    for name, array in mapped.items():
        assert (array.dtype, array.shape) == (found[name].dtype, found[name].shape)
        assert array.tobytes() == found[name].tobytes()
        assert not array.flags.writeable


def test_arrays_cut_short_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "arrays.safetensors"
    write_arrays(path, ARRAYS)
    whole = path.read_bytes()
    for size in (0, 4, 8, 60, len(whole) - 1):
        path.write_bytes(whole[:size])
        for read in (read_arrays, map_arrays):
            with pytest.raises(FormatError, match=r"arrays\.safetensors is not a safetensors file"):
                read(path)
    path.write_bytes(whole + b"more")
    for read in (read_arrays, map_arrays):
        with pytest.raises(FormatError, match=r"arrays\.safetensors is not a safetensors file"):
            read(path)


@pytest.mark.needs("posix")
def test_what_is_mapped_stays_what_it_was_when_the_file_goes(tmp_path: Path) -> None:
    write_arrays(tmp_path / "file", ARRAYS)
    mapped = map_arrays(tmp_path / "file")
    write_arrays(tmp_path / "file", {"whole": -ARRAYS["whole"]})
    (tmp_path / "file").unlink()
    np.testing.assert_array_equal(mapped["whole"], ARRAYS["whole"])


@pytest.mark.needs("linux")
def test_files_synced_together_have_their_names_once_all_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    name = lambda fd: Path(os.readlink(f"/proc/self/fd/{fd}")).name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(f"sync {name(fd)}"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("name"), replace(a, b)))
    with synced_together():
        write_bytes(tmp_path / "one", b"1")
        write_arrays(tmp_path / "two", ARRAYS)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["one.tmp", "two.tmp"]
        assert not calls
    assert sorted(calls[:2]) == ["sync one.tmp", "sync two.tmp"]
    assert calls[2:] == ["name", "name"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]
    write_bytes(tmp_path / "three", b"3")
    assert (tmp_path / "three").read_bytes() == b"3"


@pytest.mark.parametrize("where", ["within", "when synced"])
def test_of_files_synced_together_none_has_its_name_if_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def failing(_: int) -> None:
        raise OSError(5, "no disk")

    handles = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    monkeypatch.setattr(os, "fsync", failing)

    def write() -> None:
        with synced_together():
            write_bytes(tmp_path / "one", b"1")
            write_bytes(tmp_path / "two", b"2")
            if where == "within":
                failing(0)

    with pytest.raises(OSError, match="no disk"):
        write()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.tmp", "two.tmp"]
    if handles:
        assert len(os.listdir("/proc/self/fd")) == handles


def test_large_files_are_hashed_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they are hashed to is what lies there; small ones are not, nor those of other times."""
    arrays = {"large": np.arange(1 << 18), "small": np.arange(3)}
    write_arrays(tmp_path / "before", arrays)
    with hashing() as known:
        write_arrays(tmp_path / "one", arrays)
        write_bytes(tmp_path / "two", bytes(range(256)) * 4096)
        write_bytes(tmp_path / "little", b"little")
        monkeypatch.setattr(os, "replace", lambda a, b: os.rename(tmp_path / "nothing", b))
        with pytest.raises(FileNotFoundError):
            write_arrays(tmp_path / "lost", arrays)
        monkeypatch.undo()
    write_arrays(tmp_path / "after", arrays)
    read = {path: sha256(path.read_bytes()).hexdigest() for path in known}
    assert known == read
    assert set(known) == {tmp_path / "one", tmp_path / "two"}


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
