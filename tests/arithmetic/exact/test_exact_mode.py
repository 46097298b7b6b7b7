"""In exact mode a network gives the bits that integers and IEEE's single operations define."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests import cases
from tests.arithmetic.exact import networks
from tests.arithmetic.exact.networks import digest, images, network, seen
from tests.places import ROOT
from torch import Tensor, nn

from efface.arithmetic.exact import exact_mode
from efface.arithmetic.exact.exact_mode import ExactMode, UnsupportedOperation, exact, probe
from efface.network.backbone import forward_ad_kernels

every_network = pytest.mark.parametrize("name", networks.NAMES)


# --- close to float64 -----------------------------------------------------------------------------

# Operands keep at least 20 bits of the largest entry they are summed with, tables err by 5e-8; a handful of
# layers, each passing errors on, and gradients that are small differences, make 1e-6 of the largest entry.
CLOSE = 5e-6


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        worst = (found[key] - value).abs().max()
        assert worst <= CLOSE * value.abs().max(), f"{key}: {worst:.1e} of {value.abs().max():.1e}"


@every_network
def test_features_inputs_and_gradients_are_close_to_float64(name: str) -> None:
    tail, x = network(name), images(name)
    found, plain = seen(tail, x), seen(tail, x, mode=False)
    assert_close(found, plain)
    assert any(not torch.equal(found[key], plain[key]) for key in found)  # the mode was at work


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_every_kind_of_tail_is_close_to_float64(case: cases.Case) -> None:
    tail, x = exact(case.build()), case.inputs(2)

    def both() -> dict[str, Tensor]:
        leaf = x.clone().requires_grad_()
        features = tail.features(leaf.clone())
        return {"h": features.detach(), "g": torch.autograd.grad(features.sum(), leaf)[0]}

    with forward_ad_kernels():
        expected = both()
        with ExactMode(tail):
            found = both()
    assert_close(found, expected)


@pytest.mark.parametrize("size", [(5, 7), (2, 3), (4, 3)])
def test_resized_maps_are_torch_s_but_for_rounding(size: tuple[int, int]) -> None:
    """float32 in and out: within a unit of its last place of the float64 result, entries below 4."""
    x = networks.uniform((1, 3, 4, 3), seed=0)
    expected = nn.functional.interpolate(x, size, mode="bicubic")
    with ExactMode():
        found = nn.functional.interpolate(x.float(), size, mode="bicubic")
        close = nn.functional.interpolate(x, size, mode="bicubic")
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 4e-7
    assert (close - expected).abs().max() < 1e-7  # 25 bits of the larger of two factors


def test_gradients_of_weights_are_close_to_float64() -> None:
    layers = [nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Flatten()]
    tail = nn.Sequential(*layers, nn.LayerNorm(36), nn.Linear(36, 3)).double().eval()
    tail = cases.randomised(tail)
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients() -> dict[str, Tensor]:
        loss = tail(x).square().sum()
        values = torch.autograd.grad(loss, list(tail.parameters()))
        return dict(zip(dict(tail.named_parameters()), values, strict=True))

    expected = gradients()
    with ExactMode(tail):
        found = gradients()
    assert_close(found, expected)


# --- the same bits --------------------------------------------------------------------------------

SETTINGS: list[tuple[dict[str, str], str]] = [
    ({}, "aligned"),
    ({"ATEN_CPU_CAPABILITY": "default"}, "aligned"),
    ({"ATEN_CPU_CAPABILITY": "avx2"}, "aligned"),
    ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, "aligned"),
    ({"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2,STRICT"}, "aligned"),
    ({"MKL_CBWR": "COMPATIBLE"}, "aligned"),
    ({"MKL_CBWR": "AUTO,STRICT"}, "unaligned"),
    ({"OMP_NUM_THREADS": "2"}, "unaligned"),
]


def child(setting: tuple[dict[str, str], str]) -> dict[str, str]:
    """All networks' digests from a process of its own, under these settings."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | setting[0]
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.arithmetic.exact.networks", setting[1]]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_one_digest_under_every_setting() -> None:
    """Without the mode float32 and float64 both differ between the first two, where this was written."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(child, SETTINGS))
    expected = networks.digests()
    assert len(set(expected.values())) == len(networks.NAMES)  # digests do tell networks apart
    for setting, digests in zip(SETTINGS, found, strict=True):
        assert digests == expected, setting


@every_network
def test_a_sample_does_not_depend_on_its_company(name: str) -> None:
    tail, x = network(name), images(name, 3)
    together = tail_features(tail, x)
    alone = torch.cat([tail_features(tail, x[i : i + 1]) for i in (2, 0, 1)])
    assert torch.equal(together[[2, 0, 1]], alone)


def tail_features(tail: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), forward_ad_kernels(), ExactMode(tail):
        return tail.features(x.clone())  # type: ignore[operator,no-any-return]


def test_weights_are_rounded_again_when_they_change() -> None:
    linear, x = exact(nn.Linear(4, 3)), torch.ones(1, 4, dtype=torch.float64)
    with torch.no_grad(), ExactMode(linear):
        before = linear(x)
        linear.weight.mul_(2)
        after = linear(x) - linear.bias
        assert torch.equal(after, (before - linear.bias) * 2)


def test_products_in_inference_mode_come_apart_into_exact_ones() -> None:
    linear, x = exact(nn.Linear(5, 3)), torch.randn(2, 4, 5, dtype=torch.float64)
    with ExactMode(linear):
        expected = linear(x)
        with torch.inference_mode():
            found = linear(x)
    assert digest({"y": found}) == digest({"y": expected})


# --- single operations ----------------------------------------------------------------------------


def test_a_scaled_sum_is_rounded_twice() -> None:
    """x + α y by itself and then added; fused, the small term below would survive."""
    x = torch.full((64,), -1.0, dtype=torch.float64)
    y, alpha = torch.full_like(x, 1 + 2.0**-30), 1 - 2.0**-30
    zero = torch.zeros_like(x)  # α y = 1 − 2^-60, which float64 rounds to 1
    with ExactMode():
        assert torch.equal(torch.add(x, y, alpha=alpha), zero)
        assert torch.equal(torch.addcmul(x, y, torch.full_like(x, alpha)), zero)
        assert torch.equal(torch.rsub(y, -x, alpha=alpha), zero)
        assert torch.equal(x.clone().add_(y, alpha=alpha), zero)


def test_no_kernel_decides_the_sign_of_a_zero() -> None:
    """torch's products of zeros and −1 are −0 for one term and +0 for seven, by different kernels."""
    minus = torch.full((67,), -0.0, dtype=torch.float64)
    zeros, ones = torch.zeros(5, 7, dtype=torch.float64), torch.full((7, 6), -1.0).double()
    image, kernel = zeros.view(1, 5, 7, 1), -torch.ones(3, 5, 1, 1).double()
    with ExactMode():
        found = [torch.relu(minus), minus.clone().clamp_(min=0.0), torch.maximum(-minus, minus)]
        found += [zeros @ ones, zeros[:, :1] @ ones[:1], nn.functional.conv2d(image, kernel)]
    assert not any(torch.signbit(value).any() for value in found)


