"""Slopes by layer: the same products as the explicit Jacobian has, for whole blocks of user weights."""

from __future__ import annotations

import pytest
import torch
from tests import cases
from tests.linear.test_operator import CLOSE, jacobian, vector
from tests.places import WEIGHTS

from efface.linear.operator import TangentOperator
from efface.linear.slopes import SlopesLayer
from efface.network.core import Core
from efface.parts.tangent.primal import Primal

SHAPED = [c.name for c in cases.CASES if TangentOperator(cases.tail(c.name)).many is not None]


def test_residual_blocks_that_end_in_pooling_have_this_form() -> None:
    assert {"resnet bottleneck", "resnet bottleneck, folded", "residual"} <= set(SHAPED)
    assert "vit" not in SHAPED


@pytest.mark.parametrize("name", SHAPED)
def test_products_equal_the_explicit_jacobian(name: str) -> None:
    operator, jac = TangentOperator(cases.tail(name)), jacobian(name)
    batch = operator.prepare(cases.BY_NAME[name].inputs(), torch.float64, many=True)
    assert isinstance(batch.layer, SlopesLayer)
    assert sorted(batch.layer.names) == sorted(operator.layout.names)
    v, u = vector(operator.d), vector(batch.outputs.numel(), 4).view_as(batch.outputs)
    torch.testing.assert_close(
        batch.outputs,
        operator.prepare(cases.BY_NAME[name].inputs(), torch.float64).outputs,
        **CLOSE,
    )
    torch.testing.assert_close(operator.jvp(batch, v), jac @ v, **CLOSE)
    torch.testing.assert_close(operator.vjp(batch, u), torch.einsum("ncd,nc->d", jac, u), **CLOSE)


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("half", [False, True])
def test_they_are_kept_where_they_fit_and_in_half_precision_where_not(
    name: str, half: bool
) -> None:
    operator, x = TangentOperator(cases.tail(name)), cases.BY_NAME[name].inputs(6).float()
    plain = operator.prepare(x)
    whole = operator.prepare(x, many=True).num_bytes
    primal = Primal(operator, x, cache_bytes=whole - 1 if half else whole, batch_size=4)
    primal.pool()
    assert primal.pooled is not half
    primal.pool(half=True)
    assert (primal.pooled, primal.half) == (True, half)
    kept, v = primal.kept, vector(operator.d).float()
    assert kept is not None
    assert isinstance(kept.layer, SlopesLayer)
    near = {"rtol": 2e-2 if half else 1e-4, "atol": 2e-2 if half else 1e-4}  # 2⁻¹¹ a slope; 2⁻²⁴
    torch.testing.assert_close(operator.jvp(kept, v), operator.jvp(plain, v), **near)
    index = torch.tensor([5, 0, 3])
    some = primal.some(index)
    assert some is not None
    u = operator.jvp(plain.select(index), v)
    torch.testing.assert_close(operator.jvp(some, v), u, **near)
    expected = operator.vjp(plain.select(index), u)
    torch.testing.assert_close(
        operator.vjp(some, u) / expected.norm(), expected / expected.norm(), **near
    )


def test_with_many_classes_they_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = TangentOperator(cases.tail(SHAPED[0]))
    monkeypatch.setattr("efface.parts.tangent.primal.MOST_CLASSES", cases.NUM_CLASSES - 1)
    primal = Primal(operator, cases.BY_NAME[SHAPED[0]].inputs(4))
    primal.pool()
    assert not primal.pooled


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="the ResNet-50 weights are not beside the project")
@pytest.mark.parametrize("folded", [True, False])
def test_the_real_resnet50_has_this_form(folded: bool) -> None:
    names = [str(i) for i in range(3)]
    core = Core(f"hf:{WEIGHTS}", classes=names, leaky_slope=0.01, fold_batchnorm=folded)
    torch.nn.init.normal_(core.tail.head.weight, std=0.05)
    operator = TangentOperator(core.tail)
    x = torch.randn(2, *core.boundary_shape, generator=torch.Generator().manual_seed(0)).relu()
    v = vector(operator.d).float()
    fast = operator.product(operator.prepare(x, many=True), v)
    plain = operator.product(operator.prepare(x), v)
    assert float((fast - plain).norm() / plain.norm()) < 1e-5  # float32, in another order
