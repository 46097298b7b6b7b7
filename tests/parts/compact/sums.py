"""Rows to sum up, and kernels at sizes of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest

from efface.errors import EffaceError
from efface.parts.compact import exact as exact_module
from efface.parts.compact import statistics as module
from efface.parts.compact.exact import Kernel, int8_kernel_is_exact
from efface.parts.compact.statistics import Statistics

Arrays = tuple[np.ndarray, np.ndarray]

KERNELS = [kernel for kernel in Kernel if kernel is not Kernel.INT8 or int8_kernel_is_exact()]


@contextmanager
def tuned(strip: int, block: int, kernel: Kernel | None = None) -> Iterator[None]:
    """Small strips and blocks, and a given kernel, so that small cases take every path."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(module, "STRIP", strip))
        stack.enter_context(mock.patch.dict(exact_module.BLOCK_ROWS, dict.fromkeys(Kernel, block)))
        if kernel is not None:
            stack.enter_context(forced(kernel))
        yield


@contextmanager
def forced(kernel: Kernel) -> Iterator[None]:
    """One kernel for every block, but for single rows, which the int8 one is never given."""

    def pick(bits: int, num_rows: int) -> Kernel:
        return kernel if num_rows > 1 else Kernel.FLOAT64

    with mock.patch.object(module, "pick_kernel", pick):
        yield


def random_rows(n: int, k: int, c: int, bits: int = 8, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    top = 2 ** (bits - 1) - 1
    rows = rng.integers(-top, top, (n, k), endpoint=True, dtype=np.int16)
    return rows, rng.integers(-32767, 32767, (n, c), endpoint=True, dtype=np.int16)


def fitted(rows: np.ndarray, targets: np.ndarray, **options: int) -> Statistics:
    statistics = Statistics(rows.shape[1], targets.shape[1], **options)
    statistics.add(rows, targets)
    return statistics


def refused(statistics: Statistics, action: Callable[[], None], message: str) -> None:
    before, arrays = statistics.digest(), statistics.to_arrays()
    with pytest.raises(EffaceError, match=message):
        action()
    assert statistics.digest() == before
    for key, value in statistics.to_arrays().items():
        np.testing.assert_array_equal(value, arrays[key])
