"""Threads for the solve: our own, with one BLAS thread each.

BLAS libraries divide every product among threads that then wait for each other, spinning. On a machine that
has other work, too, one of them is always late, and a solve with its hundreds of small products was seen to
take ten times as long. Here a thread gets a large piece of work and waits for nobody. Which one does what
changes no result: sums are exact, or they are only a way to the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Workers:
    """``count`` threads; one is the caller's own, which needs no pool."""

    count: int = 1
    pool: ThreadPoolExecutor | None = None

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """``work`` on every item, in whatever order; the results in that of the items."""
        if self.pool is None:
            return [work(item) for item in items]
        return list(self.pool.map(work, items))

    def shares(self, size: int, least: int = 1) -> list[slice]:
        """``range(size)`` in pieces, one a worker, none below ``least``."""
        count = max(min(self.count, size // least), 1)
        ends = np.linspace(0, size, count + 1).astype(int).tolist()
        return [slice(start, stop) for start, stop in pairwise(ends)]


_current: ContextVar[Workers] = ContextVar("workers", default=Workers())  # noqa: B039


def workers() -> Workers:
    """Those of the solve that is running; else the caller alone."""
    return _current.get()


@contextmanager
def working() -> Iterator[Workers]:
    """As many workers as BLAS has threads now, and BLAS with one until the end.

    Within another, its workers.
    """
    if workers().pool is not None:  # BLAS has one thread then, which says nothing of the machine
        yield workers()
        return
    controller = ThreadpoolController().select(user_api="blas")
    count = max((library["num_threads"] for library in controller.info()), default=1)
    with controller.limit(limits=1):
        if count == 1:
            yield from _as_current(Workers())
            return
        with ThreadPoolExecutor(count) as pool:
            yield from _as_current(Workers(count, pool))


def _as_current(made: Workers) -> Iterator[Workers]:
    token = _current.set(made)
    try:
        yield made
    finally:
        _current.reset(token)
