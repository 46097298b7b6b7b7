"""Jobs that kill their worker. Workers import this file, so it imports nothing that takes long."""

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

MARKS = "EFFACE_TEST_MARKS"  # the folder in which workers leave word


def fragile(folder: str) -> None:
    """The first to come is killed."""
    try:
        (Path(folder) / "killed").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def always_killed(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refused(_: object) -> None:
    """Says what is wrong, as our own errors do."""
    from efface.errors import EffaceError

    raise EffaceError("photo 7 is no image.", "remove it.")


def killed_midway(job: Any) -> None:
    """A shard of a real training; the first worker to have its rows on disk is killed before they count."""
    from efface.pipeline import sharded

    marks, rename = Path(os.environ[MARKS]), os.rename
    handle, _ = tempfile.mkstemp(prefix="begun-", dir=marks)
    os.write(handle, job.shard.encode())
    os.close(handle)

    def dying(source: Any, target: Any) -> None:
        try:
            with (marks / "killed").open("x") as mark:
                mark.write(job.shard)
        except FileExistsError:
            rename(source, target)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    os.rename = dying
    try:
        sharded.make_missing(job)
    finally:
        os.rename = rename


def noted_device(job: Any) -> None:
    """A shard of a real training; the worker leaves word of where it was told to compute."""
    from efface.pipeline import sharded

    handle, _ = tempfile.mkstemp(prefix="device-", dir=os.environ[MARKS])
    os.write(handle, job.device.encode())
    os.close(handle)
    sharded.make_missing(job)
