"""Winograd's products against the direct ones, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from efface.linear.layers import ConvLayer, Layer
from efface.linear.lowering import lower
from efface.linear.winograd import WinogradLayer, suits_winograd


def products(layer: Layer, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    v = {"weight": inputs["weight"], "bias": inputs["bias"]}
    out = {name: torch.zeros_like(t) for name, t in v.items()}
    with torch.no_grad():
        y, saved = layer.forward(inputs["x"])
        tangent = layer.jvp(saved, inputs["dx"], v)
        first = layer.jvp(saved, None, v)
        dx = layer.vjp(saved, inputs["dy"], out, True)
    assert tangent is not None
    assert first is not None
    assert dx is not None
    return {"y": y, "tangent": tangent, "first": first, "dx": dx, **out}


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 3), h=st.integers(1, 11), w=st.integers(1, 11), seed=st.integers(0, 2**16))
def test_all_products_equal_the_direct_ones(n: int, h: int, w: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    conv = nn.Conv2d(5, 4, 3, padding=1).double()

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = {"x": random(n, h, w, 5), "dx": random(n, h, w, 5), "dy": random(n, h, w, 4)}
    inputs |= {"weight": random(4, 5, 3, 3), "bias": random(4)}
    direct, fast = products(ConvLayer(conv, ""), inputs), products(WinogradLayer(conv, ""), inputs)
    for name, value in direct.items():
        # the transforms amplify rounding by about 100: 1e-12 is far below any wrong coefficient
        torch.testing.assert_close(fast[name], value, rtol=1e-11, atol=1e-12, msg=name)


def test_saved_inputs_can_be_selected_by_sample() -> None:
    layer = WinogradLayer(nn.Conv2d(4, 4, 3, padding=1).double(), "")
    x = torch.randn(5, 6, 7, 4, dtype=torch.float64)
    v = {"weight": torch.randn(4, 4, 3, 3).double(), "bias": torch.zeros(4).double()}
    _, saved = layer.forward(x)
    index = torch.tensor([3, 0])
    part = layer.jvp(tuple(t[index] for t in saved), None, v)
    whole = layer.jvp(saved, None, v)
    assert part is not None
    assert whole is not None
    torch.testing.assert_close(part, whole[index], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("conv", "expected"),
    [
        (nn.Conv2d(64, 64, 3, padding=1), True),
        (nn.Conv2d(64, 64, 3, padding=1, stride=2), False),
        (nn.Conv2d(64, 64, 3), False),
        (nn.Conv2d(16, 64, 3, padding=1), False),
        (nn.Conv2d(64, 64, 1), False),
    ],
)
def test_it_is_chosen_where_it_pays(conv: nn.Conv2d, expected: bool) -> None:
    assert suits_winograd(conv) is expected
    assert isinstance(lower(conv), WinogradLayer) is expected
