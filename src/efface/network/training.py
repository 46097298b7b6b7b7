"""Cross-entropy training by SGD with an annealed learning rate: for core weights, and as the non-linear
fine-tuning that the linear model is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efface.network.device import CPU
from efface.progress import Progress


@dataclass(frozen=True)
class Stage:
    """One stage of training. ``train`` is what moves: head, tail (with the head) or all.

    The learning rate falls from ``lr`` to 0 along a half cosine over the stage's steps.
    """

    train: str = "head"
    epochs: int = 30
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.train not in ("head", "tail", "all"):
            raise ValueError(f"a stage trains 'head', 'tail' or 'all', not {self.train!r}")


def train(
    network: nn.Module,
    parameters: Iterable[nn.Parameter],
    inputs: Tensor,
    labels: Tensor,
    stage: Stage,
    *,
    classes: Tensor | None = None,
    seed: int = 0,
    device: torch.device = CPU,
    progress: Progress | None = None,
) -> float:
    """Minimise cross-entropy of ``network(inputs)`` over ``parameters``; returns the last epoch's loss.

    The network stays in eval mode: BatchNorm statistics and dropout are frozen. ``classes`` limits the
    softmax to the classes that have data, so that the rows of the others keep their zeros. On a ``device``
    the network is there for as long as it takes.
    """
    parameters = list(parameters)
    network.to(device)
    optimizer = torch.optim.SGD(
        parameters, lr=stage.lr, momentum=stage.momentum, weight_decay=stage.weight_decay
    )
    steps = stage.epochs * math.ceil(len(labels) / stage.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    generator = torch.Generator().manual_seed(seed)
    mean_loss = float("nan")
    for epoch in range(stage.epochs):
        total = 0.0
        for index in torch.randperm(len(labels), generator=generator).split(stage.batch_size):
            logits = network(inputs[index].to(device))
            loss = cross_entropy(logits, labels[index].to(device), classes)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(index)
        mean_loss = total / len(labels)
        if progress is not None:
            progress((epoch + 1) / stage.epochs, f"{stage.train}: loss {mean_loss:.3f}")
    network.to(CPU)
    return mean_loss


def cross_entropy(logits: Tensor, labels: Tensor, classes: Tensor | None) -> Tensor:
    """Mean over the samples; the softmax is over ``classes`` (None: all of them)."""
    if classes is None:
        return F.cross_entropy(logits, labels)
    position = torch.full((logits.shape[1],), -1)
    position[classes] = torch.arange(len(classes))
    there = logits.device
    return F.cross_entropy(logits[:, classes.to(there)], position.to(there)[labels])
