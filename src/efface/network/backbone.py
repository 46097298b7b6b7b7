"""Backbones: where a network comes from, how its images are prepared, and the steps it is made of.

``cnn``                      a small built-in network for digits
``hf:DIR_OR_ID``             a transformers image classifier (no torchvision needed)
``timm:NAME``                a timm model (extra ``timm``)
``open_clip:NAME:WEIGHTS``   an open_clip image tower (extra ``open-clip``); WEIGHTS is a tag or a file
``torch:module.path:callable``  any callable that returns an nn.Module
an ``nn.Module``             with the name of the first module to linearise as boundary
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from efface.data.preparation import Preparation
from efface.data.preprocess import Preprocess
from efface.errors import BackboneError, FormatError
from efface.network import blocks, saved
from efface.network.families import Step, cut
from efface.network.saved import HF_CLASSES, plain_config

HF_FIX = "give a folder with config.json and model.safetensors, or OWNER/NAME on the hub."
HUB_ID = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")
SPARE = 1 << 24  # weights that building may need beyond those in the file (a head, folded norms)


@dataclass(frozen=True)
class Backbone:
    """A network as steps (all but the head), with its preprocessing.

    ``source`` holds what is needed to build the same architecture again without the original files
    (the weights themselves travel in the model's own safetensors). ``has_statistics``: whether BatchNorm's
    means and variances still describe what the convolutions put out; not after fine-tuning. ``hub``: the name
    that its weights have on a hub, if that is where they came from.
    """

    spec: str
    steps: tuple[Step, ...]
    preprocess: Preparation
    source: dict[str, Any] = field(default_factory=dict)
    has_statistics: bool = True
    hub: str = ""

    @property
    def names(self) -> list[str]:
        return [step.name for step in self.steps]

    @property
    def saved_spec(self) -> str:
        """What a saved model calls it. A folder's or a file's path is this machine's business; the
        architecture travels in ``source``."""
        kind = self.spec.partition(":")[0]
        if kind == "open_clip":
            return f"open_clip:{self.source['open_clip']}"
        return "hf:saved" if kind == "hf" else self.spec

    def boundary(self, linearize: str) -> int:
        """Index of the first step of the tail; ``len(steps)`` means the head alone."""
        positions = [i for i, step in enumerate(self.steps) if step.is_block]
        if linearize == "head":
            return len(self.steps)
        if linearize == "all":
            return 0
        if linearize in ("last-block", "last-stage") and not positions:
            raise BackboneError(f"{self.spec}: no blocks found.", "name the boundary instead.")
        if linearize == "last-block":
            return positions[-1]
        if linearize == "last-stage":
            last = self.steps[positions[-1]].stage
            return next(i for i in positions if self.steps[i].stage == last)
        return self._named(linearize)

    def _named(self, name: str) -> int:
        for i, step in enumerate(self.steps):
            if step.name == name or step.name.startswith(name + "."):
                return i
        raise BackboneError(
            f"{self.spec} has no step named {name!r}.",
            f"use head, last-block, last-stage, all, or one of: {', '.join(self.names)}.",
        )


def load_backbone(
    backbone: str | nn.Module | Backbone,
    *,
    boundary: str | None = None,
    preprocess: Preparation | None = None,
    source: dict[str, Any] | None = None,
    seed: int = 0,
    spec: str = "module",
) -> Backbone:
    """Load ``backbone``. ``source`` (from a saved model) rebuilds the architecture without files.

    ``spec`` is how a module that is given as such is called. A module may bring its own preparation, as an
    attribute ``preprocess``.
    """
    if isinstance(backbone, Backbone):
        return backbone
    if isinstance(backbone, nn.Module):
        return _wrap(spec, backbone, boundary, preprocess or _own(backbone), source or {})
    # Networks with random weights are the same for the same seed, whatever ran before.
    hub = hub_id(backbone) if source is None else ""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net, prep, source = _load_named(backbone, source)
    return replace(_wrap(backbone, net, boundary, preprocess or prep, source), hub=hub)


def hub_id(spec: str) -> str:
    """OWNER/NAME of ``hf:OWNER/NAME`` or ``timm:hf-hub:OWNER/NAME``; empty for anything else. A folder of
    that name is what would be loaded, and is none of a hub's."""
    where = next((spec.removeprefix(p) for p in ("hf:", "timm:hf-hub:") if spec.startswith(p)), "")
    return where if HUB_ID.fullmatch(where) and not Path(where).exists() else ""


def feature_width(backbone: Backbone, at: int, steps: Sequence[Step]) -> int:
    """How many pooled features its ``steps`` give, by running them; those from ``at`` on are the tail."""
    x = torch.from_numpy(backbone.preprocess.blank())
    try:
        with torch.no_grad():
            for i, step in enumerate(steps):
                if i == at and not x.is_floating_point():
                    raise BackboneError(
                        f"{backbone.spec}: the tail would begin at token ids, which have no derivative.",
                        'linearise "head", or name a step behind the embedding.',
                    )
                x = step.module.eval()(x)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BackboneError(
            f"{backbone.spec} does not run on {backbone.preprocess.described}: {error}",
            "check the preprocessing's size and channels, and run `efface check` on it.",
        ) from error
    if x.dim() != 2 or not x.is_floating_point():
        raise BackboneError(
            f"the features of {backbone.spec} have shape {tuple(x.shape)}, not (n, p).",
            "end the network in pooling and flattening before its Linear head.",
        )
    return int(x.shape[1])


def _load_named(
    backbone: str, source: dict[str, Any] | None
) -> tuple[nn.Module, Preparation, dict[str, Any]]:
    kind, _, rest = backbone.partition(":")
    if kind == "cnn" and not rest:
        return blocks.digits_cnn(), Preprocess(0, 0, 1, (0.5,), (0.5,)), {}
    if kind == "hf":
        return _load_hf(rest, source)
    if kind == "timm":
        return _load_timm(rest, pretrained=source is None)
    if kind == "open_clip":
        return _load_open_clip(rest, pretrained=source is None)
    if kind == "torch":
        net = _load_callable(rest)
        return net, _own(net), {}
    raise BackboneError(
        f"unknown backbone {backbone!r}.",
        "use cnn, hf:DIR_OR_ID, timm:NAME, open_clip:NAME:WEIGHTS or torch:module.path:callable.",
    )


def _own(net: nn.Module) -> Preparation:
    """What the module says about its inputs, else ImageNet's usual images."""
    said = getattr(net, "preprocess", None)
    return said if isinstance(said, Preparation) else Preprocess()


def _wrap(
    spec: str, net: nn.Module, boundary: str | None, prep: Preparation, source: dict[str, Any]
) -> Backbone:
    steps = cut(net.eval(), boundary)
    return Backbone(spec, tuple(steps), prep, source)


def _load_hf(where: str, source: dict[str, Any] | None) -> tuple[nn.Module, Preprocess, dict]:
    try:
        from transformers import AutoConfig
        from transformers.utils import logging
    except ImportError as error:
        raise BackboneError(
            f"transformers is not installed ({error}).", "pip install 'efface[hf]'."
        ) from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if source:
        return build_hf(source["config"]), Preprocess(), source
    if (where[:1] in ("", ".", "/", "~") or where.count("/") > 1) and not Path(where).is_dir():
        raise BackboneError(f"there is no folder {where!r}.", HF_FIX)
    try:
        # Nothing of the folder is run: no code of its own, and only settings that describe a network
        # (others choose kernels from the hub, or classes by name).
        given = AutoConfig.from_pretrained(where, trust_remote_code=False)
        values = json.loads(given.to_json_string(use_diff=False))
        # Of a network that compares pictures with words, its half for pictures.
        described = plain_config(values.get("vision_config") or values)
        config = _hf_config(described, num_labels=max(1, len(values.get("id2label") or ())))
        # float32 from the start: in float16, as many files are, a BatchNorm's variance overflows.
        net = _hf_class(described["model_type"]).from_pretrained(
            where, config=config, dtype=torch.float32, trust_remote_code=False, weights_only=True
        )
    except Exception as error:
        raise BackboneError(f"transformers cannot load {where!r}: {error}", HF_FIX) from error
    try:
        prepare = _hf_preprocess(Path(where), net)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise BackboneError(
            f"preprocessor_config.json of {where!r} is not as it should be: {error}",
            "correct it, or remove it: the usual preprocessing is used then.",
        ) from error
    return net.float(), prepare, {"config": described}


def build_hf(config: Mapping[str, Any]) -> nn.Module:
    """A network of a family that ``saved`` lists, with random weights, from checked settings alone."""
    described = plain_config(config)
    net: nn.Module = _hf_class(described["model_type"])(_hf_config(described))
    return net


def check_size(values: Mapping[str, Any], num_weights: int) -> None:
    """Refuse an architecture that has far more weights than the file: it would only fill the memory."""
    source = values["source"] or {}
    if "config" not in source or values["backbone"] != "hf:saved":
        return
    try:
        with torch.device("meta"):  # shapes without memory
            net = build_hf(source["config"])
    except FormatError:
        raise
    except Exception as error:  # whatever a constructor says about sizes that do not fit together
        raise FormatError(
            f"the saved network cannot be built: {error!s:.200}", saved.RESTORE
        ) from error
    asked = sum(p.numel() for p in net.parameters())
    if asked > 2 * num_weights + SPARE:
        message = f"the saved network has {asked:,} weights, its file {num_weights:,}."
        raise FormatError(message, saved.RESTORE)


def _hf_class(family: str) -> Any:
    """By name: transformers' Auto classes would look for code that the configuration names."""
    import transformers

    return getattr(transformers, HF_CLASSES[family])


def _hf_config(described: Mapping[str, Any], **more: Any) -> Any:
    from transformers import AutoConfig

    values = dict(described)
    return AutoConfig.for_model(values.pop("model_type"), **values, **more)


def _hf_preprocess(directory: Path, net: nn.Module) -> Preprocess:
    """From preprocessor_config.json where there is one; else ImageNet's usual 256 → 224."""
    path = directory / "preprocessor_config.json"
    size = getattr(net.config, "image_size", 224)
    side = size if isinstance(size, int) else size[0]
    if not path.is_file():
        return Preprocess(resize=round(side * 256 / 224), crop=side)
    values = json.loads(path.read_text(encoding="utf-8"))
    crop = _side(values.get("crop_size"), side)
    resize = _side(values.get("size"), round(crop * 256 / 224))
    if values.get("crop_pct"):
        resize = round(crop / values["crop_pct"])
    return Preprocess(
        resize=resize,
        crop=min(crop, resize),
        mean=tuple(values.get("image_mean", Preprocess().mean)),
        std=tuple(values.get("image_std", Preprocess().std)),
        interpolation="bicubic" if values.get("resample") == 3 else "bilinear",
    )


def _side(value: Any, default: int) -> int:
    if isinstance(value, dict):
        return int(value.get("shortest_edge") or value.get("height") or default)
    return int(value) if value else default


def _load_timm(name: str, pretrained: bool) -> tuple[nn.Module, Preprocess, dict]:
    timm = _imported("timm", "timm")
    net = timm.create_model(name, pretrained=pretrained)
    values = timm.data.resolve_model_data_config(net)
    crop = values["input_size"][-1]
    prep = Preprocess(
        resize=round(crop / values["crop_pct"]),
        crop=crop,
        channels=values["input_size"][0],
        mean=tuple(values["mean"]),
        std=tuple(values["std"]),
        interpolation="bicubic" if values["interpolation"] == "bicubic" else "bilinear",
    )
    return net, prep, {"timm": name}


def _load_open_clip(given: str, pretrained: bool) -> tuple[nn.Module, Preprocess, dict]:
    """The image tower; of a saved model only its architecture is built, beside words of one layer."""
    name, _, weights = given.partition(":")
    if pretrained and not weights:
        raise BackboneError(
            f"open_clip:{name} does not say which weights.",
            "write open_clip:NAME:TAG or open_clip:NAME:FILE (in Python: open_clip.list_pretrained()).",
        )
    open_clip = _imported("open_clip", "open-clip")
    if name not in open_clip.list_models():
        raise BackboneError(
            f"open_clip has no network {name!r}.",
            "look at its own list (in Python: open_clip.list_models()).",
        )
    try:
        if pretrained:
            whole = open_clip.create_model(name, pretrained=weights, weights_only=True)
        else:
            words = {"context_length": 1, "vocab_size": 1, "width": 1, "heads": 1, "layers": 1}
            whole = open_clip.create_model(name, pretrained_text=False, text_cfg=words)
    except Exception as error:
        raise BackboneError(
            f"open_clip cannot load {given!r}: {error!s:.300}",
            "a file must be of that network; tags are listed (in Python: open_clip.list_pretrained()).",
        ) from error
    values = open_clip.get_model_preprocess_cfg(whole)
    side = values["size"] if isinstance(values["size"], int) else values["size"][0]
    prep = Preprocess(
        resize=side,
        crop=side,
        mean=tuple(values["mean"]),
        std=tuple(values["std"]),
        interpolation="bicubic" if values["interpolation"] == "bicubic" else "bilinear",
    )
    return whole.visual.float(), prep, {"open_clip": name}


def _imported(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:
        fix = f"pip install 'efface[{extra}]'."
        if "torchvision" in str(error) and "No module" not in str(error):
            fix = "the installed torchvision does not match torch: install the build made for it."
        raise BackboneError(f"{package} cannot be imported ({error}).", fix) from error


def trusted_module(name: str | None) -> nn.Module | None:
    """The network that ``--trust-module NAME`` names (``module.path:callable``): this imports and runs it."""
    return None if name is None else _load_callable(name.removeprefix("torch:"))


def _load_callable(path: str) -> nn.Module:
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise BackboneError(f"torch:{path} names no callable.", "write torch:module.path:callable.")
    try:
        target = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise BackboneError(
            f"cannot import {path}: {error}",
            "install it, or run `python -m efface`, which looks in the working directory, too.",
        ) from error
    net = target() if callable(target) and not isinstance(target, nn.Module) else target
    if not isinstance(net, nn.Module):
        raise BackboneError(f"{path} returned a {type(net).__name__}.", "return an nn.Module.")
    return net


@contextmanager
def forward_ad_kernels() -> Iterator[None]:
    """Attention through the math kernel: the fused CPU kernels have no forward-mode derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        yield
