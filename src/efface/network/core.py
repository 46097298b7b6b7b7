"""The core: a pretrained network, cut into a frozen prefix and the tail that will be linearised.

Core weights are trained on core data only, with cross-entropy, then frozen; they never have to forget.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from efface import files
from efface.alone import one_by_one
from efface.data.loading import Loader, Prepare, stacked
from efface.data.pictures import Shown
from efface.data.preparation import Preparation
from efface.data.preprocess import of_images, preparation_of
from efface.data.records import Records
from efface.digests import RememberedDigest, tensors_digest
from efface.errors import EffaceError, FormatError
from efface.network import blocks, saved
from efface.network.activations import ActivationCache, Activations, boundaries, gather, own_copy
from efface.network.backbone import (
    Backbone,
    check_size,
    feature_width,
    forward_ad_kernels,
    load_backbone,
)
from efface.network.core_fitting import default_stages, fit_core
from efface.network.device import CPU, Placement
from efface.network.mirror import MirroredPrefix, MirroredTail
from efface.network.tail import Tail
from efface.network.training import Stage
from efface.progress import Progress

SCHEMA = saved.CORE_SCHEMA
STATISTICS = "statistics."  # in the file, before the names of what folding kept of the prefix


class Core:
    """f_core(x) = head(tail(prefix(x))).

    Args:
        backbone: ``cnn``, ``hf:DIR_OR_ID``, ``timm:NAME``, ``open_clip:NAME:WEIGHTS``,
            ``torch:module:callable`` or a module.
        classes: the class names, in the order of the logits.
        linearize: where the tail begins: head, last-block, last-stage, all, or a step's name.
        leaky_slope: ReLU becomes LeakyReLU of this slope in the tail (the paper's change; None keeps it).
        fold_batchnorm: fold frozen BatchNorms into their convolutions (faster; the user weights are then
            perturbations of the folded weights).
        mirror: read every image twice, as it is and mirrored, and average the features: better for photos of
            things that have no fixed side (CUB: + 1.8 points), at twice the time an image.
    """

    def __init__(
        self,
        backbone: str | nn.Module | Backbone = "cnn",
        *,
        classes: Sequence[str],
        linearize: str = "last-block",
        leaky_slope: float | None = 0.01,
        fold_batchnorm: bool = True,
        mirror: bool = False,
        preprocess: Preparation | None = None,
        seed: int = 0,
        source: dict[str, Any] | None = None,
        spec: str = "module",
    ) -> None:
        if len(set(classes)) != len(classes) or len(classes) < 2:
            raise EffaceError(
                f"need at least two distinct classes, got {list(classes)[:5]}.",
                "give data of two classes or more (in Python: classes=records.classes).",
            )
        named = linearize not in ("head", "last-block", "last-stage", "all")
        loaded = load_backbone(
            backbone,
            boundary=linearize if named else None,
            preprocess=preprocess,
            source=source,
            seed=seed,
            spec=spec,
        )
        self.backbone, self.classes, self.linearize = loaded, tuple(classes), linearize
        self.leaky_slope, self.fold, self.seed = leaky_slope, fold_batchnorm, seed
        self.loader, self.place = Loader(), Placement()  # how it reads, and where it computes
        self.mirror, self.report = mirror, list[str]()
        if mirror:
            of_images(loaded.preprocess)
        self._split(loaded)
        self.tables: dict[str, Any] = {}  # shared by parts of one calibration; not saved
        self.records: Records | None = None  # what it was fitted on; not saved

    def _split(self, backbone: Backbone) -> None:
        at = backbone.boundary(self.linearize)
        steps = copy.deepcopy(backbone.steps)
        prefix, tail = (MirroredPrefix, MirroredTail) if self.mirror else (nn.Sequential, Tail)
        self.prefix = prefix(*[s.module for s in steps[:at]]).eval()
        head = nn.Linear(feature_width(backbone, at, steps), len(self.classes))
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.tail: Tail = tail(steps[at:], head).eval()
        if self.fold:
            blocks.fold_batchnorm(self.prefix)
            blocks.fold_batchnorm(self.tail)
        if not backbone.has_statistics:
            blocks.replace_statistics(self.prefix, {})
        if self.leaky_slope is not None:
            blocks.leaky_activations(self.tail, self.leaky_slope)
        self.prefix.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.freeze()

    @property
    def image_side(self) -> int:
        """The side of the images that come in, as far as the preprocessing fixes it."""
        return of_images(self.backbone.preprocess).side

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Of their pixels, (channels, h, w)."""
        return of_images(self.backbone.preprocess).shape

    @property
    def blank(self) -> Tensor:
        """An input of zeros, (1, *shape)."""
        return torch.from_numpy(self.backbone.preprocess.blank())

    # --- training ---------------------------------------------------------------------------------

    def fit(
        self,
        records: Records,
        stages: Sequence[Stage] | None = None,
        *,
        calibrate_to: float | None = None,
        cache: ActivationCache | None = None,
        progress: Progress | None = None,
    ) -> Core:
        """Train on core records, stage after stage, then freeze. Classes without core data keep zeros."""
        options: dict[str, Any] = {"calibrate_to": calibrate_to, "cache": cache}
        fit_core(self, records, stages, progress=progress, **options)
        return self

    def default_stages(self) -> tuple[Stage, ...]:
        """From scratch for the built-in network; a new head for a pretrained one."""
        return default_stages(self)

    def freeze(self) -> None:
        self._prefix_digest: str | None = None  # the weights may have moved
        self._digest = RememberedDigest()
        self.place.drop()
        for module in (self.prefix, self.tail):
            module.eval().requires_grad_(False)

    # --- use --------------------------------------------------------------------------------------

    def labels(self, records: Records) -> Tensor:
        """Class indices (n,); refuses records whose classes would be numbered differently."""
        if tuple(records.classes) != self.classes:
            raise EffaceError(
                "the records' classes differ from the core's.",
                "build the core with records.classes.",
            )
        return torch.from_numpy(records.labels)

    def images(self, records: Shown) -> Tensor:
        """Decoded and prepared, (n, channels, h, w) or (n, length); an unreadable one names its record."""
        return self._stacked(records, self.backbone.preprocess)

    def pixels(self, records: Shown) -> Tensor:
        """Decoded, resized and cropped, (n, channels, h, w) uint8; rows of numbers as they are."""
        return self._stacked(records, self.backbone.preprocess.pixels)

    def _stacked(self, records: Shown, prepare: Prepare) -> Tensor:
        arrays = [self.loader.one(record, prepare) for record in records]
        return torch.from_numpy(stacked(records.ids, arrays))

    @torch.no_grad()
    def activations(
        self,
        records: Shown,
        cache: ActivationCache | None = None,
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Activations:
        """Boundary activations of the records: from the cache where they are, else computed."""
        if cache is not None and cache.prefix_digest != self.prefix_digest:
            raise EffaceError(
                "the cache holds activations of another core, or of this one before training.",
                "delete the cache; in Python: core.cache(directory) of this core.",
            )
        batches = self.loader.batches
        return gather(
            records,
            cache,
            lambda some: boundaries(
                batches(some, self.backbone.preprocess, batch_size), self.each_boundary
            ),
            lambda: self.boundary_shape,
            progress=progress,
        )

    def each_boundary(self, images: Tensor) -> Tensor:
        """The prefix on preprocessed images one by one, (n, *boundary_shape): no image depends on another."""
        return torch.cat(list(one_by_one(lambda: partial(self._boundary_of, images), len(images))))

    @torch.no_grad()
    def _boundary_of(self, images: Tensor, i: int) -> Tensor:
        if self.place.device == CPU:
            return self.boundary(images[i : i + 1].clone())
        return self.place.of(self.prefix)(images[i : i + 1].to(self.place.device)).cpu()

    def boundary(self, images: Tensor) -> Tensor:
        """The prefix on preprocessed images, all at once, (n, *boundary_shape)."""
        if images.dim() == 4:
            images = images.to(memory_format=torch.channels_last)
        with forward_ad_kernels():
            return self.prefix(images).contiguous()

    @property
    def boundary_shape(self) -> tuple[int, ...]:
        """Shape of one record's boundary activation."""
        with torch.no_grad():
            return tuple(self.boundary(self.blank).shape[1:])

    def cache(self, directory: Path | str, dtype: str = "float32") -> ActivationCache:
        """The activation cache for this core's prefix below ``directory``."""
        return ActivationCache(directory, self.prefix_digest, self.boundary_shape, dtype)

    def logits_of(self, activations: Activations) -> Tensor:
        """f_core on boundary activations, one by one, (n, c)."""
        return self.each(self.place.of(self.tail), activations, len(self.classes))

    def features_of(self, activations: Activations) -> Tensor:
        """Pooled features h on boundary activations, one by one, (n, p)."""
        tail: Any = self.place.of(self.tail)
        return self.each(tail.features, activations, self.tail.head.in_features)

    def each(
        self, function: Callable[[Tensor], Tensor], activations: Activations, width: int
    ) -> Tensor:
        """``function`` of each record's boundary activations alone, (n, width)."""

        @torch.no_grad()
        def call(i: int) -> Tensor:
            with forward_ad_kernels():
                return function(own_copy(activations[i : i + 1]).to(self.place.device)).cpu()

        rows = one_by_one(lambda: call, len(activations))
        return torch.cat([torch.zeros(0, width), *rows])

    def logits(self, records: Shown, cache: ActivationCache | None = None) -> Tensor:
        return self.logits_of(self.activations(records, cache))

    def accuracy(self, records: Records, cache: ActivationCache | None = None) -> float:
        if len(records) == 0:
            raise EffaceError("no records to evaluate on.", "check the split's name.")
        labels = self.labels(records)
        return float((self.logits(records, cache).argmax(1) == labels).float().mean())

    # --- identity and files -----------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "backbone": self.backbone.saved_spec,
            "source": self.backbone.source,
            "classes": list(self.classes),
            "linearize": self.linearize,
            "leaky_slope": self.leaky_slope,
            "fold_batchnorm": self.fold,
            "preprocess": self.backbone.preprocess.to_dict(),
            "seed": self.seed,
            # Only where it is on: a core without it keeps the digest it has always had.
            **({"mirror": True} if self.mirror else {}),
        }

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All weights and buffers, the names prefixed by the part they belong to."""
        parts = {"prefix": self.prefix, "tail": self.tail}
        return {f"{p}.{k}": v for p, m in parts.items() for k, v in m.state_dict().items()}

    @property
    def statistics(self) -> dict[str, Tensor]:
        """What the BatchNorms that were folded into the prefix had recorded; see ``synthetic``."""
        kept = blocks.folded_statistics(self.prefix)
        return {f"{STATISTICS}{name}": value for name, value in kept.items()}

    @property
    def digest(self) -> str:
        """SHA-256 of the weights and settings: the same before and after fitting and forgetting."""
        return self._digest(self.tensors, self.settings)

    @property
    def prefix_digest(self) -> str:
        """SHA-256 of what boundary activations depend on: the prefix and the preprocessing."""
        if self._prefix_digest is None:
            weights = {k: v for k, v in self.tensors.items() if k.startswith("prefix.")}
            names = self.backbone.names[: self.backbone.boundary(self.linearize)]
            # The module's text holds what has no weights: activations, strides, pooling.
            values = {"prep": self.settings["preprocess"], "steps": names, "net": str(self.prefix)}
            self._prefix_digest = tensors_digest(weights, values)
        return self._prefix_digest

    def save(self, directory: Path | str) -> None:
        """``core.json`` and ``core.safetensors``."""
        directory = Path(directory)
        kept = self.statistics
        files.write_tensors(directory / "core.safetensors", self.tensors | kept)
        values = {**self.settings, "digest": self.digest}
        # Beside the digest, not in it: predictions do not depend on them, and older cores have none.
        values |= {"statistics_digest": tensors_digest(kept)} if kept else {}
        files.write_json(directory / "core.json", values)

    @classmethod
    def load(cls, directory: Path | str, module: nn.Module | None = None) -> Core:
        """Read a saved core; ``module`` is needed only if the backbone was an nn.Module object or code.

        Files are data: no code that they name is run (see ``saved``), and nothing is built before the
        digests are checked.
        """
        directory = Path(directory)
        values = files.read_json(directory / "core.json", SCHEMA)
        changed = FormatError(
            f"the core in {directory.name} does not have the digest it was saved with.",
            "restore the files from a copy; they were changed after saving.",
        )
        try:
            saved.check_core(values, module_given=module is not None)
            tensors = files.read_tensors(directory / "core.safetensors")
            if not _has_digests(values, tensors):
                raise changed
            check_size(values, sum(tensor.numel() for tensor in tensors.values()))
            core = cls._build(values, module)
        except (KeyError, TypeError) as error:
            raise FormatError(
                f"core.json in {directory.name} is not as it was saved: {error!r}.",
                "restore the files from a copy.",
            ) from error
        core.load_tensors(tensors)
        if core.digest != values["digest"]:
            raise changed
        return core

    @classmethod
    def _build(cls, values: dict[str, Any], module: nn.Module | None) -> Core:
        return cls(
            module if module is not None else values["backbone"],
            classes=values["classes"],
            linearize=values["linearize"],
            leaky_slope=values["leaky_slope"],
            fold_batchnorm=values["fold_batchnorm"],
            mirror=values.get("mirror", False),
            preprocess=preparation_of(values["preprocess"]),
            seed=values["seed"],
            source=values["source"] or None,
            spec=values["backbone"],
        )

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Weights, and what folding kept beside them if ``tensors`` have it."""
        try:
            for name, module in (("prefix.", self.prefix), ("tail.", self.tail)):
                module.load_state_dict(_below(name, tensors))
                blocks.replace_statistics(module, {})
            blocks.replace_statistics(self.prefix, _below(STATISTICS, tensors))
        except (RuntimeError, AttributeError) as error:
            raise FormatError(f"core weights do not fit the network: {error}") from error
        self.freeze()

    def __repr__(self) -> str:
        return (
            f"Core({self.backbone.spec!r}, {len(self.classes)} classes, "
            f"linearize={self.linearize!r}, digest={self.digest[:12]})"
        )


def _has_digests(values: dict[str, Any], tensors: dict[str, Tensor]) -> bool:
    """Whether weights and settings are those that were saved, from the files alone."""
    beside = ("digest", "statistics_digest")
    settings = {name: value for name, value in values.items() if name not in beside}
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith(STATISTICS)}
    weights = {name: tensor for name, tensor in tensors.items() if name not in kept}
    found = tensors_digest(kept) if kept else None
    same = tensors_digest(weights, settings) == values["digest"]
    return same and found == values.get("statistics_digest")


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
