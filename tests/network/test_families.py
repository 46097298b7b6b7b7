"""The steps of a network, composed, are the network; folding and leaky slopes do what they say."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from tests import cases
from torch import Tensor, nn

from efface.data.preprocess import Preprocess
from efface.errors import BackboneError
from efface.network import blocks
from efface.network.backbone import Backbone
from efface.network.families import Step, cut
from efface.network.tail import Layout, Tail


def image(side: int, channels: int = 3, n: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, channels, side, side, generator=generator, dtype=torch.float64)


def features(steps: list[Step], x: Tensor) -> Tensor:
    for step in steps:
        x = step.module(x)
    return x


# --- known families -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases.TINY)
def test_steps_and_the_networks_own_head_give_its_logits(name: str) -> None:
    net = cases.randomised(cases.tiny(name).double())
    x = image(cases.TINY[name][1])
    head = net.classifier if hasattr(net, "classifier") else net.head
    with torch.no_grad():
        # The same modules in the same order; ResNet's head flattens (n, c, 1, 1), ours is (n, c).
        torch.testing.assert_close(
            head(features(cut(net), x)), net(x).logits, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize(
    ("name", "last_block", "last_stage"),
    [
        (
            "resnet-bottleneck",
            "resnet.encoder.stages.1.layers.1",
            "resnet.encoder.stages.1.layers.0",
        ),
        ("convnext", "encoder.stages.1.layers.0", "encoder.stages.1.downsampling_layer"),
        ("vit", "layers.1", "layers.0"),
        ("dinov2", "encoder.layer.1", "encoder.layer.0"),
        ("swin", "encoder.layers.1.blocks.1", "encoder.layers.0.downsample"),
    ],
)
def test_where_the_tail_begins(name: str, last_block: str, last_stage: str) -> None:
    backbone = Backbone("test", tuple(cut(cases.tiny(name))), Preprocess())
    assert backbone.names[backbone.boundary("last-block")] == last_block
    assert backbone.names[backbone.boundary("last-stage")] == last_stage
    assert backbone.boundary("all") == 0
    assert backbone.boundary("head") == len(backbone.steps)
    assert backbone.boundary(last_block) == backbone.boundary("last-block")


def test_a_stage_can_be_named_without_its_first_block() -> None:
    backbone = Backbone("test", tuple(cut(cases.tiny("resnet-bottleneck"))), Preprocess())
    stage = backbone.boundary("resnet.encoder.stages.1")
    assert backbone.names[stage] == "resnet.encoder.stages.1.layers.0"


def test_an_unknown_boundary_lists_the_names() -> None:
    backbone = Backbone("test", tuple(cut(cases.tiny("vit"))), Preprocess())
    with pytest.raises(
        BackboneError, match=r"no step named 'layer'.*layers\.0, layers\.1, layernorm"
    ):
        backbone.boundary("layer")


def test_blocks_are_needed_for_the_last_one() -> None:
    backbone = Backbone("test", (Step("pool", blocks.GlobalMean()),), Preprocess())
    with pytest.raises(BackboneError, match="no blocks found"):
        backbone.boundary("last-block")


# --- timm, by stand-ins with timm's attribute names (it is not installed here) ---------------------


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "resnet50", "vit_tiny_patch16_224", "tf_efficientnet_lite0", "convnext_atto"),
        "vit_base_patch16_clip_quickgelu_224",
        "vit_base_patch16_rpn_224",
    ],
)
def test_the_real_timm_is_cut_into_its_own_features(name: str) -> None:
    timm = pytest.importorskip("timm", reason="an extra; it needs a torchvision that fits torch")
    net = timm.create_model(name, pretrained=False, num_classes=3).eval()
    x = image(224).float()
    with torch.no_grad():
        features = x
        for step in cut(net):
            features = step.module(features)
        expected = net.forward_head(net.forward_features(x), pre_logits=True)
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)  # float32, same kernels


class BasicBlock(nn.Module):
    def __init__(self, act: type[nn.Module] = nn.ReLU, aa: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.drop_block, self.act1, self.aa = nn.Identity(), act(), aa or nn.Identity()
        self.conv2, self.bn2 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.se, self.act2, self.downsample, self.drop_path = None, act(), None, None

    def forward(self, x: Tensor) -> Tensor:
        y = self.aa(self.act1(self.bn1(self.conv1(x))))
        return self.act2(self.bn2(self.conv2(y)) + x)


def timm_resnet(**options: object) -> nn.Module:
    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
            self.act1, self.maxpool = nn.ReLU(), nn.MaxPool2d(2)
            for s in range(1, 5):
                setattr(self, f"layer{s}", nn.Sequential(BasicBlock(**options)))  # type: ignore[arg-type]

        def forward(self, x: Tensor) -> Tensor:
            x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
            for s in range(1, 5):
                x = getattr(self, f"layer{s}")(x)
            return x.mean(dim=(2, 3))

    ResNet.__module__ = "timm.models.resnet"
    return cases.randomised(ResNet().double().eval())


@pytest.mark.parametrize("options", [{}, {"act": nn.SiLU}, {"aa": nn.AvgPool2d(3, 1, 1)}])
def test_timm_resnets_keep_their_activations_and_extras(options: dict[str, object]) -> None:
    net, x = timm_resnet(**options), image(8)
    steps = cut(net)
    torch.testing.assert_close(features(steps, x), net(x), rtol=1e-12, atol=1e-12)  # same modules
    plain = isinstance(steps[1].module, blocks.Residual)
    assert plain is ("aa" not in options)  # variants stay whole


def timm_vit(pool: str = "token", fc_norm: bool = False) -> nn.Module:
    class VisionTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.global_pool = pool
            self.patch_embed = nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), nn.Flatten(2))
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
            self.pos_embed = nn.Parameter(torch.zeros(1, 5, 4))
            self.norm_pre, self.pos_drop = nn.Identity(), nn.Dropout(0.1)
            self.blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            self.norm = nn.Identity() if fc_norm else nn.LayerNorm(4)
            self.fc_norm = nn.LayerNorm(4) if fc_norm else nn.Identity()
            self.num_prefix_tokens, self.head = 1, nn.Linear(4, 3)

        def _pos_embed(self, x: Tensor) -> Tensor:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x.transpose(1, 2)], dim=1)
            return self.pos_drop(x + self.pos_embed)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm_pre(self._pos_embed(self.patch_embed(x)))
            x = self.norm(self.blocks(x))
            return self.head(self.fc_norm(x[:, 0] if pool == "token" else x[:, 1:].mean(1)))

    VisionTransformer.__module__ = "timm.models.vision_transformer"
    return cases.randomised(VisionTransformer().double().eval())


def test_timm_transformers_see_the_weights_that_are_loaded() -> None:
    """A copy of the steps must use its own tokens, or a loaded model predicts with random ones."""
    net, other, x = timm_vit(), timm_vit(), image(8)
    nn.init.ones_(other.cls_token)
    nn.init.normal_(other.pos_embed)
    torch.testing.assert_close(net.head(features(cut(net), x)), net(x), rtol=1e-12, atol=1e-12)
    loaded = nn.Sequential(*[step.module for step in copy.deepcopy(cut(net))])
    loaded.load_state_dict(nn.Sequential(*[step.module for step in cut(other)]).state_dict())
    torch.testing.assert_close(other.head(loaded(x)), other(x), rtol=1e-12, atol=1e-12)
    names = {name.rpartition(".")[2] for name in loaded[0].state_dict()}
    assert names == {"cls_token", "pos_embed", "weight", "bias"}  # no blocks, norm or head


@pytest.mark.parametrize("fc_norm", [False, True])
def test_timm_transformers_that_pool_by_the_mean(fc_norm: bool) -> None:
    """And by attention, of which the mean of the tokens is taken, as of transformers' SigLIP."""
    x = image(8)
    for pool in ("avg", "map"):
        net = timm_vit(pool, fc_norm)
        found = net.head(features(cut(net), x))
        torch.testing.assert_close(found, net(x), rtol=1e-12, atol=1e-12)  # the same modules


