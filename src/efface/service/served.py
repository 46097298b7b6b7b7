"""The model in memory: predictions go on while another release is made, and switch to it at once.

It is a ``Serving`` (``workspace/serving.py``) that predictions do not refresh: a thread does, and tells the
ledger which release this server has.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from efface.data.preprocess import Preprocess
from efface.errors import EffaceError, FormatError
from efface.ledger import Ledger
from efface.model.mixed_linear import MixedLinear
from efface.workspace.published import current
from efface.workspace.serving import Serving

LOOK_SECONDS, TELL_SECONDS = 0.2, 2.0
MOST = 1000  # classes that a prediction may name
STALE_SECONDS = 10.0  # a server that was not heard of for so long is gone


class ImageError(EffaceError):
    """An image that no prediction can be made of."""


class ServedModel:
    """The published release of a workspace. ``start`` keeps it fresh and tells the ledger which one it is."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path, self.ledger, self.name = path, ledger, secrets.token_hex(8)
        if current(path) is None:
            fix = "give what `efface train` has written."
            raise EffaceError(f"{path} is not a workspace.", fix)
        self.serving = Serving(path, top=MOST, prepare=_warm)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._follow, self._beat)
        ]

    @property
    def release(self) -> int:
        release = self.serving.release
        assert release is not None  # it is a workspace
        return release

    @property
    def classes(self) -> tuple[str, ...]:
        return self.serving.classes

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
        return self.serving.refresh()

    def _follow(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            with contextlib.suppress(EffaceError, OSError):  # /ready says so if it lasts
                if self.refresh():
                    self._tell()

    def _beat(self) -> None:
        """While a release is being loaded, say that this server lives and still has the older one."""
        while not self._stop.wait(TELL_SECONDS):
            with contextlib.suppress(EffaceError, OSError):
                if not self.serving.is_current:
                    self._tell()

    def _tell(self) -> None:
        """The worker waits for servers to have the new release before a request counts as done."""
        with self.ledger.transaction() as tx:
            tx.execute("DELETE FROM service_servers WHERE name = ?", (self.name,))
            tx.execute(
                "INSERT INTO service_servers (name, release, seen) VALUES (?, ?, ?)",
                (self.name, self.release, time.time()),
            )

    def predict(self, image: bytes, top: int = 5) -> dict[str, Any]:
        """The likeliest classes of one encoded image, with their scores, and the release that says so."""
        try:
            (found,) = self.serving.predict([image], follow=False)
        except FormatError as problem:  # not of the size that the model is for
            raise ImageError(
                problem.message, "send an image like those it was trained on."
            ) from None
        except EffaceError:
            raise ImageError("this is no image that can be read.", "send PNG or JPEG.") from None
        best = list(found.scores.items())[:top]
        listed = [{"label": name, "score": round(score, 6)} for name, score in best]
        return {"release": found.release, "label": found.label, "scores": listed}


def _warm(model: MixedLinear) -> None:
    """A gray image, so that the first prediction has nothing left to load."""
    read = model.core.backbone.preprocess
    channels = read.channels if isinstance(read, Preprocess) else 1
    with contextlib.suppress(EffaceError):  # a model for images of one size has another one
        model.logits(np.full((1, 32, 32, channels), 128, np.uint8))


def lagging(ledger: Ledger, release: int, since: float, now: float | None = None) -> int:
    """How many living servers still have an older release in memory than that published at ``since``.

    One that has said nothing from then on for so long is gone.
    """
    now = time.time() if now is None else now
    heard = 0.0 if now - since < STALE_SECONDS else now - STALE_SECONDS
    sql = "SELECT COUNT(*) FROM service_servers WHERE release < ? AND seen > ?"
    return int(ledger.query(sql, (release, heard))[0][0])
