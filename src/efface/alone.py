"""One record at a time: what a network computes of a record then depends on nothing but the record.

Float kernels choose their order of adding by shape, place in the batch, memory alignment and number of
threads, and with it the last bits. So where a network computes in floats every record goes through it alone,
in memory of its own (torch aligns what it allocates), on one thread. Cores are used by several records at
once, not by several threads on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import torch

T = TypeVar("T")
CHUNK = 64  # how many results wait for the caller at most


def one_by_one(make: Callable[[], Callable[[int], T]], count: int) -> Iterator[T]:
    """``f(0), f(1), …, f(count − 1)`` in this order, f = ``make()``, each on one computing thread.

    As many at once as torch has threads now; each worker makes an f of its own, so an f may keep state.
    """
    workers = min(torch.get_num_threads(), count)
    if workers <= 1:
        f = make() if count else None
        for i in range(count):
            assert f is not None
            with one_thread():
                result = f(i)
            yield result
        return
    free: list[
        Callable[[int], T]
    ] = []  # the f's of workers that are not computing; list operations are atomic

    def call(i: int) -> T:
        torch.set_num_threads(1)  # of this worker
        f = free.pop() if free else make()
        try:
            return f(i)
        finally:
            free.append(f)

    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, count, CHUNK):
            with one_thread():
                results = list(pool.map(call, range(start, min(start + CHUNK, count))))
            yield from results


def shared_out(task: Callable[[range], None], count: int) -> None:
    """``task`` of as many equal shares of ``range(count)`` as torch has threads, each on one of its own.

    For work of many small steps that torch does not divide itself, products of one matrix and one vector
    above all.
    """
    workers = min(torch.get_num_threads(), count)
    if workers <= 1:
        return task(range(count))
    ends = [count * i // workers for i in range(workers + 1)]
    shares = [range(begin, end) for begin, end in pairwise(ends)]

    def call(share: range) -> None:
        torch.set_num_threads(1)  # of this worker
        task(share)

    with one_thread(), ThreadPoolExecutor(workers) as pool:
        list(pool.map(call, shares))
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """While it lasts, torch computes on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
