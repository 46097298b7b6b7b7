"""Predictions from whatever is published: from any number of threads, from one release to the next.

``Serving`` keeps the published model in memory. Before each call it looks at the workspace's CURRENT; when
that names another release, one thread loads it beside the old one and puts it in its place, while others go
on. The network stays where the core did, so a switch takes as long as reading the user weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from efface.data.pictures import Shown
from efface.errors import RecordError
from efface.model.mixed_linear import MixedLinear
from efface.workspace.published import Current, PublishedModel, current, load_current

TOGETHER = 32  # images that are decoded before a network sees them, where bad ones are left out


@dataclass(frozen=True)
class Prediction:
    """What one release sees in one image. Of an image that cannot be read only ``problem`` is said."""

    label: str | None
    scores: dict[str, float]  # of the likeliest classes, best first: softmax, not calibrated
    release: int | None
    problem: str | None = None


class Serving:
    """The model that a folder serves, always the published release.

    Args:
        directory: a workspace, or a model that was saved alone (which has no releases to follow).
        module: the network, if it was made of code (see ``efface.load``).
        top: how many classes a prediction names.
        prepare: is given each model before it takes its place, to load what the first prediction would.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        module: nn.Module | None = None,
        top: int = 3,
        prepare: Callable[[MixedLinear], object] = lambda _: None,
    ) -> None:
        self.directory, self.module, self.top = Path(directory), module, top
        self._prepare = prepare
        self._loaded = self._load(None)
        self._loading = threading.Lock()

    def _load(self, before: PublishedModel | None) -> PublishedModel:
        found = load_current(self.directory, module=self.module, before=before)
        found.model.user.settle()  # now, and not while somebody waits for a prediction
        self._prepare(found.model)
        return found

    @property
    def classes(self) -> tuple[str, ...]:
        return self._loaded.model.classes

    @property
    def release(self) -> int | None:
        """The number of the release that is in memory now."""
        published = self._loaded.current
        return None if published is None else published.release

    def refresh(self) -> bool:
        """Take the release that is published now; whether it is another one than before."""
        if self._is_current(current(self.directory)) or not self._loading.acquire(blocking=False):
            return False  # or another thread is at it
        try:
            before = self._loaded
            self._loaded = self._load(before)
            return self._loaded.current != before.current
        finally:
            self._loading.release()

    def _is_current(self, published: Current | None) -> bool:
        return self._loaded.current == published

    @property
    def is_current(self) -> bool:
        """Whether the release in memory is the published one."""
        return self._is_current(current(self.directory))

    def predict(
        self, images: Sequence[Any], *, skip_bad: bool = False, follow: bool = True
    ) -> list[Prediction]:
        """One prediction an image, all of the same release, in order.

        Without ``follow`` it is the release in memory: somebody else calls :meth:`refresh`.
        ``images`` are Pillow images, arrays, encoded bytes, paths or file URLs. One that cannot be read is a
        RecordError; with ``skip_bad`` its prediction has a ``problem`` instead of a label.
        """
        if follow:
            self.refresh()
        loaded = self._loaded  # one release for all of them, whatever is published meanwhile
        if not skip_bad:
            return self._answer(loaded, loaded.model.shown(images))
        found: list[Prediction] = []
        for start in range(0, len(images), TOGETHER):
            found += self._answer_good(loaded, images[start : start + TOGETHER])
        return found

    def _answer_good(self, loaded: PublishedModel, images: Sequence[Any]) -> list[Prediction]:
        """Those that can be read in one batch, and what is wrong with the others, in order."""
        answers: dict[int, Prediction] = {}
        good: dict[int, np.ndarray] = {}
        for i, image in enumerate(images):
            try:
                (picture,) = loaded.model.shown([image])
                good[i] = picture.image()
            except RecordError as problem:
                answers[i] = self._refused(loaded, problem)
        try:
            together = self._answer(loaded, loaded.model.shown(list(good.values())))
            answers |= dict(zip(good, together, strict=True))
        except RecordError:  # sizes that do not fit together: each for itself
            answers |= {i: self._answer_one(loaded, pixels) for i, pixels in good.items()}
        return [answers[i] for i in range(len(images))]

    def _answer_one(self, loaded: PublishedModel, pixels: np.ndarray) -> Prediction:
        try:
            return self._answer(loaded, loaded.model.shown([pixels]))[0]
        except RecordError as problem:
            return self._refused(loaded, problem)

    def _refused(self, loaded: PublishedModel, problem: RecordError) -> Prediction:
        release = None if loaded.current is None else loaded.current.release
        return Prediction(None, {}, release, problem.message)

    def _answer(self, loaded: PublishedModel, pictures: Shown) -> list[Prediction]:
        model = loaded.model
        release = None if loaded.current is None else loaded.current.release
        scores, order = model.logits(pictures).softmax(1).sort(dim=1, descending=True, stable=True)
        best = zip(scores[:, : self.top].tolist(), order[:, : self.top].tolist(), strict=True)
        named = [{model.classes[i]: s for s, i in zip(*row, strict=True)} for row in best]
        return [Prediction(next(iter(scores)), scores, release) for scores in named]
