"""J v, Jᵀu and JᵀJ v against explicit Jacobians, for every case, in the fast and the slow form."""

from __future__ import annotations

import copy
import math
from functools import cache

import pytest
import torch
from tests import cases
from tests.places import WEIGHTS
from tests.reference import explicit_jacobian
from torch import Tensor, nn

from efface.linear.layers import (
    AffineLayer,
    Chain,
    ConvLayer,
    LeakyLayer,
    LinearLayer,
    ResidualLayer,
)
from efface.linear.lowering import lower
from efface.linear.normed import NormedConvLayer
from efface.linear.opaque import OpaqueLayer
from efface.linear.operator import TangentOperator
from efface.linear.scales import balanced_scales
from efface.network.core import Core

# float64 sums of a few hundred products: rounding stays near 1e-14, and 1e-10 leaves room for the
# different order of summation without letting a wrong term through.
CLOSE = {"rtol": 1e-10, "atol": 1e-10}

every_case = pytest.mark.parametrize("name", [case.name for case in cases.CASES])
both_forms = pytest.mark.parametrize("fast", [True, False], ids=["fast", "opaque"])


@cache
def jacobian(name: str) -> Tensor:
    return explicit_jacobian(cases.tail(name), cases.BY_NAME[name].inputs())


def vector(length: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, generator=generator, dtype=torch.float64)


@every_case
@both_forms
def test_products_equal_the_explicit_jacobian(name: str, fast: bool) -> None:
    operator = TangentOperator(cases.tail(name), fast=fast)
    batch = operator.prepare(cases.BY_NAME[name].inputs(), torch.float64)
    jac = jacobian(name)  # (n, c, d)
    v, u = vector(operator.d), vector(batch.outputs.numel(), 4).view_as(batch.outputs)
    assert operator.d == jac.shape[2]
    torch.testing.assert_close(operator.jvp(batch, v), jac @ v, **CLOSE)
    torch.testing.assert_close(operator.vjp(batch, u), torch.einsum("ncd,nc->d", jac, u), **CLOSE)
    want = torch.einsum("ncd,nc->d", jac, jac @ v)
    torch.testing.assert_close(operator.product(batch, v), want, **CLOSE)


@every_case
@both_forms
def test_outputs_are_the_networks_own(name: str, fast: bool) -> None:
    case, operator = cases.BY_NAME[name], TangentOperator(cases.tail(name), fast=fast)
    want = cases.tail(name)(case.inputs())
    torch.testing.assert_close(
        operator.prepare(case.inputs(), torch.float64).outputs, want, **CLOSE
    )


@every_case
@both_forms
def test_products_repeat_and_leave_the_activations_alone(name: str, fast: bool) -> None:
    """In-place modules must neither drift from call to call nor write to what was passed in."""
    case, operator = cases.BY_NAME[name], TangentOperator(cases.tail(name), fast=fast)
    x = case.inputs()
    batch = operator.prepare(x, torch.float64)
    v = vector(operator.d)
    first = operator.product(batch, v)
    for _ in range(2):
        assert torch.equal(operator.product(batch, v), first)  # the same work, so the same bits
    assert torch.equal(x, case.inputs())


@every_case
def test_select_by_slice_and_by_index_are_equal(name: str) -> None:
    operator = TangentOperator(cases.tail(name))
    batch = operator.prepare(cases.BY_NAME[name].inputs(), torch.float64)
    v = vector(operator.d)
    by_slice, by_index = batch.select(slice(1, 4)), batch.select(torch.tensor([1, 2, 3]))
    assert len(by_slice) == len(by_index) == 3
    # Equal up to the order in which a product of other strides is summed.
    torch.testing.assert_close(operator.jvp(by_slice, v), operator.jvp(by_index, v), **CLOSE)
    torch.testing.assert_close(operator.jvp(by_slice, v), jacobian(name)[1:4] @ v, **CLOSE)
    shuffled = batch.select(torch.tensor([3, 0]))
    torch.testing.assert_close(operator.jvp(shuffled, v), jacobian(name)[[3, 0]] @ v, **CLOSE)


