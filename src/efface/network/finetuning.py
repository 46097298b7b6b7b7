"""Fine-tuning of a whole network, by mini-batches read from disk; it can be killed and goes on.

On core data it makes the paper's core for fine-grained tasks ("we also pre-train them using randomly sampled
30 % of the training data"), on all data its "DNN" that cannot forget. Cross-entropy over the classes present,
SGD with momentum on every weight,

    g ← ∇loss(w) + weight_decay · w,    v ← momentum · v + g,    w ← w − a(t) · rate · v,

with ``head_rate`` for the new, zero head. The annealing a(t) falls over the run, t = 0 … 1: half a cosine,
(1 + cos πt)/2, or the paper's steps, × 0.1 at t = 0.5 and t = 0.8 (25 and 40 of its 50 epochs); times
t/warmup while that is below 1. Pooled features of a ResNet-50 have a mean ‖h‖² of about 1,400: a head with a
rate of 0.1, or at full speed from the start, overshoots in its first steps and drags the features along.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from efface import files
from efface.data.preprocess import Preprocess, of_images
from efface.data.records import Records
from efface.digests import tensors_digest
from efface.errors import BackboneError, EffaceError, RecordError
from efface.network.augmentation import Augmentation, draws, shuffled
from efface.network.backbone import Backbone
from efface.network.checkpoint import Checkpoint, TuningRun
from efface.network.device import CPU, Placement
from efface.network.tail import Tail
from efface.network.training import cross_entropy
from efface.progress import Progress, duration

LOCK = "lock"  # in a run's folder, held by who works on it
STEPS_AT = (0.5, 0.8)  # of the run: the paper's epochs 25 and 40 of 50


class Schedule(StrEnum):
    COSINE = "cosine"
    STEPS = "steps"


class Precision(StrEnum):
    FLOAT32 = "float32"
    BF16 = "bf16"  # autocast: weights, momenta and sums of gradients stay float32


class Diverged(EffaceError):
    """The loss is no longer a number."""


@dataclass(frozen=True)
class FineTuning:
    """How a network is fine-tuned.

    Args:
        warmup: the part of the run in which the rate rises to its full height.
        size: the side of the training images; 0 is the preprocessing's own.
        scale: the crop's share of the image's area, from … to.
        frozen_statistics: BatchNorm keeps the mean and variance it came with; its scale and shift are
            trained. The network is then one function of one image, in training as in use (and folded), and a
            few images a class are not asked for statistics that a million gave. False: those of the batch in
            training, their running averages in use.
    """

    epochs: int = 12
    batch_size: int = 32
    rate: float = 0.002
    head_rate: float = 0.004
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: Schedule = Schedule.COSINE
    warmup: float = 0.1
    size: int = 0
    scale: tuple[float, float] = (0.25, 1.0)
    flip: bool = True
    frozen_statistics: bool = True
    precision: Precision = Precision.FLOAT32
    seed: int = 0

    def __post_init__(self) -> None:
        low, high = self.scale
        checks = {
            "epochs": self.epochs >= 1,
            "batch_size": self.batch_size >= 1,
            "rate": 0 <= self.rate < math.inf,
            "head_rate": 0 <= self.head_rate < math.inf,
            "momentum": 0 <= self.momentum < 1,
            "weight_decay": 0 <= self.weight_decay < math.inf,
            "warmup": 0 <= self.warmup <= 1,
            "size": self.size >= 0,
            "scale": 0 < low <= high <= 1,
        }
        checks["schedule"] = self.schedule in tuple(Schedule)
        checks["precision"] = self.precision in tuple(Precision)
        for name, fine in checks.items():
            if not fine:
                message = f"fine-tuning with {name} = {getattr(self, name)!r} makes no sense."
                raise EffaceError(
                    message, "see FineTuning for what it means; leave it out if unsure."
                )

    def annealing(self, t: float) -> float:
        """a(t), t the part of the run that is done."""
        ramp = min(1.0, t / self.warmup) if self.warmup else 1.0
        if self.schedule == Schedule.COSINE:
            return ramp * 0.5 * (1 + math.cos(math.pi * t))
        return float(ramp * 0.1 ** sum(t >= at for at in STEPS_AT))

    def autocast(self, device: torch.device = CPU) -> AbstractContextManager[object]:
        bf16 = self.precision == Precision.BF16
        return torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()


@dataclass(frozen=True)
class Tuned:
    """A fine-tuned network, and the mean loss of each of its epochs; ``device`` is where it is asked."""

    backbone: Backbone
    network: Tail
    losses: tuple[float, ...]
    device: torch.device = CPU

    @torch.no_grad()
    def logits(
        self,
        records: Records,
        settings: FineTuning,
        size: int = 0,
        *,
        features: bool = False,
        progress: Progress | None = None,
    ) -> Tensor:
        """Logits (n, c), or pooled features (n, p), of central crops of ``size``; batch after batch."""
        prepare = at_size(of_images(self.backbone.preprocess), size)
        network: Any = Placement(self.device).of(self.network)
        function = network.features if features else network
        found = []
        for start in range(0, len(records), settings.batch_size):
            some = records[start : start + settings.batch_size]
            images = _stacked(some, [prepare(record.image()) for record in some])
            with settings.autocast(self.device):
                found.append(function(images.to(self.device)).float().cpu())
            if progress is not None:
                progress((start + len(some)) / len(records), f"{start + len(some)} images read")
        return torch.cat(found)


def at_size(preprocess: Preprocess, size: int) -> Preprocess:
    """The same preprocessing for central crops of another side; 0 leaves it as it is."""
    if not size or not preprocess.crop:
        return replace(preprocess, resize=size, crop=size) if size else preprocess
    return replace(preprocess, resize=round(size * preprocess.resize / preprocess.crop), crop=size)


def network_of(backbone: Backbone, num_classes: int, size: int = 0) -> Tail:
    """A copy of the backbone's steps with a zero head: what is trained, on images of ``size``."""
    steps, read = copy.deepcopy(backbone.steps), of_images(backbone.preprocess)
    side = size or read.side
    x = torch.zeros(1, read.channels, side, side)
    try:
        with torch.no_grad():
            for step in steps:
                x = step.module.eval()(x)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        message = f"{backbone.spec} does not run on a {side} × {side} image: {error}"
        fix = "leave out the size: some networks, transformers above all, have only one."
        raise BackboneError(message, fix) from error
    if x.dim() != 2:
        message = f"the features of {backbone.spec} have shape {tuple(x.shape)}, not (n, p)."
        raise BackboneError(message, "end the network in pooling and flattening before its head.")
    head = nn.Linear(x.shape[1], num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    network = Tail(steps, head).eval()
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def run_of(
    backbone: Backbone,
    network: Tail,
    records: Records,
    settings: FineTuning,
    device: torch.device = CPU,
) -> TuningRun:
    """What decides the result: settings, records with their labels in order, the network at the start, and
    where it is computed, if that is not the CPU."""
    data = [list(records.classes), [[record.digest, record.label] for record in records]]
    described = {"preprocess": backbone.preprocess.to_dict(), "net": str(network)}
    elsewhere = {} if device == CPU else {"device": str(device)}
    return TuningRun(
        asdict(settings) | elsewhere,
        hashlib.sha256(json.dumps(data).encode()).hexdigest(),
        tensors_digest(network.state_dict(), described),
    )


def fine_tune(
    backbone: Backbone,
    records: Records,
    settings: FineTuning,
    *,
    folder: Path | str | None = None,
    device: torch.device = CPU,
    progress: Progress | None = None,
) -> Tuned:
    """Fine-tune all weights of ``backbone`` under a new head; only a batch of images is in memory.

    With a ``folder`` every epoch is kept there, and a run that was killed goes on after its last one; a
    second run in it waits for the first. On one machine, with one number of threads, the same arguments give
    the same weights, interrupted or not; on another ``device`` the same but for the order of float sums. What
    comes back, and what is kept, is on the CPU.
    """
    if len(records) == 0:
        raise EffaceError("no records to fine-tune on.", "choose a core fraction above 0.")
    network = network_of(backbone, len(records.classes), settings.size)
    at = None
    if folder is not None:
        at = Checkpoint(Path(folder), run_of(backbone, network, records, settings, device))
    training = _Training(backbone, network, records, settings, device)
    with nullcontext() if at is None else files.locked(at.folder / LOCK):
        losses = training.run(at, progress)
    network.cpu().eval().requires_grad_(False)
    modules = zip(backbone.steps, list(network)[:-1], strict=True)
    steps = tuple(replace(step, module=_plain(module)) for step, module in modules)
    return Tuned(
        replace(backbone, steps=steps, has_statistics=False), network, tuple(losses), device
    )


def _plain(module: nn.Module) -> nn.Module:
    """A copy whose weights lie in memory as those of a network that was just loaded: kernels, and with them
    the last bits, go by that."""
    made = copy.deepcopy(module)
    for tensor in (*made.parameters(), *made.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return made


class _Training:
    """A network on its way, with its optimiser."""

    def __init__(
        self,
        backbone: Backbone,
        network: Tail,
        records: Records,
        settings: FineTuning,
        device: torch.device,
    ) -> None:
        prep = of_images(backbone.preprocess)
        self.network, self.records, self.settings = network.to(device), records, settings
        self.device = device
        self.view = Augmentation(
            prep, settings.size or prep.crop or prep.resize, settings.scale, settings.flip
        )
        self.labels = torch.from_numpy(records.labels)
        self.present = torch.unique(self.labels)
        network.requires_grad_(True)
        if not settings.frozen_statistics:
            for layer in network.modules():
                layer.train(isinstance(layer, _BatchNorm))
        head = list(network.head.parameters())
        rest = [p for p in network.parameters() if not any(p is q for q in head)]
        groups = [
            {"params": rest, "lr": settings.rate, "full": settings.rate},
            {"params": head, "lr": settings.head_rate, "full": settings.head_rate},
        ]
        self.optimizer = torch.optim.SGD(
            groups, momentum=settings.momentum, weight_decay=settings.weight_decay
        )

    def run(self, at: Checkpoint | None, progress: Progress | None) -> list[float]:
        """To the end, from where ``at`` is; the losses of all epochs."""
        losses = [] if at is None else self.resume(at)
        clock = _Clock(self.settings.epochs, len(losses), progress)
        for epoch in range(len(losses), self.settings.epochs):
            losses.append(self.epoch(epoch, clock))
            if at is not None:
                at.save(self.tensors(), losses)
        return losses

    def epoch(self, epoch: int, clock: _Clock) -> float:
        """One pass over the records; the mean loss."""
        total, steps = 0.0, list(self.batches(epoch))
        for step, places in enumerate(steps):
            self.anneal((epoch + (step + 0.5) / len(steps)) / self.settings.epochs)
            loss = self.step(epoch, places)
            if not math.isfinite(loss):
                raise Diverged(
                    f"fine-tuning diverged in epoch {epoch + 1}: the loss is {loss}.",
                    f"lower the rate ({self.settings.rate}) or the head's ({self.settings.head_rate}).",
                )
            total += loss * len(places)
            clock.tell(epoch, (step + 1) / len(steps), loss)
        return total / len(self.records)

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """Places in this epoch's order, as few batches as may be, of almost the same size."""
        n = len(self.records)
        parts = math.ceil(n / self.settings.batch_size)
        for part in np.array_split(np.array(shuffled(self.settings.seed, epoch, n)), parts):
            yield part.tolist()

    def anneal(self, t: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["full"] * self.settings.annealing(t)

    def step(self, epoch: int, places: Sequence[int]) -> float:
        images = self.images(epoch, places)
        with self.settings.autocast(self.device):
            logits = self.network(images.to(self.device))
        labels = self.labels[places].to(self.device)
        loss = cross_entropy(logits.float(), labels, self.present)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def images(self, epoch: int, places: Sequence[int]) -> Tensor:
        """This epoch's views of the records at ``places``, decoded here and now."""
        some, seed = self.records[places], self.settings.seed
        views = [
            self.view(record.image(), draws(seed, epoch, place))
            for record, place in zip(some, places, strict=True)
        ]
        return _stacked(some, views)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, BatchNorm's statistics and momenta, on the CPU: all that the next epoch depends on."""
        kept = {f"weights.{name}": value for name, value in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if self.settings.momentum:
                zero = torch.zeros_like(parameter)
                kept[f"momentum.{name}"] = zero if momentum is None else momentum
        return {name: tensor.cpu() for name, tensor in kept.items()}

    def resume(self, at: Checkpoint) -> list[float]:
        """Go to where the folder's run is; the losses so far."""
        found = at.load(self.tensors())
        if found is None:
            return []
        tensors, losses = found
        weights = {k.removeprefix("weights."): v for k, v in tensors.items() if k[0] == "w"}
        self.network.load_state_dict(weights)
        for name, parameter in self.network.named_parameters():
            if self.settings.momentum:
                momentum = torch.empty_like(parameter.detach()).copy_(tensors[f"momentum.{name}"])
                self.optimizer.state[parameter]["momentum_buffer"] = momentum
        return losses


@dataclass
class _Clock:
    """Tells how far a run is and how long it still takes, from what this process has seen of it."""

    epochs: int
    start: int
    progress: Progress | None

    def __post_init__(self) -> None:
        self.begin = time.monotonic()

    def tell(self, epoch: int, part: float, loss: float) -> None:
        if self.progress is None:
            return
        done = epoch + part
        left = (time.monotonic() - self.begin) * (self.epochs - done) / (done - self.start)
        text = f"epoch {epoch + 1}/{self.epochs}, loss {loss:.3f}, {duration(left)} left"
        self.progress(done / self.epochs, text)


def _stacked(records: Records, arrays: list[np.ndarray]) -> Tensor:
    """(n, channels, h, w); all must have one shape."""
    for record, array in zip(records, arrays, strict=True):
        if array.shape != arrays[0].shape:
            message = f"has shape {array.shape} after preprocessing, others {arrays[0].shape}."
            raise RecordError(record.id, message, "name a size for fine-tuning.")
    images = torch.from_numpy(np.stack(arrays))
    return images.contiguous(memory_format=torch.channels_last)
