"""The model in memory: predictions go on while another release is made, and switch to it at once.

``predict`` takes whatever model is there when it begins. A thread looks at the workspace's CURRENT;
when it names another release that one is loaded beside the old one and put in its place by one
assignment.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efface.errors import EffaceError, FormatError
from efface.ledger import Ledger
from efface.model.mixed_linear import MixedLinear
from efface.workspace.published import Current, current, load

LOOK_SECONDS, TELL_SECONDS = 0.2, 2.0
STALE_SECONDS = 10.0  # a server that was not heard of for so long is gone


class ImageError(EffaceError):
    """An image that no prediction can be made of."""


@dataclass(frozen=True)
class Loaded:
    """A release and its model."""

    current: Current
    model: MixedLinear

    @property
    def release(self) -> int:
        return self.current.release


class ServedModel:
    """The published release of a workspace. ``start`` keeps it fresh and tells the ledger which one it is."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path, self.ledger, self.name = path, ledger, secrets.token_hex(8)
        self._loaded = _load(path)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._follow, self._beat)
        ]

    @property
    def release(self) -> int:
        return self._loaded.release

    @property
    def classes(self) -> tuple[str, ...]:
        return self._loaded.model.classes

    def start(self) -> None:
        self._tell()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with self.ledger.transaction() as tx:
            tx.execute("DELETE FROM service_servers WHERE name = ?", (self.name,))

    def refresh(self) -> bool:
        """Take the release that is published now; whether it is another one."""
        if current(self.path) == self._loaded.current:
            return False
        self._loaded = _load(self.path)
        return True

    def _follow(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            with contextlib.suppress(EffaceError, OSError):  # /ready says so if it lasts
                if self.refresh():
                    self._tell()

    def _beat(self) -> None:
        """While a release is being loaded, say that this server lives and still has the older one."""
        while not self._stop.wait(TELL_SECONDS):
            with contextlib.suppress(EffaceError, OSError):
                if current(self.path) != self._loaded.current:
                    self._tell()

    def _tell(self) -> None:
        """The worker waits for servers to have the new release before a request counts as done."""
        with self.ledger.transaction() as tx:
            tx.execute("DELETE FROM service_servers WHERE name = ?", (self.name,))
            tx.execute(
                "INSERT INTO service_servers (name, release, seen) VALUES (?, ?, ?)",
                (self.name, self._loaded.release, time.time()),
            )

    def predict(self, image: bytes, top: int = 5) -> dict[str, Any]:
        """The likeliest classes of one encoded image, with their scores, and the release that says so."""
        loaded = self._loaded  # one release for the whole answer
        model = loaded.model
        try:
            logits = model.logits([image])
        except FormatError as problem:  # not of the size that the model is for
            raise ImageError(
                problem.message, "send an image like those it was trained on."
            ) from None
        except EffaceError:
            raise ImageError("this is no image that can be read.", "send PNG or JPEG.") from None
        scores, order = logits.softmax(1)[0].sort(descending=True, stable=True)
        names = [model.classes[i] for i in order[:top].tolist()]
        rounded = [round(score, 6) for score in scores[:top].tolist()]
        listed = [{"label": n, "score": s} for n, s in zip(names, rounded, strict=True)]
        return {"release": loaded.release, "label": names[0], "scores": listed}


def _blank(model: MixedLinear) -> np.ndarray:
    """A gray image of the model's kind, (1, h, w, channels)."""
    return np.full((1, 32, 32, model.core.backbone.preprocess.channels), 128, np.uint8)


def _load(path: Path) -> Loaded:
    while True:
        before = current(path)
        if before is None:
            raise EffaceError(
                f"{path} is not a workspace.", "give what `efface train` has written."
            )
        model = load(path)
        with contextlib.suppress(EffaceError):  # a model for images of one size has another one
            model.logits(_blank(model))  # so that the first prediction has nothing left to load
        if current(path) == before:  # else it is not known which one was read
            return Loaded(before, model)


def lagging(ledger: Ledger, release: int, since: float, now: float | None = None) -> int:
    """How many living servers still have an older release in memory than that published at ``since``.

    One that has said nothing from then on for so long is gone.
    """
    now = time.time() if now is None else now
    heard = 0.0 if now - since < STALE_SECONDS else now - STALE_SECONDS
    sql = "SELECT COUNT(*) FROM service_servers WHERE release < ? AND seen > ?"
    return int(ledger.query(sql, (release, heard))[0][0])
