"""Cases as data: small tails that take every path of the linearised layers, and small records."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from efface.data.images import ArrayImage, digest_of
from efface.data.preprocess import Preprocess
from efface.data.record import Record, Split
from efface.data.records import Records
from efface.network.backbone import Backbone
from efface.network.blocks import (
    GlobalMean,
    LeakyReLU6,
    MeanToken,
    Residual,
    fold_batchnorm,
    leaky_activations,
)
from efface.network.families import Step, cut
from efface.network.mirror import MirroredTail
from efface.network.tail import Tail

NUM_CLASSES = 3
NUM_SAMPLES = 5


@dataclass(frozen=True)
class Case:
    """A tail in float64 and the shape of one sample's boundary activation."""

    name: str
    factory: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def build(self) -> nn.Module:
        """The tail with random weights and statistics, the same every time."""
        torch.manual_seed(0)
        return randomised(self.factory().double().eval())

    def inputs(self, n: int = NUM_SAMPLES, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(n, *self.shape, generator=generator, dtype=torch.float64)


def randomised(module: nn.Module) -> nn.Module:
    """Random weights everywhere: zeros, ones and LayerScale's 1e-6 would hide mistakes."""
    generator = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(generator=generator)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5, generator=generator)
    return module


# --- plain modules --------------------------------------------------------------------------------


def with_head(modules: Sequence[nn.Module], features: int) -> Tail:
    steps = [Step(str(i), module) for i, module in enumerate(modules)]
    return Tail(steps, nn.Linear(features, NUM_CLASSES))


def cnn() -> nn.Module:
    first = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.LeakyReLU(0.1))
    second = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.LeakyReLU(0.1))
    return with_head([first, second, GlobalMean()], 4)


def uneven_convolutions() -> nn.Module:
    """Kernels, strides and paddings that differ between height and width."""
    first = nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0))
    second = nn.Conv2d(3, 3, 1, stride=(1, 2), padding=(0, 1))
    return with_head([first, nn.ReLU(), second, nn.ReLU(), GlobalMean()], 3)


def grouped_convolution() -> nn.Module:
    modules = [nn.Conv2d(4, 4, 3, groups=2, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(4, 3, 1)]
    return with_head([*modules, nn.Conv2d(3, 3, 2, dilation=2), GlobalMean()], 3)


def smooth_activations() -> nn.Module:
    modules = [nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4, bias=False), nn.SiLU(), nn.Tanh()]
    return with_head([*modules, nn.Dropout(0.5)], 4)


def capped_activations() -> nn.Module:
    """Weights so large that the caps are reached."""
    convolutions = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 3, 1)
    for conv in convolutions:
        nn.init.normal_(conv.weight, std=8.0)
    first, second = convolutions
    return with_head([first, nn.ReLU6(), second, LeakyReLU6(0.1), GlobalMean()], 3)


def layer_norm() -> nn.Module:
    """Tokens (n, t, c): Linear over the last of three dimensions, LayerNorm, pooling."""
    return with_head([nn.LayerNorm(4), nn.Linear(4, 5), nn.GELU(), MeanToken()], 5)


def batch_norms() -> nn.Module:
    """A BatchNorm that no convolution precedes, and one without weights."""
    modules = [nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3, affine=False)]
    return with_head([*modules, GlobalMean()], 3)


def flattened() -> nn.Module:
    return with_head([nn.Conv2d(2, 2, 2), nn.MaxPool2d(2), nn.Flatten()], 8)


class Permute(nn.Module):
    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.dims)


def channels_last_block() -> nn.Module:
    """A ConvNeXt block as some libraries write it: Linear layers on permuted feature maps."""
    body = [Permute(0, 2, 3, 1), nn.LayerNorm(3), nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 3)]
    return with_head([nn.Conv2d(2, 3, 1), *body, Permute(0, 3, 1, 2), GlobalMean()], 3)


def shared_activation() -> nn.Module:
    """One activation object used twice, as hand-written networks do."""
    relu = nn.LeakyReLU(0.1)
    return with_head([nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu)], 4)


def tied_weights() -> nn.Module:
    linear = nn.Linear(4, 4)
    return with_head([linear, nn.Tanh(), linear], 4)


def in_place() -> nn.Module:
    """In-place modules first, where they would overwrite the boundary activations."""
    return with_head([nn.SiLU(inplace=True), nn.Linear(4, 4), nn.LeakyReLU(0.1, inplace=True)], 4)


class InPlaceBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(1.5)
        return self.linear(x) + x


def in_place_block() -> nn.Module:
    return with_head([InPlaceBlock(), nn.Tanh()], 4)


def residual() -> nn.Module:
    """A shortcut without weights, so that the block's input needs a cotangent from both sides."""
    body = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.GELU(), nn.Conv2d(3, 3, 1))
    block = Residual(body, nn.Identity(), nn.LeakyReLU(0.1))
    return with_head([nn.Conv2d(2, 3, 1), block, GlobalMean()], 3)


# --- transformers ---------------------------------------------------------------------------------


def hf_model(kind: str, **options: object) -> nn.Module:
    """A transformers image classifier of random weights."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(num_labels=NUM_CLASSES, **options)
    return getattr(transformers, f"{kind}ForImageClassification")(config).eval()


TINY: dict[str, tuple[dict[str, object], int]] = {
    # name -> (options of the configuration, side of its images)
    "resnet-bottleneck": (
        {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 2], "layer_type": "bottleneck"},
        16,
    ),
    "resnet-basic": (
        {"embedding_size": 3, "hidden_sizes": [3, 4], "depths": [1, 1], "layer_type": "basic"},
        16,
    ),
    "convnext": ({"patch_size": 2, "hidden_sizes": [3, 4], "depths": [1, 1], "num_stages": 2}, 16),
    "convnextv2": (
        {"patch_size": 2, "hidden_sizes": [3, 4], "depths": [1, 1], "num_stages": 2},
        16,
    ),
    "vit": (
        {
            "image_size": 8,
            "patch_size": 4,
            "hidden_size": 6,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 7,
        },
        8,
    ),
    "deit": (
        {
            "image_size": 8,
            "patch_size": 4,
            "hidden_size": 6,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 7,
        },
        8,
    ),
    "dinov2": (
        {
            "image_size": 8,
            "patch_size": 4,
            "hidden_size": 6,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "mlp_ratio": 1,
        },
        8,
    ),
    "swin": (
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 4,
            "depths": [1, 2],
            "num_heads": [1, 2],
            "window_size": 2,
            "mlp_ratio": 1.0,
        },
        16,
    ),
    "swin-odd": (  # a 3 × 3 grid of patches, from images that the patch size does not divide
        {
            "image_size": 11,
            "patch_size": 4,
            "embed_dim": 4,
            "depths": [1, 2],
            "num_heads": [1, 2],
            "window_size": 2,
            "mlp_ratio": 1.0,
        },
        11,
    ),
}
KINDS = {
    "resnet-bottleneck": "ResNet",
    "resnet-basic": "ResNet",
    "convnext": "ConvNext",
    "convnextv2": "ConvNextV2",
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "Dinov2",
    "swin": "Swin",
    "swin-odd": "Swin",
}


def tiny(name: str) -> nn.Module:
    options, _ = TINY[name]
    return hf_model(KINDS[name], **options)


def tail_of(net: nn.Module, linearize: str = "last-block", boundary: str | None = None) -> Tail:
    """The tail that a core would linearise, with a head of its own."""
    backbone = Backbone("test", tuple(cut(net, boundary)), Preprocess())
    steps = backbone.steps[backbone.boundary(linearize) :]
    head = getattr(net, "classifier", None) or net.head
    head = head[-1] if isinstance(head, nn.Sequential) else head
    return Tail(steps, nn.Linear(head.in_features, NUM_CLASSES))


def hf_tail(name: str, *, folded: bool = False, leaky: bool = False) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        tail = tail_of(tiny(name))
        if folded:
            tail = fold_batchnorm(randomised(tail))  # type: ignore[assignment]
        if leaky:
            leaky_activations(tail, 0.1)
        return tail

    return build


# --- a module that is cut by tracing --------------------------------------------------------------


class Plain(nn.Module):
    """A network as people write it: functional calls, a residual, nested blocks, no Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 3, padding=1)
        self.block = nn.ModuleDict({"a": nn.Conv2d(3, 4, 3, padding=1), "b": nn.Conv2d(4, 3, 1)})
        self.norm = nn.GroupNorm(1, 3)
        self.head = nn.Linear(3, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.block["b"](torch.tanh(self.block["a"](x)))
        return self.head(self.norm(x).mean(dim=(2, 3)))


def mirrored(plain: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The same layers as a tail of two views."""

    def build() -> nn.Module:
        *steps, (_, head) = plain().named_children()
        return MirroredTail([Step(name, module) for name, module in steps], head)  # type: ignore[arg-type]

    return build


def traced() -> nn.Module:
    return tail_of(Plain(), "block.a", "block.a")


CASES = [
    Case("cnn", cnn, (2, 6, 5)),
    Case("uneven convolutions", uneven_convolutions, (2, 5, 6)),
    Case("grouped and dilated convolutions", grouped_convolution, (4, 5, 4)),
    Case("smooth activations", smooth_activations, (4,)),
    Case("capped activations", capped_activations, (2, 4, 4)),
    Case("layer norm on tokens", layer_norm, (3, 4)),
    Case("batch norms", batch_norms, (2, 4, 4)),
    Case("max pooling, flattened", flattened, (2, 5, 5)),
    Case("linear on permuted maps", channels_last_block, (2, 3, 4)),
    Case("shared activation", shared_activation, (4,)),
    Case("tied weights", tied_weights, (4,)),
    Case("in-place activations", in_place, (4,)),
    Case("in-place block", in_place_block, (4,)),
    Case("residual", residual, (2, 4, 4)),
    Case("resnet bottleneck", hf_tail("resnet-bottleneck", leaky=True), (8, 3, 3)),
    Case("resnet bottleneck, folded", hf_tail("resnet-bottleneck", folded=True), (8, 3, 3)),
    Case("resnet basic block", hf_tail("resnet-basic"), (3, 4, 4)),
    Case("resnet basic block, folded", hf_tail("resnet-basic", folded=True, leaky=True), (3, 4, 4)),
    Case("convnext", hf_tail("convnext"), (4, 4, 4)),
    Case("convnextv2", hf_tail("convnextv2"), (4, 4, 4)),
    Case("vit", hf_tail("vit"), (5, 6)),
    Case("dinov2", hf_tail("dinov2"), (5, 6)),
    Case("swin", hf_tail("swin"), (16, 8)),
    Case("traced module", traced, (3, 4, 4)),
    Case("mirrored cnn", mirrored(cnn), (2, 2, 6, 5)),
    Case("mirrored features", mirrored(smooth_activations), (2, 4)),
    Case("mirrored tokens", mirrored(hf_tail("vit")), (2, 5, 6)),
    Case("mirrored windows", mirrored(hf_tail("swin")), (2, 16, 8)),
    Case("mirrored, folded", mirrored(hf_tail("resnet-bottleneck", folded=True)), (2, 8, 3, 3)),
]
BY_NAME = {case.name: case for case in CASES}


@cache
def tail(name: str) -> nn.Module:
    """A case's tail, built once a session; tests must not change it."""
    return BY_NAME[name].build()


# --- records --------------------------------------------------------------------------------------


def records_of(
    images: np.ndarray,
    labels: Sequence[int],
    *,
    classes: Sequence[str] = ("a", "b", "c"),
    split: Split = Split.USER,
    name: str = "r",
) -> Records:
    """Records of uint8 images (n, h, w[, channels]), one owner each."""
    return Records(
        [
            Record(
                id=f"{name}{i}",
                owner=f"{name}-owner{i}",
                cohort="default",
                label=classes[label],
                split=split,
                source=ArrayImage(images, i),
                digest=digest_of(images[i]),
            )
            for i, label in enumerate(labels)
        ],
        classes,
    )


def blobs(n: int, seed: int = 0, side: int = 8, channels: int = 0) -> tuple[np.ndarray, list[int]]:
    """Images whose class is where they are bright; easy, so that few steps learn it."""
    rng = np.random.default_rng(seed)
    labels = [i % 3 for i in range(n)]
    images = rng.integers(0, 90, (n, side, side), dtype=np.uint8)
    third = side // 3 + 1
    for image, label in zip(images, labels, strict=True):
        image[:, label * third : (label + 1) * third] += 150
    return (np.repeat(images[..., None], channels, axis=3) if channels else images), labels


def tiny_records(n: int = 24, seed: int = 0, **options: object) -> Records:
    split = options.pop("split", Split.USER)
    name = options.pop("name", f"s{seed}-")
    images, labels = blobs(n, seed, **options)  # type: ignore[arg-type]
    return records_of(images, labels, split=split, name=name)  # type: ignore[arg-type]


def named_sequential() -> nn.Sequential:
    """Steps with names, for cores built from an nn.Module."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    layers["block"] = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU())
    layers["pool"] = GlobalMean()
    layers["head"] = nn.Linear(6, 10)
    return nn.Sequential(layers)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """The image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
