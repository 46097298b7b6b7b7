"""Image towers of open_clip: by stand-ins with its attribute names, and the package where it is there."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests import cases
from torch import Tensor, nn

from efface.data.record import Split
from efface.errors import BackboneError
from efface.model.mixed_linear import MixedLinear
from efface.network import blocks
from efface.network.backbone import load_backbone
from efface.network.core import Core
from efface.network.families import cut

CLASSES = ("a", "b", "c")
CORE = cases.tiny_records(16, 0, split=Split.CORE)
USER = cases.tiny_records(20, 1)
MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.ls_1, self.ls_2 = nn.Identity(), nn.Identity()
        layers = {"c_fc": nn.Linear(width, 9), "gelu": nn.GELU(), "c_proj": nn.Linear(9, width)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.ls_1(self.attn(y, y, y, need_weights=False)[0])
        return x + self.ls_2(self.mlp(self.ln_2(x)))


def tower(pool: str = "tok", late_norm: bool = False, attn_pool: nn.Module | None = None) -> Any:
    class VisionTransformer(nn.Module):
        def __init__(self, width: int = 6) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, width, 4, stride=4, bias=False)
            self.class_embedding = nn.Parameter(torch.zeros(width))
            self.positional_embedding = nn.Parameter(torch.zeros(5, width))
            self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
            self.transformer = nn.Module()
            self.transformer.resblocks = nn.ModuleList(
                ResidualAttentionBlock(width) for _ in range(2)
            )
            self.pool_type, self.final_ln_after_pool, self.attn_pool = pool, late_norm, attn_pool
            self.proj = nn.Parameter(torch.zeros(width, 3))

        def features(self, x: Tensor) -> Tensor:
            """Before the projection, which is not ours."""
            x = self.conv1(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1)
            x = self.ln_pre(x + self.positional_embedding)
            for block in self.transformer.resblocks:  # type: ignore[union-attr]
                x = block(x)
            if late_norm:
                return self.ln_post(x[:, 0] if pool == "tok" else x[:, 1:].mean(1))
            x = self.ln_post(x)
            return x[:, 0] if pool == "tok" else x[:, 1:].mean(1)

    VisionTransformer.__module__ = "open_clip.transformer"
    return cases.randomised(VisionTransformer().eval())


def features(net: nn.Module, x: Tensor) -> Tensor:
    for step in cut(net):
        x = step.module(x)
    return x


def pictures(side: int = 8, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize("late_norm", [False, True])
@pytest.mark.parametrize("pool", ["tok", "avg"])
def test_steps_give_the_towers_own_features(pool: str, late_norm: bool) -> None:
    net, x = tower(pool, late_norm).double(), pictures()
    expected = net.features(x)
    assert expected.std() > 0.01
    torch.testing.assert_close(features(net, x), expected, rtol=1e-12, atol=1e-12)  # other kernels


def test_attention_in_plain_products_is_torchs() -> None:
    for bias in (True, False):
        theirs = nn.MultiheadAttention(6, 3, bias=bias, batch_first=True).double()
        cases.randomised(theirs)
        x = torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        ours = blocks.SelfAttention(theirs)
        torch.testing.assert_close(ours(x), theirs(x, x, x)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given", [{"pool": "none"}, {"attn_pool": nn.Identity()}])
def test_a_tower_of_another_kind_is_refused(given: Any) -> None:
    with pytest.raises(BackboneError, match=r"attention of its own kind.*ViT-B-32"):
        cut(tower(**given))


def test_a_tower_that_is_timms_is_cut_as_timms_is() -> None:
    net = SimpleNamespace(trunk=nn.Sequential(nn.Conv2d(3, 4, 3), blocks.GlobalMean()))
    TimmModel = type("TimmModel", (nn.Module,), {"__module__": "open_clip.timm_model"})
    wrapped = TimmModel()
    wrapped.trunk = net.trunk
    assert [step.name for step in cut(wrapped)] == ["0", "1"]


# --- by its name ------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A package ``open_clip`` that knows one network, and what was asked of it."""
    calls: list[dict[str, Any]] = []

    def create_model(name: str, **options: Any) -> nn.Module:
        calls.append({"name": name, **options})
        if options.get("pretrained") == "nowhere":
            raise RuntimeError("Pretrained value 'nowhere' is not a known tag or valid file path")
        whole = nn.Module()
        whole.visual = tower()
        if "pretrained" not in options:
            for weight in whole.visual.parameters():
                nn.init.zeros_(weight)
        return whole

    package = ModuleType("open_clip")
    values = {"size": (8, 8), "mean": MEAN, "std": STD, "interpolation": "bicubic"}
    package.create_model = create_model  # type: ignore[attr-defined]
    package.list_models = lambda: ["ViT-T-4"]  # type: ignore[attr-defined]
    package.get_model_preprocess_cfg = lambda whole: values  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "open_clip", package)
    return calls


