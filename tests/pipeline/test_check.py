"""``check`` finds what breaks linearisation, says what to do, and is quiet about sound networks."""

from __future__ import annotations

import pytest
import torch
from tests import cases
from torch import Tensor, nn

from efface.errors import BackboneError
from efface.network.blocks import GlobalMean, MeanToken
from efface.pipeline.check import Obstacle, check


class Tokens(nn.Module):
    """Images to tokens (n, t, 4), as a transformer's embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 56, stride=56)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).flatten(2).transpose(1, 2)


def findings(*block: nn.Module, tokens: bool = False) -> list[Obstacle]:
    """What is found in a network whose last block is made of these modules."""
    torch.manual_seed(0)
    stem, pool = (
        (Tokens(), MeanToken()) if tokens else (nn.Conv2d(3, 4, 56, stride=56), GlobalMean())
    )
    return check(nn.Sequential(stem, nn.Sequential(*block), pool))


def only(found: list[Obstacle], text: str) -> Obstacle:
    """The one finding whose problem contains the text."""
    (match,) = [finding for finding in found if text in finding.problem]
    assert match.fix
    return match


@pytest.mark.parametrize(
    "block", [(nn.Conv2d(4, 4, 1), nn.LeakyReLU(0.1)), (nn.Conv2d(4, 4, 3), nn.GELU())]
)
def test_sound_networks_have_no_findings(block: tuple[nn.Module, ...]) -> None:
    assert findings(*block) == []


def test_the_built_in_network_only_has_its_relu() -> None:
    (finding,) = check("cnn")
    assert finding.fixed
    assert "LeakyReLU" in finding.fix


@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.SiLU(inplace=True)])
def test_in_place_modules_are_taken_care_of(activation: nn.Module) -> None:
    found = findings(activation, nn.Conv2d(4, 4, 1))  # first, where it meets the saved activations
    finding = only(found, "in place")
    assert finding.module.endswith("1.0")
    assert all(finding.fixed for finding in found)  # and forward and reverse mode agree


def test_dropout_is_switched_off() -> None:
    finding = only(findings(nn.Conv2d(4, 4, 1), nn.Dropout(0.3)), "dropout p = 0.3")
    assert finding.fixed
    assert "eval mode" in finding.fix


def test_frozen_batchnorm_is_folded() -> None:
    assert only(findings(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), "BatchNorm").fixed


def test_batchnorm_without_statistics_is_not() -> None:
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    finding = only(findings(nn.Conv2d(4, 4, 1), norm), "without running statistics")
    assert not finding.fixed
    assert "GroupNorm" in finding.fix


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize(
    "module", [SelfAttention(), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)]
)
def test_fused_attention_modules_need_the_caller(module: nn.Module) -> None:
    found = findings(module, tokens=True)
    unsolved = [finding for finding in found if not finding.fixed]
    assert any("no forward-mode derivative" in finding.problem for finding in unsolved)
    assert any("q, k, v projections" in finding.fix for finding in unsolved)


class PlainAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_plain_attention_goes_through_the_math_kernel() -> None:
    found = findings(PlainAttention(), tokens=True)
    assert only(found, "fused attention").fixed
    assert all(finding.fixed for finding in found)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * torch.rand(1)


class Detached(nn.Module):
    """Hides its input from reverse mode by a function that has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.linear(x).detach().numpy())


def test_randomness_shows_as_a_disagreement() -> None:
    finding = only(findings(Noisy(), tokens=True), "forward and reverse mode disagree")
    assert not finding.fixed
    assert "randomness" in finding.fix


def test_what_cannot_be_differentiated_is_named() -> None:
    finding = only(findings(Detached(), tokens=True), "cannot be differentiated")
    assert not finding.fixed
    assert "later boundary" in finding.fix


def test_real_families_are_sound() -> None:
    torch.manual_seed(0)
    net = cases.hf_model("ViT", **{**cases.TINY["vit"][0], "image_size": 224, "patch_size": 112})
    assert all(finding.fixed for finding in check(net))
    net = cases.tiny("resnet-bottleneck")
    found = check(net)
    assert found
    assert all(finding.fixed for finding in found)


def test_a_boundary_can_be_named() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 56, stride=56), nn.Conv2d(4, 4, 1)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))).mean(dim=(2, 3)))

    assert check(Two(), linearize="b") == []
    with pytest.raises(BackboneError, match="name the boundary"):
        check(Two())
