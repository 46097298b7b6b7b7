"""Small networks in exact mode: what they give, and its digest. As a script, one line of JSON for all.

python -m tests.arithmetic.exact.networks [aligned|unaligned]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from tests import cases
from torch import Tensor, nn

from efface.arithmetic.exact.exact_mode import ExactMode, exact
from efface.linear.taps import recording, taps_of
from efface.network.backbone import forward_ad_kernels
from efface.network.blocks import digits_cnn
from efface.network.tail import Tail


class Squeeze(nn.Module):
    """timm's EfficientNet block in plain modules: depthwise convolution, SiLU, squeeze and excite."""

    def __init__(self) -> None:
        super().__init__()
        depthwise = nn.Conv2d(6, 6, 5, stride=2, padding=2, groups=6, bias=False)
        self.expand = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.SiLU(inplace=True))
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(6), nn.SiLU(inplace=True))
        self.reduce, self.restore = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.expand(x))
        gate = self.restore(nn.functional.silu(self.reduce(x.mean((2, 3), keepdim=True))))
        return (x * gate.sigmoid()).mean((2, 3))


def _efficient() -> Tail:
    return cases.with_head([Squeeze()], 6)


def _others() -> Tail:
    """What the rest has not: hard and tanh activations, average pooling, a dilated depthwise layer."""
    depthwise = nn.Conv2d(4, 4, 3, groups=4, dilation=2, padding=(2, 1))
    pools = [nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AvgPool2d(2, 1)]
    modules = [nn.Conv2d(3, 4, 3), nn.Hardswish(), depthwise, nn.GELU("tanh"), *pools]
    modules += [nn.MaxPool2d(3, 1, 1), nn.Hardsigmoid(), nn.Sigmoid(), nn.AdaptiveAvgPool2d((2, 1))]
    return cases.with_head([*modules, nn.Flatten()], 8)


def _resized() -> Tail:
    """DINOv2 on images of another size than its position embeddings': they are resized."""
    return cases.tail_of(cases.tiny("dinov2"), "all")


PLAIN = {
    "digits": lambda: cases.with_head([*digits_cnn(3)], 32),
    "efficient": _efficient,
    "others": _others,
    "dinov2, resized": _resized,
}
NAMES = (*cases.TINY, *PLAIN)


def network(name: str) -> Tail:
    """A whole network behind its taps, with random weights, frozen and in float64."""
    whole = exact(PLAIN[name]() if name in PLAIN else cases.tail_of(cases.tiny(name), "all"))
    for i, (_, value) in enumerate(sorted(whole.state_dict().items())):
        if value.is_floating_point():
            value.copy_(uniform(value.shape, seed=i))
    for key, variance in whole.named_buffers():
        if key.endswith("running_var"):
            variance.abs_().add_(0.5)
    return whole


def uniform(shape: Sequence[int], seed: int) -> Tensor:
    """Between −1 and 1, from integers: torch's normal numbers depend on the instruction set, too."""
    whole = np.random.default_rng(seed).integers(-(2**30), 2**30, tuple(shape))
    return torch.from_numpy(whole / 2.0**30)


def images(name: str, n: int = 1) -> Tensor:
    side = cases.TINY[name][1] if name in cases.TINY else 12
    return uniform((n, 3, side, side), seed=1000)


def seen(tail: Tail, x: Tensor, *, mode: bool = True) -> dict[str, Tensor]:
    """Features, and every tap's input and output gradient, of the samples ``x``."""
    taps = taps_of(tail)
    with forward_ad_kernels(), ExactMode(tail) if mode else nullcontext(), recording(taps) as pairs:
        features = tail.features(x.clone().requires_grad_())
        gradients = torch.autograd.grad(
            features.sum(), [pairs[t.name][1] for t in taps if t.name in pairs], allow_unused=True
        )
    found = {"features": features.detach()}
    for name, gradient in zip(pairs, gradients, strict=True):
        found[f"{name} input"] = pairs[name][0]
        if gradient is not None:
            found[f"{name} gradient"] = gradient
    return found


def digest(values: dict[str, Tensor]) -> str:
    state = hashlib.sha256()
    for name, value in values.items():
        state.update(name.encode() + str(tuple(value.shape)).encode())
        state.update(value.contiguous().numpy().tobytes())
    return state.hexdigest()


def unaligned(x: Tensor) -> Tensor:
    """The same values eight bytes behind an aligned address, as a file's mapping may have them."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def digests(aligned: bool = True) -> dict[str, str]:
    found = {}
    for name in NAMES:
        tail, x = network(name), images(name)
        if not aligned:
            x = unaligned(x)
            for parameter in tail.parameters():
                parameter.data = unaligned(parameter.data)
        found[name] = digest(seen(tail, x))
    return found


if __name__ == "__main__":
    print(json.dumps(digests(aligned=sys.argv[1:] != ["unaligned"])))
