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
from dataclasses import dataclass, field

import numpy as np

from efface.data.images import ArrayImage
from efface.data.looks import Seen, key_of, look_of
from efface.data.pictures import Shown
from efface.data.preparation import Unfit
from efface.data.record import Depicted, Split, checked_image
from efface.errors import EffaceError, RecordError

Prepare = Callable[[np.ndarray], np.ndarray]
Loaded = tuple[np.ndarray, str | None]  # prepared pixels, and the look

WORTH_PROCESSES = 64  # images; fewer are decoded before a process has started
AHEAD = 2  # batches that are read before they are asked for
MOST_THREADS = 4


@dataclass(frozen=True)
class Loader:
    """Reads images ahead.

    Args:
        workers: processes that decode; 0 is threads of this one. They are started anew (``spawn``), so a
            script that has some must do its work below ``if __name__ == "__main__":``.
        seen: where the looks of training records are put as they are decoded, so that a workspace need not
            decode them again; None: nowhere.
    """

    workers: int = 0
    seen: Seen | None = field(default=None, repr=False, compare=False)

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
        waiting: deque[tuple[Shown, list[Future[Loaded]]]] = deque()
        pool = self._pool(shown)

        def submit(count: int) -> None:
            for _, start in zip(range(count), starts, strict=False):
                batch = shown[start : start + size]
                futures = [pool.submit(loaded, one, prepare, self._asks(one)) for one in batch]
                waiting.append((batch, futures))

        try:
            submit(AHEAD)
            while waiting:
                batch, futures = waiting.popleft()
                found = [_result(name, f) for name, f in zip(batch.ids, futures, strict=True)]
                submit(1)
                arrays = [self._noted(batch[i], one) for i, one in enumerate(found)]
                yield batch, stacked(batch.ids, arrays)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def one(self, shown: Depicted, prepare: Prepare) -> np.ndarray:
        """One image as the network wants it; an error names its record."""
        return self._noted(shown, loaded(shown, prepare, self._asks(shown)))

    def _asks(self, shown: Depicted) -> bool:
        """Whether the look of this image is wanted: of what is trained on, once."""
        if self.seen is None or getattr(shown, "split", Split.TEST) is Split.TEST:
            return False
        return key_of(shown) not in self.seen

    def _noted(self, shown: Depicted, found: Loaded) -> np.ndarray:
        array, look = found
        if look is not None and self.seen is not None:
            self.seen[key_of(shown)] = look
        return array

    def _pool(self, shown: Shown) -> Executor:
        if self.workers and len(shown) >= WORTH_PROCESSES and all(map(_portable, shown)):
            context = multiprocessing.get_context("spawn")
            return ProcessPoolExecutor(min(self.workers, len(shown)), mp_context=context)
        return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1))


def loaded(shown: Depicted, prepare: Prepare, with_look: bool) -> Loaded:
    """One image as the network wants it, decoded once; and its look, if that is asked for."""
    pixels = checked_image(shown)
    try:
        prepared = prepare(pixels)
    except Unfit as problem:
        raise RecordError(shown.id, problem.message, problem.fix) from problem
    return prepared, look_of(pixels) if with_look else None


def _portable(shown: Depicted) -> bool:
    """Whether it is worth sending to another process: not with the array of all images."""
    return not isinstance(shown.source, ArrayImage)


def _result(record: str, future: Future[Loaded]) -> Loaded:
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