def test_timm_transformers_that_pool_otherwise_are_refused() -> None:
    with pytest.raises(BackboneError, match="pools by 'max'"):
        cut(timm_vit("max"))


# --- any module -----------------------------------------------------------------------------------


class ResNet(nn.Module):
    """Somebody's own ResNet: none of the attributes of any library's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 2, 1), nn.Conv2d(2, 2, 1), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(self.a(x)).mean(dim=(2, 3)))


def test_a_name_alone_does_not_make_a_family() -> None:
    with pytest.raises(BackboneError, match=r"do not know how to cut a ResNet.*name the boundary"):
        cut(ResNet())
    assert [step.name for step in cut(ResNet(), "b")] == ["prefix", "b"]


@pytest.mark.parametrize("boundary", ["block.a", "norm", "stem"])
def test_a_traced_module_is_cut_at_the_boundary(boundary: str) -> None:
    net, x = cases.randomised(cases.Plain().double()), image(4, 2)
    steps = cut(net, boundary)
    assert [step.name for step in steps] == ["prefix", boundary]
    torch.testing.assert_close(net.head(features(steps, x)), net(x), rtol=1e-12, atol=1e-12)
    tail_weights = {name for name, _ in steps[1].module.named_parameters()}
    assert any(name.startswith(boundary) for name in tail_weights)
    assert not any(name.startswith("stem") for name in tail_weights) or boundary == "stem"


def test_a_block_that_is_traced_into_can_be_the_boundary() -> None:
    net, x = cases.randomised(cases.Plain().double()), image(4, 2)
    steps = cut(net, "block")
    torch.testing.assert_close(net.head(features(steps, x)), net(x), rtol=1e-12, atol=1e-12)
    assert {"block.a.weight", "block.b.weight"} <= dict(steps[1].module.named_parameters()).keys()


def test_a_boundary_that_is_not_there_lists_the_names() -> None:
    with pytest.raises(BackboneError, match=r"no module named 'blocks'.*stem.*block\.a.*head"):
        cut(cases.Plain(), "blocks")


def test_a_boundary_inside_a_residual_is_refused() -> None:
    with pytest.raises(BackboneError, match=r"used on both sides.*every path goes through"):
        cut(cases.Plain(), "block.b")


class Softmaxed(cases.Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Branching(cases.Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.parametrize(
    ("net", "message"),
    [(Softmaxed(), "does not end in an nn.Linear head"), (Branching(), "torch.fx cannot trace")],
)
def test_modules_that_cannot_be_cut_say_why(net: nn.Module, message: str) -> None:
    with pytest.raises(BackboneError, match=message):
        cut(net, "norm")


def test_a_sequential_is_cut_at_its_children_without_the_head() -> None:
    relu = nn.ReLU()
    net = nn.Sequential(nn.Conv2d(3, 2, 1), relu, nn.Conv2d(2, 2, 1), relu, blocks.GlobalMean())
    x = image(4)
    for module in (net, nn.Sequential(*net, nn.Linear(2, 5))):
        steps = cut(module.double())
        assert [step.name for step in steps] == ["0", "1", "2", "3", "4"]  # the ReLU twice
        assert [step.is_block for step in steps] == [True, False, True, False, False]
        torch.testing.assert_close(features(steps, x), net.double()(x))


# --- tails and layouts ----------------------------------------------------------------------------


def test_steps_never_hide_each_other_or_the_head() -> None:
    linear = [nn.Linear(2, 2) for _ in range(4)]
    names = ("classifier", "a.b", "a_b", "a_b_")
    tail = Tail([Step(n, m) for n, m in zip(names, linear, strict=True)], nn.Linear(2, 3))
    assert len(tail) == 5
    assert tail.head.out_features == 3
    x = torch.ones(1, 2)
    torch.testing.assert_close(tail(x), tail.head(tail.features(x)))
    torch.testing.assert_close(tail.features(x), nn.Sequential(*linear)(x))


def test_a_layout_takes_apart_what_it_put_together() -> None:
    net = cases.tail("cnn")
    layout = Layout.of(net)
    tensors = dict(net.named_parameters())
    flat = layout.flatten(tensors).detach()
    assert flat.shape == (layout.d,) == (sum(p.numel() for p in net.parameters()),)
    views = layout.views(flat)
    assert all(torch.equal(views[name], tensors[name]) for name in tensors)
    views[layout.names[0]].zero_()  # a view: writing to it writes to the vector
    assert not flat[: tensors[layout.names[0]].numel()].any()


# --- folding and slopes ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet-bottleneck", "resnet-basic"])
def test_folding_batchnorm_keeps_the_outputs(name: str) -> None:
    net = nn.Sequential(*[s.module for s in cut(cases.randomised(cases.tiny(name).double()))])
    x = image(16)
    want = net(x)
    blocks.fold_batchnorm(net)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    torch.testing.assert_close(net(x), want, rtol=1e-10, atol=1e-10)  # rounding of a few layers


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_folding_every_kind_of_convolution(affine: bool, bias: bool) -> None:
    conv = nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=bias, padding_mode="reflect")
    net = cases.randomised(nn.Sequential(conv, nn.BatchNorm2d(6, affine=affine)).double().eval())
    x = image(5, 4)
    want = net(x)
    assert isinstance(blocks.fold_batchnorm(net)[1], nn.Identity)  # type: ignore[index]
    torch.testing.assert_close(net(x), want, rtol=1e-10, atol=1e-10)


class ActivatedNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


@pytest.mark.parametrize(
    "norm", [ActivatedNorm(3), nn.BatchNorm2d(3, track_running_stats=False), nn.InstanceNorm2d(3)]
)
def test_what_is_not_a_frozen_batchnorm_is_not_folded(norm: nn.Module) -> None:
    net = cases.randomised(nn.Sequential(nn.Conv2d(3, 3, 1), norm).double().eval())
    x = image(4)
    want = net(x)
    blocks.fold_batchnorm(net)
    assert net[1] is norm
    assert torch.equal(net(x), want)


def test_a_batchnorm_that_follows_something_else_stays() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)).eval()
    blocks.fold_batchnorm(net)
    assert isinstance(net[2], nn.BatchNorm2d)


def test_every_relu_becomes_leaky_and_nothing_else_does() -> None:
    relu = nn.ReLU()
    inner = nn.Sequential(nn.ReLU(inplace=True), nn.GELU())
    layers = OrderedDict(a=relu, b=inner, c=relu, d=nn.LeakyReLU(0.3))
    net = nn.Sequential(layers)
    assert blocks.leaky_activations(net, 0.1) == 3  # the shared one twice
    assert [type(m) for m in net] == [nn.LeakyReLU, nn.Sequential, nn.LeakyReLU, nn.LeakyReLU]
    assert type(inner[0]) is nn.LeakyReLU
    assert not inner[0].inplace
    assert (net[0].negative_slope, net[3].negative_slope) == (0.1, 0.3)
    assert torch.equal(net[0](torch.tensor([-2.0, 3.0])), torch.tensor([-0.2, 3.0]))


def test_a_capped_relu_keeps_its_cap() -> None:
    """MobileNets were trained with it: without the cap their features would be others."""
    net = nn.Sequential(nn.ReLU6(inplace=True))
    x = torch.tensor([-2.0, 3.0, 6.5, 80.0])
    want = net(x.clone())
    assert blocks.leaky_activations(net, 0.1) == 1
    assert torch.equal(net(x)[1:], want[1:])
    assert net(x)[0] == x[0] * 0.1
