"""Jobs that kill their worker. Workers import this file, so it imports nothing that takes long."""

import os
import signal
from pathlib import Path


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