def test_by_name_and_weights(asked: list[dict[str, Any]]) -> None:
    backbone = load_backbone("open_clip:ViT-T-4:laion2b")
    assert asked == [{"name": "ViT-T-4", "pretrained": "laion2b", "weights_only": True}]
    assert (backbone.preprocess.resize, backbone.preprocess.crop) == (8, 8)
    assert (backbone.preprocess.mean, backbone.preprocess.std) == (MEAN, STD)
    assert backbone.preprocess.interpolation == "bicubic"
    assert backbone.names[backbone.boundary("last-block")] == "resblocks.1"


def test_saved_and_opened_without_the_file_it_came_from(
    asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    core = Core("open_clip:ViT-T-4:private/photos/weights.pt", classes=CLASSES)
    core.save(tmp_path / "saved")
    assert "private" not in (tmp_path / "saved" / "core.json").read_text()
    again = Core.load(tmp_path / "saved")
    assert "pretrained" not in asked[-1]  # nothing is fetched, and words have one layer
    assert asked[-1]["text_cfg"]["layers"] == 1
    assert again.digest == core.digest
    records = cases.tiny_records(4, 0)
    torch.testing.assert_close(again.logits(records), core.logits(records), rtol=0, atol=0)


def test_a_model_on_it_forgets_exactly(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    core = Core("open_clip:ViT-T-4:laion2b", classes=CLASSES).fit(CORE)
    model = MixedLinear(core, features=60).fit(USER, replay=CORE)
    assert model.user.form.kind == "exact"
    certificate = model.forget(ids=list(USER.ids[:5]))
    never = MixedLinear(core, features=60).fit(USER[5:], replay=CORE)
    assert certificate.weights_digest == never.user.weights_digest


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("open_clip:ViT-T-4", "does not say which weights.*open_clip:NAME:FILE"),
        ("open_clip:ViT-X:tag", "no network 'ViT-X'.*list_models"),
        ("open_clip:ViT-T-4:nowhere", "cannot load 'ViT-T-4:nowhere'.*list_pretrained"),
    ],
)
def test_what_it_cannot_load_is_said(asked: list[dict[str, Any]], spec: str, told: str) -> None:
    with pytest.raises(BackboneError, match=told):
        load_backbone(spec)


def test_it_is_asked_for_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(BackboneError, match=r"open_clip cannot be imported.*efface\[open-clip\]"):
        load_backbone("open_clip:ViT-B-32:laion2b_s34b_b79k")


@pytest.mark.parametrize("name", ["ViT-B-32", "convnext_base", "ViT-B-16-SigLIP"])
def test_the_real_open_clip(name: str, tmp_path: Path) -> None:
    """With random weights in a file; what it computes itself is held against the steps."""
    open_clip = pytest.importorskip("open_clip", reason="an extra; it needs a fitting torchvision")
    torch.manual_seed(0)
    whole = open_clip.create_model(name)
    torch.save(whole.state_dict(), tmp_path / "weights.pt")
    backbone = load_backbone(f"open_clip:{name}:{tmp_path / 'weights.pt'}")
    x = pictures(backbone.preprocess.crop, torch.float32)
    found = x
    with torch.no_grad():
        for step in backbone.steps:
            found = step.module(found)
        if name == "ViT-B-32":
            expected = whole.eval().visual(x)
            found = found @ whole.visual.proj
        elif name == "convnext_base":
            expected = whole.eval().visual(x)
            found = whole.visual.head(found)
        else:
            trunk = whole.eval().visual.trunk
            expected = trunk.forward_features(x).mean(1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # float32, other kernels
    again = load_backbone(f"open_clip:{name}", source={"open_clip": name})
    shapes = [
        [p.shape for step in b.steps for p in step.module.parameters()] for b in (backbone, again)
    ]
    assert shapes[0] == shapes[1]
