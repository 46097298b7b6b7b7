"""The classifier's parameters as the settings of a training run, and back: one list of settings for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from efface.data.preparation import Preparation
from efface.data.records import Records
from efface.errors import EffaceError
from efface.linear.solution import Status
from efface.model.mixed_linear import MixedLinear
from efface.network.backbone import Backbone, load_backbone
from efface.network.core import Core
from efface.network.device import device_named
from efface.parts.table import part_named, place_for
from efface.pipeline.config import Config, load_config
from efface.pipeline.train import Training
from efface.progress import Progress

PYTHON = (
    "python"  # the data of a model that a program trained: not a folder that could be read again
)
WHERE = {  # parameter of the classifier -> key of the settings
    "core_fraction": "data.core_fraction",
    "skip_bad": "data.skip_bad",
    "linearize": "core.linearize",
    "mirror": "core.mirror",
    "user": "user.kind",
    "features": "user.features",
    "bits": "user.bits",
    "mu": "user.mu",
    "arithmetic": "user.arithmetic",
    "replay_core": "user.replay_core",
}


def settings_of(params: dict[str, Any]) -> Config:
    """The settings that these parameters are; a value that cannot be is an error that names it."""
    device_named(params["device"])
    values = {key: params[name] for name, key in WHERE.items()}
    backbone, seed = params["backbone"], params["seed"]
    values |= {"data.spec": PYTHON, "data.seed": seed, "core.seed": seed}
    values["core.device"] = str(params["device"])
    values["core.backbone"] = backbone if isinstance(backbone, str) else "module"
    return load_config(None, values)


def params_of(config: Config) -> dict[str, Any]:
    """The parameters that these settings are, but for the device: that is the machine's."""
    tables = config.model_dump()
    found = {
        name: tables[section][key]
        for name, (section, _, key) in ((n, k.partition(".")) for n, k in WHERE.items())
    }
    return {**found, "backbone": config.core.backbone, "seed": config.core.seed}


def saved_settings(base: Path) -> Config | None:
    """Those beside a core on disk, if it was trained with such."""
    path = base / "config.toml"
    return load_config(path) if path.is_file() else None


def backbone_of(
    backbone: str | nn.Module, config: Config, preprocess: Preparation | None
) -> Backbone:
    named = config.core.linearize not in ("head", "last-block", "last-stage", "all")
    boundary = config.core.linearize if named else None
    loaded = load_backbone(
        backbone, boundary=boundary, preprocess=preprocess, seed=config.core.seed
    )
    larger = preprocess is None and part_named(config.user.kind).larger_images
    return config.core.sized(loaded, larger=larger)


def trained(
    config: Config, backbone: Backbone, records: Records, progress: Progress | None = None
) -> MixedLinear:
    """A core of the core records, or of the network as it comes, and a user part of the user records."""
    settings = config.core
    core = Core(
        backbone,
        classes=records.classes,
        linearize=settings.linearize,
        leaky_slope=settings.leaky_slope or None,
        fold_batchnorm=settings.fold_batchnorm,
        mirror=settings.mirror,
        seed=settings.seed,
    )
    core.place = place_for(config.user.kind, settings.device)
    if not len(records.core) and backbone.spec == "cnn":
        fix = "give core=(images, labels) or core_fraction=0.3, or start from a pretrained network."
        raise EffaceError("no core data, and the built-in network knows nothing yet.", fix)
    training = Training(config)
    training.fit_core(core, records, progress)
    model = training.fit_user(core, records, progress)
    if model.solution is not None and model.solution.status is Status.DIVERGED:
        raise EffaceError("the solver diverged; nothing was fitted.", model.solution.advice)
    return model
