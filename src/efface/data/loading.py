"""Loading: images read, decoded and brought to the network's size while it works on those before.

Decoding is done by threads, or by processes of their own (``workers``): then Python's lock is no limit, and a
decoder that crashes on a damaged file does not take this process with it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from efface.data.images import ArrayImage
from efface.data.pictures import Shown
from efface.data.record import Depicted, checked_image
from efface.errors import EffaceError, RecordError

Prepare = Callable[[np.ndarray], np.ndarray]

WORTH_PROCESSES = 64  # images; fewer are decoded before a process has started
AHEAD = 2  # batches that are read before they are asked for
MOST_THREADS = 4


@dataclass(frozen=True)
class Loader:
    """Reads images ahead.

    Args:
        workers: processes that decode; 0 is threads of this one. They are started anew (``spawn``), so a
            script that has some must do its work below ``if __name__ == "__main__":``.
    """

    workers: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= 1024:
            raise EffaceError(
                f"{self.workers} processes cannot decode.", "use 0 (threads) to 1024."
            )

    def batches(
        self, shown: Shown, prepare: Prepare, size: int
    ) -> Iterator[tuple[Shown, np.ndarray]]:
        """``size`` images after the others, with their prepared pixels, (b, channels, h, w)."""
        starts = iter(range(0, len(shown), size))
        waiting: deque[tuple[Shown, list[tuple[str, Future[np.ndarray]]]]] = deque()
        pool = self._pool(shown)

        def submit(count: int) -> None:
            for _, start in zip(range(count), starts, strict=False):
                batch = shown[start : start + size]
                futures = [(one.id, pool.submit(prepared, one, prepare)) for one in batch]
                waiting.append((batch, futures))

        try:
            submit(AHEAD)
            while waiting:
                batch, futures = waiting.popleft()
                arrays = [_result(name, future) for name, future in futures]
                submit(1)
                yield batch, stacked(batch.ids, arrays)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _pool(self, shown: Shown) -> Executor:
        if self.workers and len(shown) >= WORTH_PROCESSES and all(map(_portable, shown)):
            context = multiprocessing.get_context("spawn")
            return ProcessPoolExecutor(min(self.workers, len(shown)), mp_context=context)
        return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1))


def prepared(shown: Depicted, prepare: Prepare) -> np.ndarray:
    """One image as the network wants it; an error names its record."""
    return prepare(checked_image(shown))


def _portable(shown: Depicted) -> bool:
    """Whether it is worth sending to another process: not with the array of all images."""
    return not isinstance(shown.source, ArrayImage)


def _result(record: str, future: Future[np.ndarray]) -> np.ndarray:
    try:
        return future.result()
    except BrokenProcessPool as problem:
        message = "a process that decodes images died at or near it."
        raise RecordError(record, message, "look at this image, and at free memory.") from problem


def stacked(ids: Sequence[str], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Prepared images as one array; one of another size than the first is an error that names its record."""
    for name, array in zip(ids, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise RecordError(
                name,
                f"is {array.shape[1]} × {array.shape[2]} after preprocessing, others are "
                f"{arrays[0].shape[1]} × {arrays[0].shape[2]}.",
                "set a resize and crop in the preprocessing.",
            )
    return np.stack(arrays) if arrays else np.zeros((0, 1, 1, 1), dtype=np.float32)
