"""Reading and writing, safely: safetensors and JSON only, a schema in every file, atomic writes.

Modes do not depend on the umask: a file in a private folder (one that only its owner may enter) is private
too, 0600; others are there to be read, 0644. Windows has no such modes: there a file is as private as
the folder the workspace was made in.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import safetensors
from filelock import lock_descriptor
from safetensors import SafetensorError

from efface.errors import EffaceError, FormatError

if TYPE_CHECKING:
    from torch import Tensor

PRIVATE, PUBLIC = 0o600, 0o644
BINARY = getattr(os, "O_BINARY", 0)  # Windows would else write \r\n for \n
NOT_VIA_LINKS = getattr(os, "O_NOFOLLOW", 0)  # these two where the system has them
AT_ONCE = getattr(os, "O_NONBLOCK", 0)
PRIVATE_FOLDER, PUBLIC_FOLDER = 0o700, 0o755
UNFIT = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RuntimeError),
)
Buffer: TypeAlias = bytes | memoryview
# What safetensors calls the types of arrays that we write, and in which order of them it writes.
KINDS = {
    **{"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2"},
    **{"I32": "<i4", "U32": "<u4", "F32": "<f4", "F64": "<f8", "I64": "<i8", "U64": "<u8"},
}
_hashed: ContextVar[dict[Path, str] | None] = ContextVar("hashed", default=None)
_together: ContextVar[list[_Written] | None] = ContextVar("together", default=None)
Item = TypeVar("Item")
MOST_AT_ONCE = 16  # files that are waited for
LARGE = 1 << 20  # bytes: what is smaller is hashed faster than a thread is made
LARGEST_JSON = 1 << 30  # bytes; 100,000 records take 20 MB


def make_folder(path: Path, mode: int | None = None) -> None:
    """Make a folder and those above it; it is as private as the one it lies in, unless ``mode`` is given."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    inherited = PRIVATE_FOLDER if is_private(path.parent) else PUBLIC_FOLDER
    path.chmod(inherited if mode is None else mode)


def is_private(folder: Path) -> bool:
    """Whether only its owner may enter the folder."""
    return folder.stat().st_mode & 0o077 == 0


