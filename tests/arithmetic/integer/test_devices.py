"""Networks of integers on other devices: the same numbers, or refused.

Every test runs on each device that torch finds here, and on the CPU taken for another device.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.arithmetic.integer import test_gradient, test_graph
from tests.arithmetic.integer.test_gradient import every_tail
from tests.arithmetic.integer.test_graph import every_network
from tests.devices import every_device
from tests.workspaces import CORE, LEFT, OWNER, TEST, core, fitted, people
from torch import Tensor
from torch.nn.grad import conv2d_input
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from efface.arithmetic.integer.graph import IntegerGraph, Kept
from efface.arithmetic.integer.ops import Geometry
from efface.arithmetic.integer.self_test import NotExact, check_placed
from efface.arithmetic.integer.unfolded import convolve, pull_back
from efface.errors import EffaceError
from efface.model.mixed_linear import MixedLinear
from efface.network import device as devices
from efface.network.core import Core
from efface.network.device import CPU, TWIN, Placement, device_named, found_devices
from efface.network.training import Stage
from efface.parts.table import place_for


@given(
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_unfolded_convolutions_are_convolutions(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randint(-127, 128, shape, generator=generator).float()

    o = Geometry((stride,) * 2, (padding,) * 2, (dilation,) * 2, groups)
    x, weight, bias = drawn(2, 4, *size), drawn(6, 4 // groups, *kernel), drawn(6)
    y = F.conv2d(x, weight, bias, o.stride, o.padding, o.dilation, groups)
    assert torch.equal(convolve(o, x, weight, bias), y)
    assert torch.equal(convolve(o, x, weight, None), y - bias.view(1, -1, 1, 1))
    if groups == 1:
        g, shape = drawn(*y.shape), tuple(x.shape)
        want = conv2d_input(shape, weight, g, o.stride, o.padding, o.dilation)
        assert torch.equal(pull_back(o, g, weight, shape), want)


@every_device
@every_network
def test_a_network_has_the_same_numbers_there(name: str, device: torch.device) -> None:
    _, _, q, graph = test_graph.built(name)
    placed = graph.to(device)
    check_placed(graph, placed)
    assert torch.equal(placed(q.to(device)).cpu(), graph(q.clone()))


@every_device
@every_tail
def test_gradients_are_the_same_there(name: str, device: torch.device) -> None:
    _, q, graph, gradient = test_gradient.built(name)
    placed, here, there = graph.to(device), Kept(), Kept()
    want = gradient(here, graph(q.clone(), here))
    got = gradient.to(placed)(there, placed(q.to(device), there))
    assert want.keys() == got.keys()
    assert all(torch.equal(got[number].cpu(), want[number]) for number in want)


class OneDevice(TorchDispatchMode):
    """Every operation must have all that it reads in one place; copies from one to another aside."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim()]
        if "copy" not in str(func) and len({t.device for t in read}) > 1:
            raise AssertionError(f"{func} reads from two devices")
        return func(*args, **(kwargs or {}))


@every_network
def test_nothing_is_left_behind_on_the_cpu(name: str) -> None:
    """On the meta device nothing is computed: only where tensors are is looked at."""
    meta = torch.device("meta")
    _, _, q, graph = test_graph.built(name)
    with OneDevice():
        assert graph.to(meta)(q.to(meta)).device == meta
        with pytest.raises(AssertionError, match="two devices"):
            graph(q.to(meta))


@every_tail
def test_no_gradient_is_left_behind_on_the_cpu(name: str) -> None:
    meta, kept = torch.device("meta"), Kept()
    _, q, graph, gradient = test_gradient.built(name)
    placed = graph.to(meta)
    with OneDevice():
        found = gradient.to(placed)(kept, placed(q.to(meta), kept))
    assert all(g.device == meta for g in found.values())


class _Rounding(IntegerGraph):
    """Whose single operations are not IEEE's."""

    def _rounded(self, number, op, y):  # type: ignore[no-untyped-def]
        return super()._rounded(number, op, y + 0.5)


