"""EfficientNet, and the image towers of CLIP and SigLIP: cut, computed exactly, saved, and opened again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests import cases
from tests.places import ROOT
from torch import Tensor, nn

from efface.arithmetic.choice import Arithmetic, choose_form
from efface.data.preprocess import Preprocess
from efface.data.record import Split
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.families import cut
from efface.network.saved import FAMILIES, plain_config

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

CLASSES = ("a", "b", "c")
CORE = cases.tiny_records(16, 0, split=Split.CORE)
USER = cases.tiny_records(20, 1)
TOWER = {
    "image_size": 8,
    "patch_size": 4,
    "hidden_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 7,
}
EFFICIENT = {
    "image_size": 16,
    "width_coefficient": 1.0,
    "depth_coefficient": 1.0,
    "depth_divisor": 2,
    "kernel_sizes": [3, 3],
    "in_channels": [32, 4],
    "out_channels": [4, 6],
    "strides": [1, 2],
    "num_block_repeats": [1, 2],
    "expand_ratios": [1, 2],
    "hidden_dim": 1280,
}
NETWORKS = {
    "efficientnet": ("EfficientNetConfig", "EfficientNetForImageClassification", EFFICIENT),
    "clip_vision_model": ("CLIPVisionConfig", "CLIPVisionModel", TOWER),
    "siglip_vision_model": ("SiglipVisionConfig", "SiglipVisionModel", TOWER),
}


def network(family: str) -> nn.Module:
    config, kind, options = NETWORKS[family]
    net = getattr(transformers, kind)(getattr(transformers, config)(**options))
    return cases.randomised(net).eval()


def own_features(family: str, net: nn.Module, x: Tensor) -> Tensor:
    """What transformers itself has for them."""
    if family == "efficientnet":
        return net.efficientnet(x).pooler_output
    if family == "clip_vision_model":
        return net(x).pooler_output
    return net(x).last_hidden_state.mean(1)


@pytest.mark.parametrize("family", NETWORKS)
def test_steps_give_the_networks_own_features(family: str) -> None:
    net = network(family).double()
    side = net.config.image_size
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, side, side, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        found = x
        for step in cut(net):
            found = step.module(found)
        assert found.std() > 0.01
        expected = own_features(family, net, x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", NETWORKS)
def test_settings_that_describe_it_are_all_listed(family: str) -> None:
    """Built from them alone it has the same weights, by name and shape."""
    from efface.network.backbone import build_hf

    net = network(family)
    plain = plain_config(json.loads(net.config.to_json_string(use_diff=False)))
    assert set(plain) - {"model_type"} <= FAMILIES[family]
    again = build_hf(plain)
    shapes = [
        {k: v.shape for k, v in n.state_dict().items() if "classifier" not in k}
        for n in (net, again)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("family", NETWORKS)
def test_a_folder_is_opened_forgotten_in_exactly_and_saved(family: str, tmp_path: Path) -> None:
    net = network(family)
    side = net.config.image_size
    net.save_pretrained(tmp_path / "net")
    core = Core(f"hf:{tmp_path / 'net'}", classes=CLASSES, preprocess=Preprocess(side, side))
    model = MixedLinear(core.fit(CORE), features=60).fit(USER, replay=CORE)
    assert model.user.form.kind == "exact"
    certificate = model.forget(ids=list(USER.ids[:5]))
    never = MixedLinear(core, features=60).fit(USER[5:], replay=CORE)
    assert certificate.weights_digest == never.user.weights_digest
    model.save(tmp_path / "model")
    assert torch.equal(MixedLinear.load(tmp_path / "model").logits(USER), model.logits(USER))


def test_of_a_whole_clip_the_half_for_pictures_is_taken(tmp_path: Path) -> None:
    config = transformers.CLIPConfig(
        vision_config=TOWER,
        text_config={"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
        | {"intermediate_size": 4, "vocab_size": 9},
        projection_dim=4,
    )
    whole = cases.randomised(transformers.CLIPModel(config)).eval()
    whole.save_pretrained(tmp_path)
    core = Core(f"hf:{tmp_path}", classes=CLASSES, preprocess=Preprocess(8, 8))
    x = core.images(USER[:4])
    with torch.no_grad():
        found = core.tail.features(core.boundary(x))
        expected = whole.vision_model(x).pooler_output
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert core.backbone.source["config"]["model_type"] == "clip_vision_model"


def table() -> dict[str, str]:
    """Family -> form, as docs/networks.md has it."""
    lines = (ROOT / "docs/networks.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    return {row[0]: row[1] for row in cells if row[0] in FAMILIES}


def test_the_table_of_networks_lists_every_family() -> None:
    assert set(table()) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_the_form_of_the_table(family: str) -> None:
    if family in NETWORKS:
        net = network(family)
        side = net.config.image_size
    else:
        name = "resnet-bottleneck" if family == "resnet" else family
        net, side = cases.randomised(cases.tiny(name)).eval(), cases.TINY[name][1]
    core = Core(net, classes=CLASSES, preprocess=Preprocess(side, side))
    assert choose_form(core, Arithmetic.AUTO, CORE).form.kind == table()[family]
