"""The tangent part as one plain module, for other programs: pixels in, f_core + J w out."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from efface.arithmetic.chain import Normalised
from efface.data.preprocess import of_images
from efface.network.backbone import forward_ad_kernels
from efface.network.core import Core


class TangentChain(nn.Module):
    """Pixels (1, c, h, w) uint8 -> f_core + J w (1, classes), float32.

    ``directions`` are the user weights, one tensor a parameter of the tail, with its scale on it.
    """

    def __init__(self, core: Core, directions: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.normalised = Normalised(of_images(core.backbone.preprocess))
        self.prefix, self.tail = copy.deepcopy(core.prefix), copy.deepcopy(core.tail)
        self.names = list(directions)
        for i, name in enumerate(self.names):
            self.register_buffer(f"direction{i}", directions[name].detach().float().clone())

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        parameters = {k: p for k, p in self.tail.named_parameters() if k in self.names}
        tangents = {name: self.get_buffer(f"direction{i}") for i, name in enumerate(self.names)}
        with forward_ad_kernels():
            x = self.prefix(self.normalised(pixels))

            def logits(weights: dict[str, Tensor]) -> Tensor:
                y: Tensor = functional_call(self.tail, weights, (x,))
                return y

            outputs, moved = torch.func.jvp(logits, (parameters,), (tangents,))  # type: ignore[misc]
        return (outputs + moved,)
