"""Images larger than a network was trained on: 288 pixels for ResNets that come with 224.

A network trained on random parts of images, each resized to 224 pixels, has seen things larger than a
central crop of 224 shows them (Touvron et al. 2019, "Fixing the train-test resolution discrepancy"). Of a
larger image its features are better, on birds and on objects alike (docs/method.md, "Features: covariances
and roots").
Measured for ResNets only; transformers have places for as many pixels as they were trained on.
"""

from __future__ import annotations

from dataclasses import replace

from efface.data.preprocess import Preprocess
from efface.network.backbone import Backbone

TRAINED, RESIZE, CROP = 224, 320, 288


def with_larger_images(backbone: Backbone) -> Backbone:
    """The same network on 288 pixels, if it is a ResNet of a hub that asks for 224; else as it is."""
    prepare = backbone.preprocess
    if not _is_resnet(backbone) or not isinstance(prepare, Preprocess) or prepare.crop != TRAINED:
        return backbone
    return replace(backbone, preprocess=replace(prepare, resize=RESIZE, crop=CROP))


def _is_resnet(backbone: Backbone) -> bool:
    kind, _, name = backbone.spec.partition(":")
    if kind == "hf":
        config = backbone.source.get("config", {})
        return isinstance(config, dict) and config.get("model_type") == "resnet"
    return kind == "timm" and name.startswith("resnet")