@pytest.mark.parametrize("name", ["cnn", "resnet bottleneck", "tied weights", "vit"])
@both_forms
def test_scales_make_it_j_s(name: str, fast: bool) -> None:
    plain = TangentOperator(cases.tail(name), fast=fast)
    names = plain.layout.names
    scales = {layer: 0.5 + i for i, layer in enumerate(names)}
    operator = TangentOperator(cases.tail(name), fast=fast, scales=scales)
    shapes = zip(names, plain.layout.shapes, strict=True)
    s = plain.layout.flatten({n: torch.full(shape, scales[n]) for n, shape in shapes}).double()
    batch = operator.prepare(cases.BY_NAME[name].inputs(), torch.float64)
    jac = jacobian(name) * s  # J S with S diagonal
    v, u = vector(operator.d), vector(batch.outputs.numel(), 4).view_as(batch.outputs)
    torch.testing.assert_close(operator.jvp(batch, v), jac @ v, **CLOSE)
    want = torch.einsum("ncd,nc->d", jac, u)
    torch.testing.assert_close(operator.vjp(batch, u), want, **CLOSE)
    start = vector(operator.d, 5)
    torch.testing.assert_close(operator.vjp(batch, u, start.clone()), start + want, **CLOSE)


def test_balanced_scales_give_every_tensor_a_kernel_of_mean_trace_one() -> None:
    operator = TangentOperator(cases.tail("cnn"))
    x = cases.BY_NAME["cnn"].inputs()
    scales = balanced_scales(operator, x, probes=4000)
    start = 0
    for name, shape in zip(operator.layout.names, operator.layout.shapes, strict=True):
        stop = start + math.prod(shape)
        trace = float(jacobian("cnn")[:, :, start:stop].square().sum()) / len(x)
        # 4,000 random probes: the relative error of a mean of squares is about √(2/4000) = 0.02.
        assert scales[name] ** 2 * trace == pytest.approx(1, rel=0.15)
        start = stop


def test_vjp_adds_into_a_wider_vector() -> None:
    operator = TangentOperator(cases.tail("cnn"))
    batch = operator.prepare(cases.BY_NAME["cnn"].inputs())  # float32
    u = torch.ones_like(batch.outputs)
    start = vector(operator.d)
    total = operator.vjp(batch, u, start.clone())
    assert total.dtype == torch.float64
    torch.testing.assert_close(total, start + operator.vjp(batch, u).double(), **CLOSE)


def test_float32_products_are_float64_ones_rounded() -> None:
    operator, x = TangentOperator(cases.tail("cnn")), cases.BY_NAME["cnn"].inputs()
    v = vector(operator.d)
    narrow, wide = (
        operator.product(operator.prepare(x, t), v) for t in (torch.float32, torch.float64)
    )
    assert narrow.dtype == torch.float32
    # 24 bits and sums of about 100 terms: 1e-5 is a hundred times the unit roundoff.
    torch.testing.assert_close(
        narrow.double(), wide, rtol=1e-5, atol=1e-5 * float(wide.abs().max())
    )


def test_vectors_of_the_wrong_length_are_refused() -> None:
    operator = TangentOperator(cases.tail("cnn"))
    batch = operator.prepare(cases.BY_NAME["cnn"].inputs())
    with pytest.raises(ValueError, match=f"expected a vector of {operator.d}"):
        operator.jvp(batch, torch.zeros(operator.d + 1))


def test_products_leave_a_module_as_it_was() -> None:
    """Also one that is used twice: it can be copied to a device afterwards."""
    tail = copy.deepcopy(cases.tail("tied weights"))
    operator, before = TangentOperator(tail), copy.deepcopy(tail.state_dict())
    batch = operator.prepare(cases.BY_NAME["tied weights"].inputs(), torch.float64)
    operator.product(batch, vector(operator.d))
    assert all(type(p) is nn.Parameter for p in tail.parameters())
    after = copy.deepcopy(tail).state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


# --- which form is used ---------------------------------------------------------------------------


