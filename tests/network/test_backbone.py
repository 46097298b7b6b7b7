"""Where networks come from: the built-in one, transformers folders, callables; and their settings."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import cases
from tests.places import WEIGHTS
from torch import nn

from efface.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from efface.errors import BackboneError
from efface.network.backbone import Backbone, load_backbone
from efface.network.blocks import digits_cnn


def saved(folder: Path, name: str = "resnet-bottleneck", **preprocessor: object) -> Path:
    torch.manual_seed(0)
    cases.tiny(name).save_pretrained(folder)
    if preprocessor:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def weights(backbone: Backbone) -> list[torch.Tensor]:
    return [p for step in backbone.steps for p in step.module.parameters()]


def test_the_built_in_network_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = weights(load_backbone("cnn", seed=3))
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    again, other = weights(load_backbone("cnn", seed=3)), weights(load_backbone("cnn", seed=4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert torch.equal(torch.random.get_rng_state(), before)  # nobody else's numbers are used up


def test_the_built_in_network_takes_gray_images_as_they_are() -> None:
    backbone = load_backbone("cnn")
    assert backbone.preprocess == Preprocess(0, 0, 1, (0.5,), (0.5,))
    assert backbone.names == ["0", "1", "2", "3"]


def test_a_transformers_folder_loads_with_its_weights(tmp_path: Path) -> None:
    backbone = load_backbone(f"hf:{saved(tmp_path)}")
    torch.manual_seed(0)
    net = cases.tiny("resnet-bottleneck")
    ours = {p.data_ptr(): p for p in weights(backbone)}
    theirs = [p for name, p in net.named_parameters() if not name.startswith("classifier")]
    assert sorted(p.sum().item() for p in ours.values()) == sorted(p.sum().item() for p in theirs)


def test_the_source_rebuilds_the_architecture_without_the_folder(tmp_path: Path) -> None:
    first = load_backbone(f"hf:{saved(tmp_path / 'net')}")
    again = load_backbone("hf:saved", source=first.source)
    assert again.names == first.names
    assert [w.shape for w in weights(again)] == [w.shape for w in weights(first)]
    assert str(tmp_path) not in json.dumps(first.source)  # a path of this machine


@pytest.mark.parametrize(
    ("preprocessor", "want"),
    [
        ({}, Preprocess(resize=256, crop=224)),  # ResNet's configuration has no image size
        (
            {
                "size": {"shortest_edge": 40},
                "crop_size": {"height": 32, "width": 32},
                "resample": 3,
            },
            Preprocess(resize=40, crop=32, interpolation="bicubic"),
        ),
        (
            {"size": 24, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, "crop_size": 16},
            Preprocess(resize=24, crop=16, mean=(0.5,) * 3, std=(0.25,) * 3),
        ),
        (
            {"size": {"shortest_edge": 28}, "crop_pct": 0.875, "crop_size": 28},
            Preprocess(resize=32, crop=28),
        ),
    ],
)
def test_the_folders_preprocessing_is_read(
    tmp_path: Path, preprocessor: dict[str, object], want: Preprocess
) -> None:
    assert load_backbone(f"hf:{saved(tmp_path, **preprocessor)}").preprocess == want


def test_the_image_size_of_the_configuration_is_the_default(tmp_path: Path) -> None:
    preprocess = load_backbone(f"hf:{saved(tmp_path, 'vit')}").preprocess
    assert (preprocess.resize, preprocess.crop) == (9, 8)  # 8 · 256/224, rounded
    assert (preprocess.mean, preprocess.std) == (IMAGENET_MEAN, IMAGENET_STD)


def test_the_callers_preprocessing_comes_first(tmp_path: Path) -> None:
    mine = Preprocess(resize=16, crop=16)
    assert load_backbone(f"hf:{saved(tmp_path, size=99)}", preprocess=mine).preprocess == mine


def test_a_file_in_half_precision_is_loaded_as_it_is(tmp_path: Path) -> None:
    """Its statistics are often kept in float32, and do not fit float16."""
    net = cases.tiny("resnet-basic")
    net.resnet.embedder.embedder.normalization.running_var.fill_(1e6)
    net.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    narrow = {
        k: v.half() if v.is_floating_point() and "running" not in k else v
        for k, v in tensors.items()
    }
    save_file(narrow, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    steps = load_backbone(f"hf:{tmp_path}").steps
    state = nn.Sequential(*[step.module for step in steps]).state_dict()
    assert all(v.dtype == torch.float32 for v in state.values() if v.is_floating_point())
    assert float(state["0.1.running_var"].max()) == 1e6


def test_a_folder_that_is_not_there_says_what_to_give(tmp_path: Path) -> None:
    for where in (tmp_path / "nothing", "./nothing", "~/nothing", "a/b/nothing"):
        with pytest.raises(BackboneError, match=r"no folder.*config\.json and model\.safetensors"):
            load_backbone(f"hf:{where}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackboneError, match=r"cannot load.*config\.json and model\.safetensors"):
        load_backbone(f"hf:{tmp_path / 'empty'}")


@pytest.mark.parametrize("spec", ["resnet50", "cnn:2", "keras:x", ""])
def test_unknown_backbones_list_the_known_ones(spec: str) -> None:
    with pytest.raises(BackboneError, match=r"unknown backbone.*cnn, hf:DIR_OR_ID, timm:NAME"):
        load_backbone(spec)


# --- callables and modules ------------------------------------------------------------------------


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("made_up_networks")
    module.build, module.net, module.number = digits_cnn, digits_cnn(), lambda: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up_networks", module)
    return module


def test_a_callable_or_a_module_can_be_named(made_up: types.ModuleType) -> None:
    built = load_backbone("torch:made_up_networks:build", seed=5)
    assert built.spec == "torch:made_up_networks:build"
    again = load_backbone("torch:made_up_networks:build", seed=5)
    pairs = zip(weights(built), weights(again), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)  # the seed decides, also here
    named = load_backbone("torch:made_up_networks:net")
    assert weights(named)[0] is next(made_up.net.parameters())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("made_up_networks", "names no callable"),
        ("made_up_networks:missing", "cannot import"),
        ("no_such_package:build", "cannot import"),
        ("made_up_networks:number", "returned a int"),
    ],
)
def test_callables_that_do_not_work_say_why(
    made_up: types.ModuleType, path: str, message: str
) -> None:
    with pytest.raises(BackboneError, match=message):
        load_backbone(f"torch:{path}")


def test_a_module_is_cut_at_the_boundary_it_is_given() -> None:
    backbone = load_backbone(cases.Plain(), boundary="block.a")
    assert backbone.spec == "module"
    assert backbone.names == ["prefix", "block.a"]


def test_a_backbone_is_taken_as_it_is() -> None:
    backbone = load_backbone(nn.Sequential(nn.Conv2d(3, 2, 1)))
    assert load_backbone(backbone) is backbone


def test_timm_is_asked_for_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # makes `import timm` fail
    with pytest.raises(BackboneError, match=r"timm cannot be imported.*efface\[timm\]"):
        load_backbone("timm:resnet18")


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="the ResNet-50 weights are not beside the project")
def test_the_real_resnet50_loads() -> None:
    backbone = load_backbone(f"hf:{WEIGHTS}")
    assert backbone.names[backbone.boundary("last-block")] == "resnet.encoder.stages.3.layers.2"
    assert backbone.preprocess.crop == 224
    assert backbone.preprocess.mean == IMAGENET_MEAN
