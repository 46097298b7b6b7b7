"""User weights in the final layers alone: columns of the explicit Jacobian, in three forms."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from tests import cases
from tests.devices import DEVICES
from tests.linear.test_operator import CLOSE, vector
from tests.reference import explicit_jacobian, pooled_products
from torch import Tensor

from efface.linear import pooled as pooling
from efface.linear.frozen import FrozenLayer, final_names
from efface.linear.layers import Chain
from efface.linear.operator import TangentOperator
from efface.linear.pooled import (
    PooledLayer,
    SlopesOfSome,
    rows_times,
    rows_times_at_once,
    weighted_sum,
    weighted_sum_at_once,
)
from efface.network.device import CPU, Placement
from efface.network.tail import Layout
from efface.parts.tangent.problem import RidgeProblem

every_case = pytest.mark.parametrize("name", [case.name for case in cases.CASES])
KEPT = "resnet bottleneck"  # BatchNorm kept, a shortcut, (Leaky)ReLU and pooling


@cache
def columns(name: str) -> Tensor:
    """The explicit Jacobian of the final layers' parameters alone, (n, c, d)."""
    tail = cases.tail(name)
    jac, whole = explicit_jacobian(tail, cases.BY_NAME[name].inputs()), Layout.of(tail)
    marked = torch.zeros(whole.d, dtype=torch.bool)
    for key, view in whole.views(marked).items():
        if key in final_names(tail):
            view.fill_(True)
    return jac[:, :, marked]


def final(name: str, *, fast: bool = True, device: torch.device = CPU) -> TangentOperator:
    tail = cases.tail(name)
    return TangentOperator(tail, names=final_names(tail), fast=fast, place=Placement(device))


@pytest.mark.parametrize("device", [CPU, *DEVICES], ids=str)
@every_case
@pytest.mark.parametrize("form", ["fast", "lean", "opaque"])
def test_products_are_columns_of_the_explicit_jacobian(
    name: str, form: str, device: torch.device
) -> None:
    if device.type == "mps":
        pytest.skip("tangents need float64")
    operator, jac = final(name, fast=form != "opaque", device=device), columns(name)
    x = cases.BY_NAME[name].inputs()
    batch = operator.prepare(x, torch.float64, lean=form == "lean")
    assert operator.d == jac.shape[2]
    torch.testing.assert_close(batch.outputs, cases.tail(name)(x.clone()), **CLOSE)
    v, u = vector(operator.d), vector(batch.outputs.numel(), 4).view_as(batch.outputs)
    torch.testing.assert_close(operator.jvp(batch, v), jac @ v, **CLOSE)
    torch.testing.assert_close(operator.vjp(batch, u), torch.einsum("ncd,nc->d", jac, u), **CLOSE)


@every_case
def test_they_are_the_last_parameters_and_end_in_the_head(name: str) -> None:
    tail = cases.tail(name)
    every = [key for key, _ in tail.named_parameters()]
    names = list(final_names(tail))
    assert every[-len(names) :] == names
    assert names[-2:] == ["classifier.weight", "classifier.bias"]


def test_the_last_convolution_its_batch_norm_and_the_head_of_a_resnet() -> None:
    names = final_names(cases.tail(KEPT))
    kinds = [key.rpartition(".")[2] for key in names]
    assert kinds == ["weight", "weight", "bias", "weight", "bias"]


def test_a_resnet_is_pooled_where_memory_allows_it_and_saves_less_elsewhere() -> None:
    operator = final(KEPT)
    pooled, lean = operator.layer, operator.lean
    assert isinstance(pooled, Chain)
    assert isinstance(lean, Chain)
    assert any(isinstance(layer, PooledLayer) for layer in pooled.layers)
    assert not any(isinstance(layer, PooledLayer) for layer in lean.layers)
    x = cases.BY_NAME[KEPT].inputs()
    saved = operator.prepare(x, torch.float32)
    assert (saved.layer, operator.prepare(x, lean=True).layer) == (pooled, lean)
    numbers = operator.pooled_numbers + cases.NUM_CLASSES + _head_width()
    assert saved.num_bytes // len(x) == 4 * numbers


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("some", [False, True], ids=["all samples", "some where they lie"])
def test_products_at_once_and_sample_by_sample_are_the_sums(dtype: torch.dtype, some: bool) -> None:
    """A card makes them at once, a processor sample by sample; of slopes in any precision."""
    whole = vector(7 * 5 * 11).view(7, 5, 11).to(dtype)
    index = torch.tensor([6, 0, 3]) if some else torch.arange(7)
    pooled = SlopesOfSome(whole, index) if some else whole
    moved, u = vector(55, 2).view(5, 11), vector(5 * len(index), 3).view(-1, 5)
    forward, backward = pooled_products(whole[index], moved, u)
    for product in (rows_times, rows_times_at_once):
        torch.testing.assert_close(product(pooled, moved), forward, **CLOSE)
    for product in (weighted_sum, weighted_sum_at_once):
        torch.testing.assert_close(product(pooled, u), backward, **CLOSE)


@pytest.mark.parametrize("device", [CPU, *DEVICES], ids=str)
def test_on_another_device_products_are_made_at_once(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[bool] = []
    for at_once, name in ((False, "rows_times"), (True, "rows_times_at_once")):
        real = getattr(pooling, name)
        spy = partial(
            lambda real, at_once, *given: used.append(at_once) or real(*given), real, at_once
        )
        monkeypatch.setattr(pooling, name, spy)
    operator, x = final(KEPT, device=device), cases.BY_NAME[KEPT].inputs(2)
    operator.jvp(operator.prepare(x, torch.float32), vector(operator.d))
    assert used == [device != CPU]


def _head_width() -> int:
    return cases.tail(KEPT).head.in_features  # type: ignore[union-attr, return-value]


def test_a_problem_takes_the_form_that_fits_its_memory() -> None:
    operator, x = final(KEPT), cases.BY_NAME[KEPT].inputs(4)
    y = torch.zeros(4, cases.NUM_CLASSES)
    roomy = RidgeProblem(operator, x, y, 0.1, dtype=torch.float64)
    tight = RidgeProblem(operator, x, y, 0.1, dtype=torch.float64, cache_bytes=8)
    v = vector(operator.d)
    before = roomy.product(v)
    for problem in (roomy, tight):
        problem.pool()
    assert (roomy.pooled, tight.pooled) == (True, False)
    torch.testing.assert_close(roomy.product(v), tight.product(v), **CLOSE)
    torch.testing.assert_close(roomy.product(v), before, **CLOSE)
    index = torch.tensor([2, 0])
    torch.testing.assert_close(
        roomy.minibatch_gradient(v, index), tight.minibatch_gradient(v, index), **CLOSE
    )


def test_no_tangent_may_come_from_below() -> None:
    layer = FrozenLayer(final("cnn").layer)
    with pytest.raises(AssertionError, match="below a frozen layer"):
        layer.jvp((), torch.ones(1), {})
    with pytest.raises(AssertionError, match="below a frozen layer"):
        layer.vjp((), torch.ones(1), {}, True)
