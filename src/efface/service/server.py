"""Running it: the server in this process, the worker in one of its own, which ends when the server does."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn

from efface.service.app import make_app
from efface.service.keys import ApiKeys, Role
from efface.service.office import Office
from efface.service.place import Place
from efface.service.worker import Worker

FIRST_KEY = "first"
AGAIN_SECONDS = 1.0
log = logging.getLogger("efface.service")


def first_key(keys: ApiKeys) -> str | None:
    """A key for whoever starts a new service; None if there are keys."""
    return None if keys.all() else keys.new(FIRST_KEY, Role.OPERATE)


class WorkerProcess:
    """The worker as a child: it ends when its standard input does, so it cannot outlive the server."""

    def __init__(self, path: Path, config: Path | None) -> None:
        self._words = [sys.executable, "-m", "efface.service.child", str(path.resolve())]
        self._words += [str(config.resolve())] if config else []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            child = subprocess.Popen(self._words, stdin=subprocess.PIPE)
            while child.poll() is None and not self._stop.wait(0.1):
                pass
            if self._stop.is_set():
                assert child.stdin is not None
                child.stdin.close()
                child.wait()
                return
            log.error("the worker ended with %s and is started again", child.returncode)
            self._stop.wait(AGAIN_SECONDS)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def serve(
    path: Path,
    config: Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    worker: bool = True,
    told: Callable[[str | None], None] = lambda key: None,
) -> None:
    """Serve until a signal. ``told`` is given the first key, if this is a new service."""
    start_logging()
    with Place.open(path, config) as place:
        office = Office(place)
        told(first_key(office.keys))
        child = WorkerProcess(path, config) if worker else None
        try:
            uvicorn.run(
                make_app(office),
                host=host,
                port=port,
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=5,
            )
        finally:
            if child is not None:
                child.stop()


def work(path: Path, config: Path | None, stop: threading.Event) -> None:
    """A worker in this process, until ``stop``."""
    start_logging()
    with Place.open(path, config) as place:
        Worker(place).run(stop)


def start_logging() -> None:
    """Times, levels, messages on stderr; only ours, since libraries may log what they are given."""
    logger = logging.getLogger("efface")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(os.environ.get("EFFACE_LOG", "INFO"))
