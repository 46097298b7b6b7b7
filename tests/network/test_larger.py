"""ResNets of 224 pixels are read at 288 by the part that gains by it; whoever says a size gets that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests import cases

from efface.data.preprocess import Preprocess
from efface.door.settings import backbone_of, settings_of
from efface.errors import EffaceError
from efface.network.backbone import Backbone, load_backbone
from efface.network.larger import with_larger_images
from efface.pipeline.config import Config, load_config
from efface.pipeline.train import Training


@pytest.fixture
def resnet(tmp_path: Path) -> str:
    cases.tiny("resnet-bottleneck").save_pretrained(tmp_path / "network")
    return f"hf:{tmp_path / 'network'}"


def sides(backbone: Backbone) -> tuple[int, int]:
    prepare = backbone.preprocess
    assert isinstance(prepare, Preprocess)
    return prepare.resize, prepare.crop


def config_of(resnet: str, **values: object) -> Config:
    return load_config(None, {"data.spec": "digits", "core.backbone": resnet, **values})


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, (320, 288)),
        ({"user.kind": "tangent"}, (256, 224)),
        ({"core.resize": 256, "core.crop": 224}, (256, 224)),
        ({"core.crop": 160}, (256, 160)),
        ({"core.finetune": True}, (256, 224)),
    ],
)
def test_what_training_reads(
    values: dict[str, object], wanted: tuple[int, int], resnet: str
) -> None:
    core = Training(config_of(resnet, **values)).core(cases.tiny_records(4))
    assert sides(core.backbone) == wanted


def test_other_sizes_stay() -> None:
    small = replace(
        load_backbone("cnn"), spec="hf:saved", source={"config": {"model_type": "resnet"}}
    )
    assert with_larger_images(small) is small
    asks = replace(small, preprocess=Preprocess(resize=256, crop=224))
    assert sides(with_larger_images(asks)) == (320, 288)
    kept = replace(with_larger_images(asks).preprocess, resize=256, crop=224)  # type: ignore[type-var]
    assert kept == asks.preprocess


@pytest.mark.parametrize("spec", ["hf:vit", "torch:net:make", "module", "timm:vit_base", "cnn"])
def test_other_networks_stay(spec: str) -> None:
    prepare = Preprocess(resize=256, crop=224)
    other = replace(load_backbone("cnn"), spec=spec, preprocess=prepare)
    assert with_larger_images(other) is other
    timm = replace(other, spec="timm:resnet50.a1_in1k")
    assert sides(with_larger_images(timm)) == (320, 288)


def test_the_classifier_reads_the_same(resnet: str) -> None:
    from efface import ForgettingClassifier

    for user, wanted in (("compact", (320, 288)), ("tangent", (256, 224))):
        settings = settings_of(ForgettingClassifier(resnet, user=user).get_params())
        assert sides(backbone_of(resnet, settings, None)) == wanted
    own = Preprocess(resize=256, crop=224)
    assert (
        backbone_of(resnet, settings_of(ForgettingClassifier(resnet).get_params()), own).preprocess
        == own
    )


def test_a_size_for_what_reads_no_images() -> None:
    from efface.data.numbers import Tokens

    settings = config_of("cnn", **{"core.crop": 224}).core
    text = replace(load_backbone("cnn"), preprocess=Tokens(length=4, vocabulary=9))
    with pytest.raises(EffaceError, match="for images only"):
        settings.sized(text, larger=True)
    assert config_of("cnn").core.sized(text, larger=True) is text
