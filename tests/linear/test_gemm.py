"""Products by oneDNN against the same in float64; memory that is used again; shares of many small steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests import cases
from tests.linear.test_operator import CLOSE, vector
from tests.linear.test_slopes import SHAPED
from tests.linear.test_winograd import products
from torch import nn

from efface.alone import one_by_one, shared_out
from efface.linear import gemm
from efface.linear.gemm import LARGE, Room, rows_product, times
from efface.linear.layers import ConvLayer, Layer, LinearLayer
from efface.linear.operator import TangentOperator
from efface.linear.winograd import WinogradLayer

NEAR = {"rtol": 1e-4, "atol": 1e-4}  # float32 sums of some hundred products of numbers near 1


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("places", "k", "o"), [(2048, 96, 128), (600, 256, 130), (3, 7, 5)])
def test_products_are_those_of_float64(threads: int, places: int, k: int, o: int) -> None:
    generator = torch.Generator().manual_seed(places)
    x, w, dy = (torch.randn(s, generator=generator) for s in ((places, k), (o, k), (places, o)))
    assert (places * k * o >= LARGE) is (places > 3)  # both ways are taken
    torch.testing.assert_close(times(x, w).double(), x.double() @ w.double().T, **NEAR)
    expected = dy.double().T @ x.double()
    torch.testing.assert_close(rows_product(dy, x).double(), expected, **NEAR)
    # more dimensions in front, strided as saved inputs of a batch are
    folded, strided = x.view(1, places, k), torch.stack([x, x], 1)[:, 0][None]
    for same in (folded, strided):
        assert times(same, w).shape == (1, places, o)
        torch.testing.assert_close(times(same, w)[0].double(), x.double() @ w.double().T, **NEAR)
        torch.testing.assert_close(rows_product(dy[None], same).double(), expected, **NEAR)


def test_float64_is_never_narrowed() -> None:
    x, w = torch.randn(600, 256).double(), torch.randn(130, 256).double()
    assert torch.equal(times(x, w), x @ w.T)
    assert times(x, w).dtype == rows_product(x, x).dtype == torch.float64


@pytest.mark.parametrize(("kind", "most"), [(WinogradLayer, 1e-5), (ConvLayer, 1e-6)])
def test_layers_large_enough_for_it_agree_with_float64(kind: type[Layer], most: float) -> None:
    """In float32 all products of a layer go by oneDNN here, in float64 none does. Winograd's lose a digit."""
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 96, 3, padding=1)
    inputs = {"x": torch.randn(16, 50, 50, 64), "dx": torch.randn(16, 50, 50, 64)}
    inputs |= {"dy": torch.randn(16, 50, 50, 96), "weight": torch.randn(96, 64, 3, 3)}
    inputs["bias"] = torch.randn(96)
    found = products(kind(conv, ""), inputs)
    wide = {name: value.double() for name, value in inputs.items()}
    expected = products(ConvLayer(conv.double(), ""), wide)
    for name, value in expected.items():
        error = (found[name].double() - value).norm() / value.norm()
        assert error < most, name


def test_so_do_linear_layers() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(256, 130)
    layer, x, v = LinearLayer(linear, ""), torch.randn(600, 256), torch.randn(130, 256)
    y, saved = layer.forward(x)
    torch.testing.assert_close(y, linear(x), **NEAR)
    moved = layer.jvp(saved, x, {"weight": v, "bias": linear.bias})
    torch.testing.assert_close(moved, linear(x) + x @ v.T, **NEAR)


def test_without_onednn_it_is_an_ordinary_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_suits", lambda *_: False)
    x, w = torch.randn(600, 256), torch.randn(130, 256)
    assert torch.equal(times(x, w), x @ w.T)


def test_room_is_the_same_memory_again_and_never_too_small() -> None:
    room, like = Room(), torch.zeros(1)
    first = room("a", like, 3, 4)
    assert first.shape == (3, 4)
    assert room("a", like, 2, 5).data_ptr() == first.data_ptr()
    assert room("b", like, 3, 4).data_ptr() != first.data_ptr()
    assert room("a", like, 5, 5).numel() == 25
    assert room("a", like.double(), 2, 2).dtype == torch.float64


def test_several_threads_may_use_one_layer() -> None:
    """As predictions of the tangent part do: each has memory of its own."""
    torch.manual_seed(0)
    layer, xs = WinogradLayer(nn.Conv2d(64, 64, 3, padding=1), ""), torch.randn(64, 1, 9, 9, 64)
    v = {"weight": torch.randn(64, 64, 3, 3), "bias": torch.randn(64)}

    def moved(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return layer.jvp(layer.forward(x)[1], x, v)

    def make() -> Callable[[int], torch.Tensor]:
        return lambda i: moved(xs[i].clone())

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = list(one_by_one(make, len(xs)))
        torch.set_num_threads(4)
        assert all(map(torch.equal, one_by_one(make, len(xs)), alone))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_shares_hold_every_number_once_each_on_one_thread(threads: int, count: int) -> None:
    seen: list[int] = []
    at_work: set[int] = set()

    def task(share: range) -> None:
        seen.extend(share)
        at_work.add(torch.get_num_threads())

    shared_out(task, count)
    assert sorted(seen) == list(range(count))
    assert at_work == {1} or count < 2
    assert torch.get_num_threads() == threads


def test_an_error_in_a_share_is_the_callers(threads: int) -> None:
    def task(share: range) -> None:
        if 3 in share:
            raise ValueError("3")

    with pytest.raises(ValueError, match="3"):
        shared_out(task, 4)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("many", [False, True])
def test_both_ways_at_once_is_one_after_the_other(name: str, many: bool, threads: int) -> None:
    """``product`` is Jᵀ of J v, also where slopes are read for both at once."""
    operator = TangentOperator(cases.tail(name))
    batch = operator.prepare(cases.BY_NAME[name].inputs(5), torch.float64, many=many)
    v, before = vector(operator.d), torch.ones(operator.d, dtype=torch.float64)
    expected = operator.vjp(batch, operator.jvp(batch, v))
    torch.testing.assert_close(operator.product(batch, v), expected, **CLOSE)
    torch.testing.assert_close(operator.product(batch, v, before), 1 + expected, **CLOSE)