def test_resnet_blocks_take_the_fast_path_throughout() -> None:
    def kinds(layer: object) -> set[type]:
        inner = getattr(layer, "layers", [])
        if isinstance(layer, ResidualLayer):
            inner = [layer.body, layer.shortcut, layer.activation]
        return {type(layer)}.union(*(kinds(part) for part in inner))

    found = kinds(lower(cases.tail("resnet bottleneck")))
    assert {Chain, ResidualLayer, NormedConvLayer, LeakyLayer, LinearLayer} <= found
    assert not {OpaqueLayer, AffineLayer} & found
    plain = kinds(lower(cases.tail("resnet bottleneck"), winograd=False, merged=False))
    assert {ConvLayer, AffineLayer} <= plain
    assert NormedConvLayer not in plain


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [3, 64])  # 64: by Winograd's transforms
def test_a_convolution_and_its_batchnorm_keep_their_own_parameters(
    width: int, bias: bool, affine: bool
) -> None:
    """Both products against torch.func on the two modules, one γ being 0."""
    conv = nn.Conv2d(width, width, 3, padding=1, bias=bias)
    pair = nn.Sequential(conv, nn.BatchNorm2d(width, affine=affine)).double().eval()
    cases.randomised(pair)
    if affine:
        with torch.no_grad():
            pair[1].weight[1] = 0.0
    fast, slow = lower(pair, "p."), OpaqueLayer(pair, "p.")
    assert isinstance(fast, Chain)
    assert isinstance(fast.layers[0], NormedConvLayer)
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    x, dx, dy = (draw(2, 5, 6, width) for _ in range(3))
    v = {f"p.{name}": draw(*p.shape) for name, p in pair.named_parameters()}
    (y, kept), (want, saved) = fast.forward(x), slow.forward(x)
    assert torch.allclose(y, want, rtol=1e-10, atol=1e-10)  # float64, two ways to sum
    for tangent in (dx, None):
        found, expected = fast.jvp(kept, tangent, v), slow.jvp(saved, tangent, v)
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)  # type: ignore[arg-type]
    mine, theirs = ({k: torch.zeros_like(p) for k, p in v.items()} for _ in range(2))
    back, pulled = fast.vjp(kept, dy, mine, True), slow.vjp(saved, dy, theirs, True)
    assert torch.allclose(back, pulled, rtol=1e-9, atol=1e-9)  # type: ignore[arg-type]
    for name in v:
        assert torch.allclose(mine[name], theirs[name], rtol=1e-9, atol=1e-8), name


class Shifted(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu() + 1


class Doubled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Reversed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for module in reversed(list(self)):
            x = module(x)
        return x


@pytest.mark.parametrize(
    "module", [Shifted(2), Doubled(2, 2, 1), Reversed(nn.Tanh(), nn.Conv2d(2, 2, 1))]
)
def test_subclasses_that_compute_something_else_are_not_taken_for_their_base(
    module: nn.Module,
) -> None:
    net = cases.randomised(nn.Sequential(module, nn.Flatten()).double().eval())
    x = cases.Case("", lambda: net, (2, 3, 3)).inputs(2)
    operator = TangentOperator(net)
    batch, v = operator.prepare(x, torch.float64), vector(operator.d)
    torch.testing.assert_close(batch.outputs, net(x), **CLOSE)
    torch.testing.assert_close(operator.jvp(batch, v), explicit_jacobian(net, x) @ v, **CLOSE)


# --- why torch.func.linearize is not used ---------------------------------------------------------


def in_place_network(p: dict[str, Tensor]) -> Tensor:
    h = p["x"] @ p["w"]
    h.mul_(2.0).add_(p["b"])
    y = h.sin()
    return y.mul_(h)


# torch.fx warns about its own way of folding constants; nothing to do with what is tested.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
def test_linearize_drifts_with_in_place_operations() -> None:
    """torch.func.linearize replays a traced graph whose constants in-place operations overwrite: the
    first product is right, later ones are not. Traced after functionalize, all are. If this fails with
    a newer torch, linearize may have become an option for OpaqueLayer."""
    x = vector(6, 5).view(2, 3)
    params = {"w": vector(9).view(3, 3), "b": vector(3, 6)}
    tangents = {name: torch.ones_like(p) for name, p in params.items()}

    def run(p: dict[str, Tensor]) -> Tensor:
        return in_place_network({**p, "x": x})

    want = torch.func.jvp(run, (params,), (tangents,))[1]
    _, drifting = torch.func.linearize(run, params)
    torch.testing.assert_close(drifting(tangents), want, **CLOSE)
    assert not torch.allclose(drifting(tangents), want)
    _, right = torch.func.linearize(torch.func.functionalize(run), params)
    for _ in range(3):
        torch.testing.assert_close(right(tangents), want, **CLOSE)


# --- the real network -----------------------------------------------------------------------------


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="the ResNet-50 weights are not beside the project")
def test_resnet50s_last_block_equals_its_opaque_twin() -> None:
    core = Core(f"hf:{WEIGHTS}", classes=["a", "b", "c"])
    torch.nn.init.normal_(core.tail.head.weight, std=0.02)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, *core.boundary_shape, generator=generator, dtype=torch.float64)
    fast, slow = (TangentOperator(core.tail, fast=fast) for fast in (True, False))
    v, u = vector(fast.d), vector(6).view(2, 3)
    a, b = (operator.prepare(x, torch.float64) for operator in (fast, slow))
    # Sums over 4.5 million weights: relative to the largest entry, 1e-10 is far above rounding.
    for got, want in (
        (a.outputs, b.outputs),
        (fast.jvp(a, v), slow.jvp(b, v)),
        (fast.vjp(a, u), slow.vjp(b, u)),
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10 * float(want.abs().max()))
