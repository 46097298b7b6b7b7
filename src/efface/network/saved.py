"""A saved model is data: what its files may name, checked before anything is built from them.

The architecture of a saved core comes from a closed list: the built-in network, ten families of
``transformers`` with the settings listed here, and timm's and open_clip's own networks by name. Whatever
else stands in a file is refused. Code from elsewhere (``torch:module:callable``) runs only if the caller
names it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from efface.data.numbers import numbers_of
from efface.errors import FormatError

CORE_SCHEMA = "efface.core/1"

WIDEST, DEEPEST, LARGEST_IMAGE = 1 << 17, 1 << 10, 1 << 13  # of any network that is meant seriously
MOST_CLASSES = 1 << 20
WIDE = (-(2.0**62), 2.0**62)
SCALARS = ("mu", "total_ridge", "target_scale", "core_weight", "seed", "power")
RESTORE = "restore the files from a copy, or train again."
ACTIVATIONS = frozenset(
    {"relu", "relu6", "leaky_relu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"}
    | {"gelu_python", "quick_gelu", "silu", "swish", "mish", "tanh", "linear"}
)


def _number(value: Any, low: float, high: float) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value) and low <= value <= high


def _count(value: Any, high: int = WIDEST) -> bool:
    return isinstance(value, int) and _number(value, 0, high)


def _counts(value: Any, high: int = WIDEST) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 16 and all(_count(v, high) for v in value)


def _side(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2
    return all(_count(v, LARGEST_IMAGE) and v for v in (value if pair else [value]))


def _layers(value: Any) -> bool:
    return _count(value, DEEPEST)


def _depths(value: Any) -> bool:
    return _counts(value, DEEPEST)


def _real(value: Any) -> bool:
    return _number(value, -1e6, 1e6)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _activation(value: Any) -> bool:
    return isinstance(value, str) and value in ACTIVATIONS


def _block(value: Any) -> bool:
    return value in ("basic", "bottleneck")


def _mean(value: Any) -> bool:
    return value == "mean"


def _places(value: Any) -> bool:
    return value == [] or _counts(value, DEEPEST)


# Every setting that an architecture may have, with what it must look like.
CHECKS = {
    "apply_layernorm": _flag,
    "attention_dropout": _real,
    "attention_probs_dropout_prob": _real,
    "batch_norm_eps": _real,
    "batch_norm_momentum": _real,
    "depth_coefficient": _real,
    "depth_divisor": _count,
    "depths": _depths,
    "depthwise_padding": _places,
    "downsample_in_bottleneck": _flag,
    "downsample_in_first_stage": _flag,
    "drop_connect_rate": _real,
    "drop_path_rate": _real,
    "dropout_rate": _real,
    "embed_dim": _count,
    "embedding_size": _count,
    "encoder_stride": _count,
    "expand_ratios": _depths,
    "hidden_act": _activation,
    "hidden_dim": _count,
    "hidden_dropout_prob": _real,
    "hidden_size": _count,
    "hidden_sizes": _counts,
    "image_size": _side,
    "in_channels": _counts,
    "initializer_range": _real,
    "intermediate_size": _count,
    "kernel_sizes": _depths,
    "layer_norm_eps": _real,
    "layer_scale_init_value": _real,
    "layer_type": _block,
    "layerscale_value": _real,
    "mlp_ratio": _real,
    "num_attention_heads": _count,
    "num_block_repeats": _depths,
    "num_channels": _count,
    "num_heads": _counts,
    "num_hidden_layers": _layers,
    "num_layers": _layers,
    "num_stages": _layers,
    "out_channels": _counts,
    "patch_size": _side,
    "pooling_type": _mean,
    "pooler_act": _activation,
    "pooler_output_size": _count,
    "qkv_bias": _flag,
    "reshape_hidden_states": _flag,
    "squeeze_expansion_ratio": _real,
    "strides": _depths,
    "use_absolute_embeddings": _flag,
    "use_mask_token": _flag,
    "use_swiglu_ffn": _flag,
    "width_coefficient": _real,
    "window_size": _side,
}
_CONV = frozenset({"depths", "hidden_sizes", "hidden_act", "num_channels"})
_CONVNEXT = _CONV | {"drop_path_rate", "image_size", "initializer_range", "layer_norm_eps"}
_CONVNEXT |= {"layer_scale_init_value", "num_stages", "patch_size"}
_TOKENS = frozenset({"attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob"})
_TOKENS |= {"hidden_size", "image_size", "initializer_range", "layer_norm_eps", "num_channels"}
_TOKENS |= {"patch_size", "qkv_bias"}
_VIT = _TOKENS | {"encoder_stride", "intermediate_size", "num_attention_heads", "num_hidden_layers"}
_VIT |= {"pooler_act", "pooler_output_size"}
_DINO = _TOKENS | {"apply_layernorm", "drop_path_rate", "layerscale_value", "mlp_ratio"}
_DINO |= {"num_attention_heads", "num_hidden_layers", "reshape_hidden_states", "use_mask_token"}
_SWIN = _TOKENS | {"depths", "drop_path_rate", "embed_dim", "encoder_stride", "mlp_ratio"}
_RESNET = _CONV | {"downsample_in_bottleneck", "downsample_in_first_stage", "embedding_size"}
_EFFICIENT = frozenset({"batch_norm_eps", "batch_norm_momentum", "depth_coefficient"})
_EFFICIENT |= {"depth_divisor", "depthwise_padding", "drop_connect_rate", "dropout_rate"}
_EFFICIENT |= {"expand_ratios", "hidden_act", "hidden_dim", "image_size", "in_channels"}
_EFFICIENT |= {"initializer_range", "kernel_sizes", "num_block_repeats", "num_channels"}
_EFFICIENT |= {"out_channels", "pooling_type", "squeeze_expansion_ratio", "strides"}
_TOWER = frozenset({"attention_dropout", "hidden_act", "hidden_size", "image_size"})
_TOWER |= {"intermediate_size", "layer_norm_eps", "num_attention_heads", "num_channels"}
_TOWER |= {"num_hidden_layers", "patch_size"}
HF_NAMES = {
    "resnet": "ResNet",
    "convnext": "ConvNext",
    "convnextv2": "ConvNextV2",
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "Dinov2",
    "swin": "Swin",
    "efficientnet": "EfficientNet",
}
HF_CLASSES = {family: f"{name}ForImageClassification" for family, name in HF_NAMES.items()}
# Image towers: half of a network that compares pictures with words.
HF_CLASSES |= {
    "clip_vision_model": "CLIPVisionModel",
    "siglip_vision_model": "SiglipVisionModel",
}
FAMILIES: Mapping[str, frozenset[str]] = {
    "resnet": _RESNET | {"layer_type"},
    "convnext": _CONVNEXT,
    "convnextv2": _CONVNEXT,
    "vit": _VIT,
    "deit": _VIT,
    "dinov2": _DINO | {"use_swiglu_ffn"},
    "swin": _SWIN | {"num_heads", "num_layers", "use_absolute_embeddings", "window_size"},
    "efficientnet": _EFFICIENT | {"width_coefficient"},
    "clip_vision_model": _TOWER | {"initializer_range"},
    "siglip_vision_model": _TOWER,
}


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a transformers configuration describes the network; the rest is left out.

    FormatError for a family that is not on the list or a setting that is not what it should be.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise FormatError(
            f"{family!r} is not a family of networks that efface builds.",
            f"use one of {', '.join(FAMILIES)}, or pass the network itself, in Python.",
        )
    chosen = {name: config[name] for name in sorted(FAMILIES[family]) if name in config}
    for name, value in chosen.items():
        if not CHECKS[name](value):
            raise FormatError(f"{name} of a {family} cannot be {value!r:.80}.", RESTORE)
    return {"model_type": family, **chosen}


def check_core(values: Mapping[str, Any], *, module_given: bool) -> None:
    """Everything in ``core.json`` that decides what is built; the weights are not looked at."""
    _check_settings(values)
    spec, source = values["backbone"], values["source"] or {}
    kind, _, name = spec.partition(":")
    if spec == "module" or kind == "torch":
        _require_module(spec, module_given)
    elif module_given:
        message = f"this core is {spec!r:.80}: it is built without a module."
        raise FormatError(message, "leave out module= (--trust-module).")
    elif spec == "hf:saved":
        if set(source) != {"config"} or not isinstance(source["config"], dict):
            _refuse("source", source)
        if plain_config(source["config"]) != source["config"]:
            extra = set(source["config"]) - {
                "model_type",
                *FAMILIES[source["config"]["model_type"]],
            }
            _refuse("the network's settings", sorted(extra))
    elif kind == "timm":
        # No prefix and no slash: `hf-hub:…` and `local-dir:…` would be fetched or read from there.
        if source != {"timm": name} or not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?", name):
            _refuse("backbone", spec)
    elif kind == "open_clip":
        if source != {"open_clip": name} or not re.fullmatch(
            r"[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*", name
        ):
            _refuse("backbone", spec)
    elif spec != "cnn" or source:
        _refuse("backbone", spec)


def _check_settings(values: Mapping[str, Any]) -> None:
    """Types and ranges; a KeyError for what is missing, as the caller expects."""
    classes, prep = values["classes"], values["preprocess"]
    named = isinstance(classes, list) and all(isinstance(c, str) for c in classes)
    if not named or not 2 <= len(classes) <= MOST_CLASSES:
        _refuse("classes", classes)
    slope = values["leaky_slope"]
    checks = {
        "backbone": isinstance(values["backbone"], str),
        "source": values["source"] is None or isinstance(values["source"], dict),
        "linearize": isinstance(values["linearize"], str),
        "leaky_slope": slope is None or _number(slope, -10, 10),
        "fold_batchnorm": _flag(values["fold_batchnorm"]),
        "mirror": _flag(values.get("mirror", False)),
        "seed": isinstance(values["seed"], int) and _number(values["seed"], -(2**63), 2**63 - 1),
        "digest": is_digest(values["digest"]),
        "preprocess": isinstance(prep, dict),
    }
    for name, fine in checks.items():
        if not fine:
            _refuse(name, values.get(name))
    if "kind" in prep:
        numbers_of(prep)
        return
    sides = all(_count(prep[name], LARGEST_IMAGE) for name in ("resize", "crop"))
    means = all(isinstance(prep[n], list) and all(map(_real, prep[n])) for n in ("mean", "std"))
    if not sides or not means or prep["channels"] not in (1, 2, 3, 4):
        _refuse("preprocess", prep)


def check_user(settings: Mapping[str, Any]) -> None:
    """The settings of a user part: plain values, and numbers that are meant as such."""
    if not isinstance(settings, dict) or not isinstance(settings.get("kind"), str):
        raise FormatError("model.json: there is no user part.", RESTORE)
    for name, value in settings.items():
        if name == "form" and isinstance(value, dict):
            continue  # checked where it is built: arithmetic.load_form
        nested = list(value.values()) if isinstance(value, dict) else value
        items = nested if isinstance(nested, list) else [nested]
        plain = all(isinstance(v, str) or v is None or _flag(v) or _number(v, *WIDE) for v in items)
        counted = not name.startswith(("features", "bits")) or _count(value, 1 << 24)
        listed = not isinstance(value, list | dict) or name in ("layers", "energies", "scales")
        scalar = value is None or _number(value, *WIDE) or name not in SCALARS
        if not (plain and counted and listed and scalar):
            raise FormatError(f"model.json: {name} cannot be {value!r:.80}.", RESTORE)


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _require_module(spec: str, given: bool) -> None:
    if given:
        return
    if spec == "module":
        message = "this core was built from an nn.Module object."
        raise FormatError(
            message, "pass it again, in Python: load(path, module=…); commands cannot."
        )
    name = spec.partition(":")[2]
    raise FormatError(
        f"this core is built by code, {name!r:.200}, and a model's files do not get to run code.",
        "if you trust that code, name it: --trust-module NAME (in Python: module=…).",
    )


def _refuse(name: str, value: Any) -> NoReturn:
    raise FormatError(f"core.json: {name} cannot be {value!r:.200}.", RESTORE)
