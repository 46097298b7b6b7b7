"""Engines: who runs the jobs of a training in shards.

A job is a function at the top of a module and one plain value; its outcome lies in a folder that appears
whole or not at all. So an engine may run it anywhere, and again if it was killed.
"""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from efface.errors import EffaceError
from efface.progress import Progress

Job = Callable[[Any], Any]
ATTEMPTS = 3  # how often a job is tried whose worker was killed


class Engine(ABC):
    """Runs jobs; abstract. An error in a job is raised here, a worker that died is replaced."""

    name: str

    @abstractmethod
    def run(self, job: Job, values: Sequence[Any], progress: Progress | None = None) -> None:
        """``job(value)`` for every value, in any order."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many jobs run at once, about."""


class HereEngine(Engine):
    """One job after the other, in this process."""

    name = "here"
    workers = 1

    def run(self, job: Job, values: Sequence[Any], progress: Progress | None = None) -> None:
        for i, value in enumerate(values):
            job(value)
            tell(progress, i + 1, len(values))


class ProcessEngine(Engine):
    """Several processes on this machine. They are started anew, so that nothing is inherited."""

    name = "processes"

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise EffaceError(f"{workers} processes cannot work.", "use at least one.")
        self._workers = workers

    @property
    def workers(self) -> int:
        return self._workers

    def run(self, job: Job, values: Sequence[Any], progress: Progress | None = None) -> None:
        left, total = list(values), len(values)
        for attempt in range(1, ATTEMPTS + 1):
            left = self._round(job, left, total, progress)
            if not left:
                return
            if attempt == ATTEMPTS:
                fix = "look for what kills them (memory?); what is finished is kept, run it again."
                raise EffaceError(f"workers died {ATTEMPTS} times.", fix)

    def _round(
        self, job: Job, values: Sequence[Any], total: int, progress: Progress | None
    ) -> list[Any]:
        """Run them; returns those that were lost because a worker died."""
        lost = []
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, mp_context=context) as pool:
            waiting = {pool.submit(job, value): value for value in values}
            for future in as_completed(waiting):
                try:
                    future.result()
                except BrokenProcessPool:
                    lost.append(waiting[future])
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
                else:
                    finished = total - len(values) + sum(f.done() for f in waiting) - len(lost)
                    tell(progress, finished, total)
        return lost


def tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done / total, f"{done} of {total} shards")