# --- what it refuses ------------------------------------------------------------------------------


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs().log()


class Single(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float() * 2


REFUSED = [
    (Logarithm(), "aten.log.default has no exact form"),
    (Single(), r"aten.mul.Tensor is computed in torch.float32"),
    (nn.ConvTranspose2d(2, 2, 2), "aten.convolution.default is a transposed convolution"),
    (nn.AdaptiveAvgPool2d(3), "windows of unequal size"),
    (nn.Softplus(), "aten.softplus.default has no exact form"),
]


@pytest.mark.parametrize(("module", "reason"), REFUSED, ids=lambda value: type(value).__name__)
def test_an_unsupported_operation_is_named(module: nn.Module, reason: str) -> None:
    x = torch.randn(1, 2, 4, 4)
    found = probe(module, x)
    assert found is not None
    with pytest.raises(UnsupportedOperation, match=reason), ExactMode():
        exact(module)(x.double())


def test_an_unsupported_derivative_is_named() -> None:
    class Stretched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.take(torch.tensor([0, 0]))

    assert probe(nn.Softmax(-1), torch.randn(1, 4)) is None
    reason = probe(Stretched(), torch.randn(4))
    assert reason is not None
    assert "aten." in reason


def test_batch_norm_in_training_is_refused() -> None:
    norm, x = nn.BatchNorm1d(2, track_running_stats=False).double(), torch.randn(3, 2).double()
    with pytest.raises(UnsupportedOperation, match="BatchNorm in training"), ExactMode():
        norm(x)


@every_network
def test_probe_accepts_what_runs(name: str) -> None:
    assert probe(network(name), images(name)) is None


def test_probe_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).train()
    assert probe(module, torch.randn(1, 3)) is None
    assert module.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in module.parameters())


def test_the_mode_asks_the_machine_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(exact_mode, "self_test", lambda: asked.append(True))
    ExactMode()
    assert asked