def test_a_device_that_is_not_exact_is_refused() -> None:
    _, _, _, graph = test_graph.built("convolutions")
    sums, single = graph.to(TWIN), graph.to(TWIN)
    for exact in sums.affine.values():
        real = exact.apply
        object.__setattr__(exact, "apply", lambda *a, real=real: real(*a).bfloat16().float())
    single.__class__ = _Rounding
    for placed in (sums, single):
        with pytest.raises(NotExact, match="cpu does not compute integers exactly") as caught:
            check_placed(graph, placed)
        assert "--device cpu" in caught.value.fix


# --- models ---------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(device: torch.device) -> Core:
    made = core()
    made.place = Placement(device)
    yield made
    made.place = Placement()


@every_device
def test_a_compact_model_has_the_same_digests_there(elsewhere: Core, device: torch.device) -> None:
    there = fitted("compact", people())
    logits = there.logits(TEST)
    there.forget(owner=OWNER)
    elsewhere.place = Placement()
    here = fitted("compact", people())
    assert torch.equal(here.logits(TEST), logits)
    again = fitted("compact", LEFT)
    assert there.user.statistics_digest == again.user.statistics_digest
    assert there.user.weights_digest == again.user.weights_digest


@every_device
@pytest.mark.parametrize("kind", ["float", "tangent"])
def test_floats_agree_but_for_rounding(elsewhere: Core, device: torch.device, kind: str) -> None:
    def made() -> MixedLinear:
        if kind == "tangent":
            return fitted("tangent", people())
        model = MixedLinear(core(), features=120, arithmetic="float")
        return model.fit(people(), replay=CORE)

    there = made().logits(TEST)
    elsewhere.place = Placement()
    torch.testing.assert_close(there, made().logits(TEST), rtol=1e-3, atol=1e-3)


@every_device
def test_a_core_is_trained_there_and_comes_back(device: torch.device) -> None:
    def trained(place: Placement) -> Core:
        made = Core("cnn", classes=("a", "b", "c"))
        made.place = place
        return made.fit(CORE, [Stage("all", epochs=2, batch_size=4)])

    there, here = trained(Placement(device)), trained(Placement())
    assert all(tensor.device == CPU for tensor in there.tensors.values())
    torch.testing.assert_close(there.logits(TEST), here.logits(TEST), rtol=1e-3, atol=1e-3)


# --- names ----------------------------------------------------------------------------------------


def test_devices_by_name() -> None:
    assert device_named("cpu") == CPU
    assert device_named("cpu:0") == device_named(TWIN) == TWIN != CPU
    assert device_named("auto") == found_devices()[0]
    for name in ("tpu", "cpu:1", "cuda:", "cuda:one", "", None):
        with pytest.raises(EffaceError, match=f"no device {name!r}") as caught:
            device_named(name)  # type: ignore[arg-type]
        assert "auto, cuda, mps or cpu" in caught.value.fix
    for name in {"cuda", "mps"} - {device.type for device in found_devices()}:
        with pytest.raises(EffaceError, match=f"finds no {name} here") as caught:
            MixedLinear(core(), device=name)
        assert caught.value.fix == 'use --device cpu (in Python: device="cpu").'


def test_one_of_several_cards_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_named(name).index for name in ("cuda", "cuda:0", "cuda:1")] == [0, 0, 1]
    with pytest.raises(EffaceError, match="there is no cuda:2: 2 of them are here"):
        device_named("cuda:2")


def test_auto_has_float64_where_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    mps = torch.device("mps", 0)
    monkeypatch.setattr(devices, "found_devices", lambda: [mps, CPU])
    assert place_for("compact", "auto").device == mps
    assert place_for("tangent", "auto").device == CPU


def test_the_tangent_part_needs_float64() -> None:
    made = Core("cnn", classes=("a", "b"))
    made.place.device = torch.device("mps", 0)
    with pytest.raises(EffaceError, match="needs float64"):
        MixedLinear(made, "tangent")
