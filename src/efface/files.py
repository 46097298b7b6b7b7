"""Reading and writing, safely: safetensors and JSON only, a schema in every file, atomic writes."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from efface.errors import FormatError


def write_bytes(path: Path, data: bytes) -> None:
    """Write beside, fsync, then rename: a reader sees the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, values: Mapping[str, Any], *, indent: int | None = 1) -> None:
    """No ``indent`` for what is long: only then json's fast encoder is used."""
    write_bytes(path, json.dumps(values, indent=indent, sort_keys=True).encode())


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """Read a file whose ``schema`` field must be exactly ``schema``."""
    if not path.is_file():
        raise FormatError(f"there is no {path.name} in {path.parent}.", "check the model's path.")
    try:
        values = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise FormatError(f"{path} is not JSON: {error}", "restore it from a copy.") from error
    found = values.get("schema") if isinstance(values, dict) else None
    if found != schema:
        raise FormatError(
            f"{path} has schema {found!r}; this version of efface reads {schema!r}.",
            "install the version of efface that wrote it, or train again.",
        )
    return values


def read_text(path: Path) -> str:
    if not path.is_file():
        raise FormatError(f"there is no {path.name} in {path.parent}.", "restore it from a copy.")
    return path.read_text()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    # Clones, because safetensors refuses tensors that share memory (tied weights).
    plain = {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    save_file(plain, temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FormatError(f"there is no {path.name} in {path.parent}.", "check the model's path.")
    try:
        # Clones, because the file's own memory is not aligned, and float kernels round by alignment.
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise FormatError(f"{path} is not a safetensors file: {error}") from error


@contextmanager
def locked(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock file, waiting for whoever has it. The system frees it when its holder dies.

    ``waiting`` is called once if somebody has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