def write_bytes(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write beside, fsync, then rename: a reader sees the old file or the new one, never half.

    ``mode`` is that of the folder if it is not given.
    """
    _write_pieces(path, (data,), mode)


@contextmanager
def hashing() -> Iterator[dict[Path, str]]:
    """Digests of the large files that are written within, hashed while the disk takes them: nobody need read
    them again for it. Of others nothing is said."""
    known: dict[Path, str] = {}
    token = _hashed.set(known)
    try:
        yield known
    finally:
        _hashed.reset(token)


def already_hashed(path: Path, digest: str) -> None:
    """For :func:`hashing`: a file that was written before, by whoever knows its digest."""
    known = _hashed.get()
    if known is not None:
        known[path] = digest


def _write_pieces(path: Path, pieces: Sequence[Buffer], mode: int | None = None) -> None:
    known, large = _hashed.get(), sum(map(len, pieces)) >= LARGE
    if known is None or not large:
        write_pieces(path, pieces, mode)
        return
    with ThreadPoolExecutor(1) as beside:
        digest = beside.submit(_digest, pieces)
        write_pieces(path, pieces, mode)
    known[path] = digest.result()


def write_pieces(path: Path, pieces: Iterable[Buffer], mode: int | None = None) -> None:
    """:func:`write_bytes` of what may be made only while it is written."""
    make_folder(path.parent)
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # never through a link that lies there
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, PRIVATE)
    written = _Written(handle, temporary, path)
    try:
        set_mode(handle, mode_in(path.parent) if mode is None else mode)
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(handle, rest) :]
    except BaseException:
        os.close(handle)
        raise
    together = _together.get()
    if together is None:
        _settle([written])
    else:
        together.append(written)


class _Written(NamedTuple):
    """A file that is written, and not yet synced, closed and given its name."""

    handle: int
    temporary: Path
    path: Path


def _settle(files: Sequence[_Written]) -> None:
    try:
        at_once(os.fsync, [file.handle for file in files])
    finally:
        for file in files:
            os.close(file.handle)
    for file in files:
        os.replace(file.temporary, file.path)


def at_once(wait: Callable[[Item], object], items: Sequence[Item]) -> None:
    """``wait`` for each, all at the same time: a disk that syncs many takes hardly longer than for one."""
    if len(items) == 1:
        wait(items[0])
    elif items:
        with ThreadPoolExecutor(min(len(items), MOST_AT_ONCE)) as several:
            list(several.map(wait, items))


@contextmanager
def synced_together() -> Iterator[None]:
    """Files that are written within (but tensors) have their names only after it, once all are on disk."""
    waiting: list[_Written] = []
    token = _together.set(waiting)
    try:
        yield
    except BaseException:
        for file in waiting:
            os.close(file.handle)
        raise
    finally:
        _together.reset(token)
    _settle(waiting)


def _digest(pieces: Iterable[Buffer]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def set_mode(handle: int, mode: int) -> None:
    """The open file's mode, where files have one (not on Windows)."""
    if os.name == "posix" and os.fstat(handle).st_mode & 0o777 != mode:
        os.fchmod(handle, mode)


def mode_in(folder: Path) -> int:
    return PRIVATE if is_private(folder) else PUBLIC


def write_json(
    path: Path,
    values: Mapping[str, Any],
    *,
    indent: int | None = 1,
    mode: int | None = None,
) -> None:
    """No ``indent`` for what is long: only then json's fast encoder is used."""
    write_bytes(path, encode(values, indent), mode)


def encode(values: Mapping[str, Any], indent: int | None = 1) -> bytes:
    return json.dumps(values, indent=indent, sort_keys=True).encode()


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """Read a file whose ``schema`` field must be exactly ``schema``."""
    if not path.is_file():
        raise FormatError(f"there is no {path.name} in {path.parent}.", "check the model's path.")
    if path.stat().st_size > LARGEST_JSON:
        raise FormatError(f"{path} is larger than any file of efface.", "restore it from a copy.")
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {error}", "restore it from a copy.") from error
    found = values.get("schema") if isinstance(values, dict) else None
    if found != schema:
        raise FormatError(
            f"{path} has schema {found!r}; this version of efface reads {schema!r}.",
            "install the version of efface that wrote it, or train again.",
        )
    return values


@contextmanager
def as_saved(path: Path) -> Iterator[None]:
    """Whatever a value of the wrong kind leads to, within, is the fault of the file it came from."""
    try:
        yield
    except UNFIT as problem:
        message = f"{path} is not as it was saved: {problem!r:.200}."
        raise FormatError(message, "restore it from a copy.") from problem


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    import torch
    from safetensors.torch import save_file

    # Clones, because safetensors refuses tensors that share memory (tied weights).
    plain = {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    _write_beside(path, lambda temporary: save_file(plain, temporary))


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """:func:`write_tensors` of numpy's arrays: the same bytes, from where they are, without torch."""
    plain = {n: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for n, a in arrays.items()}
    head, order = head_of({name: (array.dtype, array.shape) for name, array in plain.items()})
    _write_pieces(path, (head, *(raw(plain[name]) for name in order)))


def head_of(
    described: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
) -> tuple[bytes, list[str]]:
    """How a file of arrays begins, and in which order they follow."""
    kinds = {np.dtype(kind): (place, name) for place, (name, kind) in enumerate(KINDS.items())}
    order = sorted(described, key=lambda name: (-kinds[described[name][0]][0], name.encode()))
    listed: dict[str, Any] = {}
    end = 0
    for name in order:
        dtype, shape = described[name]
        start, end = end, end + dtype.itemsize * math.prod(shape)
        kind = kinds[dtype][1]
        listed[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    head = json.dumps(listed, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head, order


def raw(array: np.ndarray) -> memoryview:
    """The bytes of an array, where they are."""
    return array.reshape(-1).view(np.uint8).data


def _write_beside(path: Path, save: Callable[[Path], object]) -> None:
    make_folder(path.parent)
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    save(temporary)
    with temporary.open("r+b") as file:  # Windows syncs only what may be written
        set_mode(file.fileno(), mode_in(path.parent))
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    # Clones, because the file's own memory is not aligned, and float kernels round by alignment.
    with _reading(path):
        return {name: tensor.clone() for name, tensor in load_file(path).items()}


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """:func:`read_tensors` as numpy's arrays; torch is not loaded for it.

    safetensors checks what the file says of itself; then the arrays are read, each into its place.
    """
    with _reading(path), safetensors.safe_open(path, "np"), path.open("rb", buffering=0) as file:
        start, listed = _listed(file)
        return {name: _array(file, start, **described) for name, described in listed.items()}


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """:func:`read_arrays` without a copy: pages of the file, not to be written, as long as anybody has them.

    For files that are never written to, only replaced.
    """
    with _reading(path), safetensors.safe_open(path, "np"), path.open("rb", buffering=0) as file:
        start, listed = _listed(file)
        whole = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        return {name: _mapped(whole[start:], **described) for name, described in listed.items()}


def _listed(file: FileIO) -> tuple[int, dict[str, Any]]:
    """Where arrays begin, and what the file says of each."""
    start = 8 + int.from_bytes(file.read(8), "little")
    listed = json.loads(file.read(start - 8))
    listed.pop("__metadata__", None)
    return start, listed


def _mapped(
    data: np.ndarray, *, dtype: str, shape: list[int], data_offsets: list[int]
) -> np.ndarray:
    return data[slice(*data_offsets)].view(KINDS[dtype]).reshape(shape)


def _array(
    file: FileIO, start: int, *, dtype: str, shape: list[int], data_offsets: list[int]
) -> np.ndarray:
    array = np.empty(shape, KINDS[dtype])
    rest = raw(array)
    file.seek(start + data_offsets[0])
    while rest:
        count = file.readinto(rest)
        if not count:
            raise ValueError("it ends before its last array")
        rest = rest[count:]
    return array


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    if not path.is_file():
        raise FormatError(f"there is no {path.name} in {path.parent}.", "check the model's path.")
    try:
        yield
    except (SafetensorError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise FormatError(
            f"{path} is not a safetensors file: {error}", "restore it from a copy."
        ) from error


def _lock_file(path: Path) -> Any:
    """For reading only: whoever may just look at a workspace can still wait for it to be at rest."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CREAT | NOT_VIA_LINKS | AT_ONCE, PRIVATE)
    except OSError as problem:
        message = f"nothing was changed: {path} cannot be opened ({problem.strerror})."
        fix = "run it as the owner of the folder, on a disk that can be written."
        raise EffaceError(message, fix) from problem
    return os.fdopen(handle, "rb")


@contextmanager
def locked(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock file, waiting for whoever has it. The system frees it when its holder dies.

    ``waiting`` is called once if somebody has it. The lock is the system's own (``flock``, on Windows
    ``LockFileEx``), on a file that stays: nothing has to be cleaned up after a crash.
    """
    make_folder(path.parent)
    with _lock_file(path) as file:
        if not lock_descriptor(file.fileno(), blocking=False):
            waiting()
            lock_descriptor(file.fileno())
        yield  # closing the file frees the lock
