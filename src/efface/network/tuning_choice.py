"""Whether, how fast and how long the core's network is fine-tuned: chosen on held-out core images.

On a few images a class fine-tuning can make features worse than they came (cub40, 9 images a class), so "not
at all" is always one of the choices. Core owners are split once, by their names, and every choice is tuned on
four fifths of them. Then it is used as it will be, under a ridge regression on images of which it has seen
some: f₋ᵢ is fitted on the features of all core images but i, and asked for every held-out i,

    loss = min over λ, T of the mean of −log softmax(T · f₋ᵢ(xᵢ))[yᵢ].

All f₋ᵢ come from one decomposition. Not accuracy: that of a hundred images is too coarse to tell choices
apart. Not the squared error: it rewards features that are merely less spread out.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from efface import files
from efface.data.promises import is_core_owner
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, RecordError
from efface.network.backbone import Backbone
from efface.network.device import CPU
from efface.network.finetuning import Diverged, FineTuning, Tuned, fine_tune, network_of, run_of
from efface.network.targets import one_hot
from efface.progress import Progress, part

SCHEMA = "efface.tuning-choice/1"
NAME = "choice.json"
TUNED = "core"  # the folder, beside it, of the last run, on all core records
HELD_OUT = 0.2
RIDGES = tuple(10.0**k for k in np.arange(-3, 1.5, 0.5))  # λ : the mean of ‖h − h̄‖²
SHARPNESSES = tuple(10.0**k for k in np.arange(0, 3, 0.125))  # T


@dataclass(frozen=True)
class TuningTrial:
    """One choice, as it did on held-out core images. ``settings`` None: the network as it came."""

    settings: FineTuning | None
    loss: float  # infinite where it diverged
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class TuningChoice:
    """All trials, in the order they were asked for; the first is "not at all"."""

    trials: tuple[TuningTrial, ...]
    num_held_out: int

    @property
    def best(self) -> TuningTrial:
        """The least loss; of equals the first."""
        return min(self.trials, key=lambda trial: trial.loss)


def held_out(records: Records) -> NDArray[np.bool_]:
    """A mask of about a fifth of the records, by whole owners and their names alone.

    The names are prefixed: who is core was drawn by the hash of the plain name, so those hashes are all low.
    """
    chosen = {o for o in set(records.owners) if is_core_owner(f"held-out/{o}", HELD_OUT)}
    return np.array([owner in chosen for owner in records.owners], dtype=bool)


def left_out_scores(
    features: Tensor, labels: Tensor, scored: Tensor, num_classes: int
) -> tuple[float, float]:
    """(loss, accuracy) over the rows in the mask ``scored``, each by a ridge on all other rows.

    With K = H Hᵀ + p·11ᵀ (H centred, p its mean squared norm: a bias of the same weight) and A = (K + λI)⁻¹,
    the prediction for row i of a fit without it is yᵢ − (A y)ᵢ / Aᵢᵢ.
    """
    h = features.double() - features.double().mean(0)
    power = float((h * h).sum(1).mean())
    values, vectors = torch.linalg.eigh(h @ h.T + power)
    y, truth = one_hot(labels, num_classes, 1.0), labels[scored]
    inner, found = vectors.T @ y, []
    for ridge in RIDGES:
        inverse = 1 / (values.clamp(min=0) + ridge * power)
        spread = (vectors[scored] ** 2) @ inverse
        guess = y[scored] - (vectors[scored] * inverse) @ inner / spread[:, None]
        losses = [float(F.cross_entropy(t * guess, truth)) for t in SHARPNESSES]
        found.append((min(losses), float((guess.argmax(1) == truth).double().mean())))
    return min(found)


def choose_tuning(
    backbone: Backbone,
    records: Records,
    candidates: Sequence[FineTuning],
    *,
    folder: Path | str | None = None,
    device: torch.device = CPU,
    progress: Progress | None = None,
) -> TuningChoice:
    """Try "not at all" and every candidate on core ``records``; finished trials in ``folder`` are kept."""
    check_core(records)
    mask = held_out(records)
    part_of, rest = records[np.flatnonzero(~mask)], records[np.flatnonzero(mask)]
    if len(part_of) == 0 or len(rest) == 0:
        raise EffaceError(
            f"{len(records)} core records are too few to hold some out.",
            "leave out fine-tuning, or give more core data.",
        )
    settings = [None, *candidates]
    reading = candidates[0] if candidates else FineTuning()
    where = None if folder is None else Path(folder)
    bench = _Bench(backbone, part_of, rest, reading, where, device)
    trials, num = [], len(settings)
    for k, tried in enumerate(settings):
        told = part(progress, k / num, (k + 1) / num, f"choice {k + 1}/{num}")
        trials.append(bench.trial(tried, told))
    return TuningChoice(tuple(trials), len(rest))


def tuned_backbone(
    backbone: Backbone,
    records: Records,
    candidates: Sequence[FineTuning],
    *,
    folder: Path | str | None = None,
    device: torch.device = CPU,
    progress: Progress | None = None,
) -> tuple[Backbone, TuningChoice]:
    """For a core: fine-tuned on all core ``records`` as was best on held-out ones, or as it came.

    ``Core(backbone, …)`` saves these weights with the core, as it does all weights.
    """
    told = part(progress, 0, 0.7)
    chosen = choose_tuning(
        backbone, records, candidates, folder=folder, device=device, progress=told
    )
    settings = chosen.best.settings
    if settings is None:
        return backbone, chosen
    where = None if folder is None else Path(folder) / TUNED
    told = part(progress, 0.7, 1, "core")
    tuned = fine_tune(backbone, records, settings, folder=where, device=device, progress=told)
    return tuned.backbone, chosen


def check_core(records: Records) -> None:
    """What a network is fine-tuned on stays in it: core records only."""
    for record in records:
        if record.split is not Split.CORE:
            raise RecordError(
                record.id,
                f"is {record.split} data, and the core cannot forget.",
                "fine-tune the core on records.core.",
            )


@dataclass(frozen=True)
class _Bench:
    backbone: Backbone
    part: Records
    rest: Records
    reading: FineTuning  # batch size and precision that features are read with, the same for all
    folder: Path | None
    device: torch.device

    def trial(self, settings: FineTuning | None, progress: Progress) -> TuningTrial:
        key = self._key(settings)
        kept = self._read().get(key)
        if kept is not None:
            return TuningTrial(settings, *kept)
        begin = time.monotonic()
        where = None if self.folder is None else self.folder / f"trial-{key[:16]}"
        try:
            loss, accuracy = self._scores(self._tuned(settings, where, progress))
        except Diverged:
            loss, accuracy = math.inf, 0.0
        trial = TuningTrial(settings, loss, accuracy, time.monotonic() - begin)
        self._keep(key, trial)
        if where is not None:
            shutil.rmtree(where, ignore_errors=True)
        return trial

    def _tuned(self, settings: FineTuning | None, where: Path | None, progress: Progress) -> Tuned:
        if settings is None:
            network = network_of(self.backbone, len(self.part.classes))
            return Tuned(self.backbone, network, (), self.device)
        options: dict[str, Any] = {"folder": where, "device": self.device, "progress": progress}
        return fine_tune(self.backbone, self.part, settings, **options)

    def _scores(self, tuned: Tuned) -> tuple[float, float]:
        both = self.part + self.rest
        features = tuned.logits(both, self.reading, features=True)
        scored = torch.arange(len(both)) >= len(self.part)
        return left_out_scores(features, torch.from_numpy(both.labels), scored, len(both.classes))

    def _key(self, settings: FineTuning | None) -> str:
        """Whatever decides a trial's numbers."""
        network = network_of(self.backbone, len(self.part.classes))
        tuning = settings or FineTuning()
        run = asdict(run_of(self.backbone, network, self.part, tuning, self.device))
        rest = [[record.digest, record.label] for record in self.rest]
        tried = {"run": run, "tuned": settings is not None, "rest": rest}
        tried["precision"] = self.reading.precision
        return hashlib.sha256(json.dumps(tried, sort_keys=True).encode()).hexdigest()

    def _read(self) -> dict[str, tuple[float, float, float]]:
        """Finished trials; the loss of one that diverged is null."""
        if self.folder is None or not (self.folder / NAME).exists():
            return {}
        path, found = self.folder / NAME, {}
        with files.as_saved(path):
            for key, values in files.read_json(path, SCHEMA)["trials"].items():
                numbers = [math.inf if values["loss"] is None else values["loss"]]
                numbers += [values["accuracy"], values["seconds"]]
                if not all(type(v) is float and v >= 0 for v in numbers):
                    raise ValueError(f"a trial cannot have {numbers!r:.80}")
                found[str(key)] = tuple(numbers)
        return found  # type: ignore[return-value]

    def _keep(self, key: str, trial: TuningTrial) -> None:
        if self.folder is None:
            return
        known = {**self._read(), key: (trial.loss, trial.accuracy, trial.seconds)}
        files.write_json(
            self.folder / NAME,
            {"schema": SCHEMA, "trials": {k: _numbers(*v) for k, v in known.items()}},
        )


def _numbers(loss: float, accuracy: float, seconds: float) -> dict[str, Any]:
    finite = loss if math.isfinite(loss) else None
    return {"loss": finite, "accuracy": accuracy, "seconds": seconds}


def candidates_of(
    settings: FineTuning, rates: Sequence[float], epochs: Sequence[int]
) -> tuple[FineTuning, ...]:
    """Every rate with every length; the head's rate keeps its ratio to the rest's."""
    ratio = settings.head_rate / settings.rate if settings.rate else 1.0
    return tuple(
        replace(settings, rate=rate, head_rate=rate * ratio, epochs=length)
        for rate in rates
        for length in epochs
    )
