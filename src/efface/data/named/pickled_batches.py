"""The Python batches of CIFAR-10: pickles, read without running them.

A pickle names functions and has them called. Here the names that an array needs are answered with stand-ins
of this file that only keep what they are given, any other name is an error, and numpy sees bytes and a shape,
not the pickle. What comes back are dictionaries, lists, numbers, text, bytes and arrays of bytes.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from efface.errors import FormatError
from efface.regular import read_regular

BYTES_TYPE = (b"u1", "u1")


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.is_bytes = name in BYTES_TYPE

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which bytes do not have."""


class _Array:
    """Stands in for numpy.ndarray: keeps the state that numpy would restore."""

    state: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def restored(self) -> np.ndarray:
        """``(version, shape, dtype, fortran order, bytes)`` as an array of bytes."""
        _, shape, dtype, fortran, data = self.state
        plain = isinstance(dtype, _Dtype) and dtype.is_bytes and not fortran
        if not plain or not isinstance(data, bytes) or len(data) != math.prod(shape):
            raise ValueError("an array that is not made of bytes")
        return np.frombuffer(data, np.uint8).reshape(shape)


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Reader(pickle._Unpickler):
    """The implementation in Python: the one in C allocates whatever a damaged file asks for. So does this
    one for a bytearray, which no batch has."""

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it asks for a bytearray")

    dispatch = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: _refuse}  # type: ignore[dict-item]  # noqa: RUF012

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return STAND_INS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def read_batch(path: Path) -> dict[Any, Any]:
    """The dictionary in the file, with its arrays restored; a file that asks for more is an error."""
    fix = "take the official archive, or its binary version (efface data get cifar10)."
    try:
        content = _Reader(io.BytesIO(read_regular(path)), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError("not a dictionary")
        return {k: v.restored() if isinstance(v, _Array) else v for k, v in content.items()}
    except Exception as problem:  # a damaged pickle can raise anything
        raise FormatError(f"{path} is no batch of CIFAR-10 ({problem}).", fix) from problem
