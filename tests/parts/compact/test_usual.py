"""Which features a part has where nobody says."""

from __future__ import annotations

import pytest
from tests import cases
from torch import nn

from efface import Tokens
from efface.data.preprocess import Preprocess
from efface.errors import EffaceError
from efface.network.core import Core
from efface.parts.compact.user import CompactUser
from efface.pipeline.config import load_config


def core_of(net: nn.Module | str) -> Core:
    prepare = None if net == "cnn" else Preprocess(resize=8, crop=8)
    return Core(net, classes=["a", "b", "c"], preprocess=prepare)


@pytest.mark.parametrize("name", ["resnet-bottleneck", "resnet-basic"])
@pytest.mark.parametrize("linearize", ["last-block", "head"])
def test_covariances_and_roots_of_rectified_features(name: str, linearize: str) -> None:
    core = Core(cases.tiny(name), classes=["a", "b"], linearize=linearize)
    part = CompactUser(core)
    assert (part.layer_features, part.power) == ("covariances", 0.5)
    built_in = CompactUser(core_of("cnn"))
    assert (built_in.layer_features, built_in.power) == ("covariances", 0.5)


@pytest.mark.parametrize("name", ["vit", "convnext", "dinov2"])
def test_gradients_as_they_are_of_others(name: str) -> None:
    part = CompactUser(core_of(cases.tiny(name)))
    assert (part.layer_features, part.power) == ("gradients", 1.0)


def test_gradients_of_what_is_no_image() -> None:
    from tests.door.test_numbers import READ, deep

    assert isinstance(READ, Tokens)
    net = nn.Sequential(*deep(), nn.ReLU())
    part = CompactUser(Core(net, classes=["a", "b"], preprocess=READ))
    assert (part.layer_features, part.power) == ("gradients", 1.0)


def test_what_is_said_counts() -> None:
    core = core_of("cnn")
    part = CompactUser(core, layer_features="moments")
    assert (part.layer_features, part.power) == ("moments", 0.5)
    part = CompactUser(core, power=0.25)
    assert (part.layer_features, part.power) == ("maps", 0.25)
    asked = CompactUser(core_of(cases.tiny("vit")), layer_features="covariances")
    assert (asked.layer_features, asked.power) == ("covariances", 0.5)
    with pytest.raises(EffaceError, match="leave the power out"):
        CompactUser(core, layer_features="covariances", power=0.25)
    config = load_config(None, {"data.spec": "digits", "user.power": 1})
    made = config.user.build(core).user
    assert (made.layer_features, made.power) == ("maps", 1.0)


def test_files_of_the_first_versions_say_nothing() -> None:
    part = CompactUser(core_of("cnn"), layer_features=None, power=None)
    assert not {"layer_features", "power"} & set(part.settings)
    again = CompactUser.load(part.core, part.settings, {})
    assert (again.layer_features, again.power) == (None, None)
