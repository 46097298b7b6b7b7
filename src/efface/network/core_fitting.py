"""Fitting a core: cross-entropy on core records, stage after stage, and the scale of its logits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from efface.data.records import Records
from efface.errors import EffaceError
from efface.network import blocks
from efface.network.activations import ActivationCache, Activations, own_copy
from efface.network.backbone import Backbone
from efface.network.device import Placement
from efface.network.tail import Tail
from efface.network.targets import one_hot
from efface.network.training import Stage, train
from efface.progress import Progress


class Trainable(Protocol):
    """As much of a core as fitting it needs."""

    backbone: Backbone
    classes: tuple[str, ...]
    prefix: nn.Sequential
    tail: Tail
    place: Placement
    seed: int
    report: list[str]
    records: Records | None

    @property
    def prefix_digest(self) -> str: ...
    def labels(self, records: Records) -> Tensor: ...
    def images(self, records: Records) -> Tensor: ...
    def activations(
        self, records: Records, cache: ActivationCache | None = None
    ) -> Activations: ...
    def logits_of(self, activations: Activations) -> Tensor: ...
    def freeze(self) -> None: ...


def fit_core(
    core: Trainable,
    records: Records,
    stages: Sequence[Stage] | None = None,
    *,
    calibrate_to: float | None = None,
    cache: ActivationCache | None = None,
    progress: Progress | None = None,
) -> None:
    """Train on core records, then freeze. Classes without core data keep zeros."""
    if len(records) == 0:
        raise EffaceError(
            "no core records to train on.",
            "give --core-fraction or --core-data; a pretrained network needs none (in Python: no fit()).",
        )
    labels = core.labels(records)
    present = torch.unique(labels)
    absent = [c for i, c in enumerate(core.classes) if i not in set(present.tolist())]
    if absent:
        core.report.append(f"no core data for: {', '.join(absent)} (their head rows stay zero)")
    stages = tuple(stages) if stages is not None else default_stages(core)
    core.records = records
    factor = 1.0
    if calibrate_to is not None and len(records) >= 5 * len(present):
        factor = _scale_factor(core, records, stages, calibrate_to, cache)
    for stage in stages:
        _run(core, stage, records, labels, present, cache, progress)
    with torch.no_grad():
        core.tail.head.weight.mul_(factor)
        core.tail.head.bias.mul_(factor)
    core.freeze()


def _scale_factor(
    core: Trainable,
    records: Records,
    stages: Sequence[Stage],
    target: float,
    cache: ActivationCache | None,
) -> float:
    """The factor that brings the logits to the scale of the user part's targets.

    Cross-entropy drives the logits of the samples it sees without limit; on new ones they are then
    too sure, and the user part would have to undo it. A copy of this core is trained on four fifths
    of the core records and τ = argmin Σ‖τ z − y‖² is taken on the rest (z, y centred over classes,
    y = ``target`` · one-hot). A positive factor changes no prediction of the core.
    """
    held_out = every_fifth(records)
    trial = copy.deepcopy(core)
    rest = records[(~held_out).nonzero()[0]]
    fit_core(trial, rest, stages, cache=cache)
    test = records[held_out.nonzero()[0]]
    z = trial.logits_of(trial.activations(test, usable(trial, cache))).double()
    y = one_hot(torch.from_numpy(test.labels), len(core.classes), target)
    z, y = z - z.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    power = float((z * z).sum())
    factor = float((z * y).sum()) / power if power > 0 else 1.0
    if factor <= 0:
        return 1.0
    core.report.append(f"core logits scaled by {factor:.4g} (found on held-out core records)")
    return factor


def usable(core: Trainable, cache: ActivationCache | None) -> ActivationCache | None:
    """``cache`` if its activations are those of this core, else None.

    After a stage that trained the prefix, the caller's cache is that of the old one.
    """
    known = cache is not None and cache.prefix_digest == core.prefix_digest
    return cache if known else None


def default_stages(core: Trainable) -> tuple[Stage, ...]:
    """From scratch for the built-in network; a new head for a pretrained one."""
    if core.backbone.spec == "cnn":
        return (Stage("all", epochs=40, lr=0.05),)
    return (Stage("head", epochs=60, lr=0.01),)


def _run(
    core: Trainable,
    stage: Stage,
    records: Records,
    labels: Tensor,
    present: Tensor,
    cache: ActivationCache | None,
    progress: Progress | None,
) -> None:
    if stage.train == "all":
        network: nn.Module = nn.Sequential(core.prefix, core.tail)
        inputs = core.images(records)
        if not inputs.is_floating_point():
            message = "the whole network is trained on images or vectors, not on token ids."
            raise EffaceError(message, "train the head or the tail.")
    else:
        network = core.tail
        inputs = _tensor(core.activations(records, usable(core, cache)))
    if stage.train == "head":
        with torch.no_grad():
            inputs = torch.cat([core.tail.features(own_copy(x)) for x in inputs.split(64)])
        network = core.tail.head
    network.requires_grad_(True)
    train(
        network,
        network.parameters(),
        inputs.float(),
        labels,
        stage,
        classes=present,
        seed=core.seed,
        device=core.place.device,
        progress=progress,
    )
    if stage.train == "all":
        blocks.replace_statistics(core.prefix, {})  # its outputs are no longer those
    core.freeze()


def every_fifth(records: Records) -> NDArray[np.bool_]:
    """A mask of about one record in five of every class, in the order of their content digests.

    For holding core records out: it depends on the records' content alone, and a class of one has none.
    """
    mask = np.zeros(len(records), dtype=bool)
    for label in np.unique(records.labels):
        members = sorted(np.flatnonzero(records.labels == label), key=lambda i: records.digests[i])
        mask[members[::5]] = len(members) > 1
    return mask


def _tensor(activations: Activations) -> Tensor:
    return activations[slice(0, len(activations))]
