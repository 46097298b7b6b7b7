"""Jobs on a Ray cluster: Ray Data maps them over its workers, and repeats what a lost worker had."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from efface.errors import EffaceError
from efface.progress import Progress
from efface.shards.engine import Engine, Job, tell


class RayEngine(Engine):
    """``address`` is ``ray://HOST:PORT``; None joins a cluster that is running, else starts one here.

    All workers must reach the folders of the jobs: shared storage, on more than one machine.
    """

    name = "ray"

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        _ray()

    @property
    def workers(self) -> int:
        with _connected(self.address) as ray:
            return max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def run(self, job: Job, values: Sequence[Any], progress: Progress | None = None) -> None:
        with _connected(self.address) as ray:
            todo = ray.data.from_items([{"at": i} for i in range(len(values))])
            todo = todo.repartition(len(values))
            shared = ray.put((job, list(values)))

            def do(batch: dict[str, Any]) -> dict[str, Any]:
                function, all_values = ray.get(shared)
                told = [_told(function, all_values[int(at)]) for at in batch["at"]]
                return {"at": batch["at"], "error": np.array(told, dtype=object)}

            done = todo.map_batches(do, batch_size=1)  # tasks of a lost worker are run again
            self._follow(done, len(values), progress)

    def _follow(self, done: Any, total: int, progress: Progress | None) -> None:
        for i, row in enumerate(done.iter_rows(), 1):
            if row["error"]:
                raise EffaceError(*json.loads(row["error"]))
            tell(progress, i, total)


def _told(job: Job, value: Any) -> str:
    """Nothing, or what an error of ours says: as a result, since Ray's errors do not keep their causes."""
    try:
        job(value)
    except EffaceError as error:
        return json.dumps([error.message, error.fix])
    return ""


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
        import ray.data
    except ImportError as problem:
        fix = "pip install 'efface[ray]', or use --engine processes:4."
        raise EffaceError("the ray package is not installed.", fix) from problem
    return ray


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, started or joined if it is not yet; what was started here ends here."""
    ray = _ray()
    mine = not ray.is_initialized()
    if mine:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is not None:
            options["address"] = address
        else:
            options["include_dashboard"] = False
        ray.init(**options)
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()
