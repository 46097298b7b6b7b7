"""Jobs on a Ray cluster: Ray Data maps them over its workers, and repeats what a lost worker had."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from efface.errors import EffaceError
from efface.progress import Progress
from efface.shards.engine import Engine, Job, tell


class RayEngine(Engine):
    """``address`` is ``ray://HOST:PORT``; None joins a cluster that is running, else starts one here.

    All workers must reach the folders of the jobs: shared storage, on more than one machine. ``device`` is
    where jobs compute: Ray hides its graphics cards from those that do not ask for one.
    """

    name = "ray"

    def __init__(self, address: str | None = None, device: str = "cpu") -> None:
        self.address, self.device = address, device
        _ray()

    @property
    def workers(self) -> int:
        with _connected(self.address) as ray:
            resources = ray.cluster_resources()
            name = "GPU" if cards_for(self.device, resources) else "CPU"
            return max(int(resources.get(name, 1)), 1)

    def run(self, job: Job, values: Sequence[Any], progress: Progress | None = None) -> None:
        with _connected(self.address) as ray:
            cards = cards_for(self.device, ray.cluster_resources())
            todo = ray.data.from_items([{"at": i} for i in range(len(values))])
            todo = todo.repartition(len(values))
            shared = ray.put((job, list(values)))

            def do(batch: dict[str, Any]) -> dict[str, Any]:
                function, all_values = ray.get(shared)
                told = [_told(function, all_values[int(at)]) for at in batch["at"]]
                return {"at": batch["at"], "error": np.array(told, dtype=object)}

            asked = {"num_gpus": cards} if cards else {}
            done = todo.map_batches(
                do, batch_size=1, **asked
            )  # tasks of a lost worker are run again
            self._follow(done, len(values), progress)

    def _follow(self, done: Any, total: int, progress: Progress | None) -> None:
        for i, row in enumerate(done.iter_rows(), 1):
            if row["error"]:
                raise EffaceError(*json.loads(row["error"]))
            tell(progress, i, total)


def cards_for(device: str, resources: Mapping[str, float]) -> int:
    """How many graphics cards a job asks Ray for, in a cluster with these resources."""
    kind, _, number = device.partition(":")
    there = resources.get("GPU", 0) >= 1
    if kind == "auto":
        return int(there)
    if kind != "cuda":
        return 0
    if number:
        fix = "use --device cuda."
        raise EffaceError(f"Ray itself says which card a job gets, so it cannot be {device}.", fix)
    if not there:
        raise EffaceError("the Ray cluster has no graphics card.", "use --device cpu.")
    return 1


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
