"""The bench that every figure works on: the data, its splits, and the cores trained on them.

Activations are computed once per data set; trained weights and finished sequences of requests are kept beside
them, so that figures share them and a run that was cut short goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from efface import files
from efface.data.preprocess import Preprocess
from efface.data.record import Split
from efface.data.records import Records
from efface.data.remarks import tell
from efface.model.mixed_linear import MixedLinear
from efface.network.activations import ActivationCache, Activations
from efface.network.backbone import Backbone, load_backbone
from efface.network.core import Core
from efface.network.device import CPU, Placement
from efface.network.larger import with_larger_images
from efface.network.training import Stage
from efface.parts.table import place_for
from efface.parts.tangent.primal import Primal
from efface.parts.tangent.reading import Reading
from efface.parts.tangent.solve_state import SolveState
from efface.reproduce.presets import Preset
from efface.reproduce.results import name_of
from efface.version import VERSION

SCHEMA = "efface.bench/1"
LEAKY_SLOPE = 0.01  # the paper changes ReLU to LeakyReLU and does not print the slope
CORES = 3  # kept: a network each, and figures come seed by seed
SILENCE = 120.0  # seconds without a word, at most
READING = Reading.PAPER  # of the printed rates and weight decays


@dataclass(frozen=True)
class Spot:
    """What a trained model depends on besides the preset."""

    fraction: float
    mu: float
    seed: int = 0
    size: float = 1.0  # the share of the user records used
    whole_class: bool = False  # one request for a class that core data know nothing of


class Bench:
    """Args: as of ``efface reproduce``; ``cache`` keeps activations and weights (it may be deleted).

    ``memory`` is how many bytes the prepared samples of a problem may take, ``device`` where networks and
    their tangents are computed.
    """

    def __init__(
        self,
        data: str,
        backbone: str,
        preset: Preset,
        cache: Path,
        *,
        linearize: str = "last-block",
        memory: int = 6 << 30,
        device: str = "cpu",
        say: Callable[[str], None] = print,
    ) -> None:
        self.data, self.backbone, self.preset, self.linearize = data, backbone, preset, linearize
        self.cache, self.name, self.say = Path(cache), name_of(data), say
        self.memory, self.device = memory, place_for("tangent", device).device
        # The prepared training samples of the last specimen, and whose they are: the next may be of the same.
        self.primal: tuple[tuple[Any, ...], Primal | None] = (), None
        self.paper_epochs = preset.paper_epochs(self.name)

    @cached_property
    def records(self) -> Records:
        """Equally many training images a class, ``limit`` in all; core ones are chosen among them."""
        found, p = tell(Records.open(self.data), self.say), self.preset
        train = found.where(lambda r: r.split != Split.TEST)
        return limited(train, p.limit) + limited(found.test, p.test_limit)

    @property
    def num_classes(self) -> int:
        return len(self.records.classes)

    @property
    def mu(self) -> float:
        """The ridge of the forgetting figures, for our loss."""
        return READING.ridge(self.preset.paper_decay(self.name), self.num_classes)

    @property
    def accuracy_mu(self) -> float:
        return READING.ridge(self.preset.accuracy_decay, self.num_classes)

    def rate(self, printed: float) -> float:
        """A printed learning rate, for our loss."""
        return READING.rate(printed, self.num_classes)

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on. How many seeds there are is not among it: more can be added later."""
        numbers = {k: v for k, v in self.preset.to_dict().items() if k != "seeds"}
        if self.device != CPU:  # floats add up in another order there
            numbers["device"] = str(self.device)
        return numbers | {
            "mu": self.mu,
            "accuracy_mu": self.accuracy_mu,
            "loss": str(READING),
            "data": self.name,
            "backbone": self.backbone.rpartition("/")[2],
            "linearize": self.linearize,
            "paper_epochs": self.paper_epochs,
            "num_train": len(self.records) - len(self.records.test),
            "num_test": len(self.records.test),
            "num_classes": len(self.records.classes),
        }

    def split(self, fraction: float, seed: int = 0, whole_class: bool = False) -> Records:
        """The data's own core split does not count. ``whole_class`` moves the core records of
        :attr:`forgotten_class` to the user ones."""
        plain = [  # every image its own owner: the paper draws images
            r if r.split == Split.TEST else replace(r, split=Split.USER, owner=r.id)
            for r in self.records
        ]
        records = Records(plain, self.records.classes).with_core_fraction(fraction, seed)
        if not whole_class:
            return records
        moved = [
            replace(r, split=Split.USER)
            if r.label == self.forgotten_class and r.split == Split.CORE
            else r
            for r in records
        ]
        return Records(moved, records.classes)

    @property
    def forgotten_class(self) -> str:
        return self.records.classes[0]

    def new_core(self, seed: int = 0, *, folded: bool = False) -> Core:
        side = self.preset.side
        prep = None
        if side is not None and self.backbone != "cnn":
            prep = Preprocess(resize=round(side * 8 / 7), crop=side)
        network: str | Backbone = self.backbone
        if folded and side is None:  # as `efface train` has it
            network = with_larger_images(load_backbone(network, seed=seed))
        core = Core(
            network,
            classes=self.records.classes,
            linearize=self.linearize,
            preprocess=prep,
            seed=seed,
            fold_batchnorm=folded,
            leaky_slope=LEAKY_SLOPE,
        )
        core.place = Placement(self.device)
        return core

    @lru_cache(maxsize=CORES)  # noqa: B019 - one bench a process
    def core(self, fraction: float, seed: int = 0, whole_class: bool = False) -> Core:
        """Trained on this share of the task; with none, the generic core gets a random head.

        A zero head would make all tangents below it vanish. Its logits stay as cross-entropy left them, as in
        the paper: brought to the targets' scale, the head is smaller, and with it every tangent below it.
        """
        core, records = self.new_core(seed), self.split(fraction, seed, whole_class).core
        if len(records):
            core.fit(records, self.stages, calibrate_to=None, cache=self._usable(core))
        else:
            torch.manual_seed(seed)
            core.tail.head.load_state_dict(
                nn.Linear(core.tail.head.in_features, len(core.classes)).state_dict()
            )
        return core

    @property
    def stages(self) -> tuple[Stage, ...] | None:
        return None if self.backbone == "cnn" else (Stage("head", epochs=60, lr=0.01),)

    def activation_cache(self, core: Core) -> ActivationCache | None:
        """Of the frozen pretrained prefix; a prefix trained here is small and run again."""
        return None if self.backbone == "cnn" else core.cache(self.cache / "activations")

    def _usable(self, core: Core) -> ActivationCache | None:
        cache = self.activation_cache(core)
        if cache is not None and len(cache.missing(self.records.digests)):
            self.say(f"activations of {len(self.records)} images, once for this data set")
            core.activations(self.records, cache, progress=dots(self.say))
        return cache

    def rows(self, core: Core, records: Records) -> Activations:
        """Boundary activations, from the cache's file where there is one: gigabytes that need no memory."""
        return core.activations(records, self._usable(core))

    def tensor(self, core: Core, records: Records) -> Tensor:
        rows = self.rows(core, records)
        return rows[slice(0, len(rows))]

    def features(self, spot: Spot, records: Records) -> Tensor:
        """Pooled features of some records in the core of a spot, (n, p)."""

        def make() -> dict[str, Any]:
            core = self.core_and_data(spot)[0]
            return {"features": core.features_of(self.tensor(core, records))}

        parts = hashlib.sha256("\n".join(records.digests).encode()).hexdigest()
        key = {"what": "features", "core": [spot.fraction, spot.seed, spot.whole_class]}
        return self.kept(key | {"records": parts}, make)["features"]

    def spot(self, **changes: Any) -> Spot:
        return replace(Spot(self.preset.core_fraction, self.mu), **changes)

    def core_and_data(self, spot: Spot) -> tuple[Core, Records]:
        key = (spot.fraction, spot.seed, spot.whole_class)
        return self.core(*key), self.split(*key)

    def compact_model(self, spot: Spot) -> MixedLinear:
        """The compact user part as `efface train` makes it: BatchNorm folded, integers, larger images; of the
        same data."""
        self.make_room()
        key = (spot.fraction, spot.seed, spot.whole_class)
        core, data = self.compact_core(*key), self.split(*key)
        cache = self.activation_cache(core)
        model = MixedLinear(core, "compact", features=self.preset.features, cache=cache)
        return model.fit(part_of(data.user, spot.size), replay=data.core, progress=dots(self.say))

    def make_room(self) -> None:
        """For other models, which may need as much: prepared samples go, and are made again if they must."""
        if self.primal[1] is not None:
            self.primal[1].drop()

    @lru_cache(maxsize=CORES)  # noqa: B019 - one bench a process
    def compact_core(self, fraction: float, seed: int = 0, whole_class: bool = False) -> Core:
        if self.backbone == "cnn":
            return self.core(fraction, seed, whole_class)
        core = self.new_core(seed, folded=True)
        records = self.split(fraction, seed, whole_class).core
        core.fit(records, self.stages, calibrate_to=5.0, cache=self.activation_cache(core))
        return core

    # --- what is kept -----------------------------------------------------------------------------

    def kept(self, key: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """``make()`` or what it gave before for this key, settings and version; tensors and numbers."""
        tensors, numbers = (self._kept_at(key, kind) for kind in ("safetensors", "json"))
        if numbers.is_file():  # written last: then the tensors are there, too
            return {**files.read_tensors(tensors), **files.read_json(numbers, SCHEMA)["values"]}
        value = make()
        plain = {k: v for k, v in value.items() if not isinstance(v, Tensor)}
        files.write_tensors(tensors, {k: v for k, v in value.items() if isinstance(v, Tensor)})
        files.write_json(numbers, {"schema": SCHEMA, "values": plain})
        return value

    def solve_state(self, key: dict[str, Any]) -> SolveState:
        """Where the solve that makes what is kept under ``key`` is on its way."""
        return SolveState(self._kept_at(key, "partial"))

    def _kept_at(self, key: dict[str, Any], kind: str) -> Path:
        whole = json.dumps([VERSION, self.settings, key], sort_keys=True, default=str)
        name = hashlib.sha256(whole.encode()).hexdigest()[:24]
        return self.cache / "weights" / f"{name}.{kind}"


def part_of(records: Records, share: float) -> Records:
    """The first ``share`` of them in a fixed random order."""
    order = np.random.default_rng(1).permutation(len(records))
    return records[np.sort(order[: round(share * len(records))])]


def limited(records: Records, limit: int | None) -> Records:
    """The first ``limit`` records in a fixed random order, equally many a class as far as they go."""
    if limit is None or limit >= len(records):
        return records
    order = np.random.default_rng(0).permutation(len(records))
    rank, seen = np.empty(len(records), dtype=np.int64), np.zeros(len(records.classes), np.int64)
    for position in order:
        label = records.labels[position]
        rank[position] = seen[label]
        seen[label] += 1
    place = np.empty(len(records), dtype=np.int64)
    place[order] = np.arange(len(records))
    chosen = np.lexsort((place, rank))[:limit]
    return records[np.sort(chosen)]


def dots(say: Callable[[str], None]) -> Callable[[float, str], None]:
    """A progress that says every tenth of the way, and how it stands every two minutes."""
    last, told = [-1], [time.monotonic()]

    def progress(fraction: float, message: str) -> None:
        if int(10 * fraction) > last[0] or time.monotonic() - told[0] > SILENCE:
            last[0], told[0] = int(10 * fraction), time.monotonic()
            say(f"  {fraction:4.0%} {message}")

    return progress
