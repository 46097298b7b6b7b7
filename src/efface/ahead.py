"""Reading ahead: the next things are fetched in a thread of their own while this one is worked on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_END = object()


def ahead(items: Iterable[T], depth: int = 1) -> Iterator[T]:
    """``items`` in their order, ``depth`` of them fetched before they are asked for.

    An error in one is raised where that one is asked for. Whoever stops half way leaves no thread behind.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="efface-ahead") as pool:
        waiting = deque(pool.submit(next, iterator, _END) for _ in range(depth))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, iterator, _END))
            yield item  # type: ignore[misc]  # not the mark of the end
