"""The way back on integers: exact sums, and the network's own gradients up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.cases import randomised
from tests.reference import integer_roots, second_moments
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from efface.arithmetic.integer import scales
from efface.arithmetic.integer.gradient import IntegerGradient
from efface.arithmetic.integer.graph import REACH, IntegerGraph, Kept, Source
from efface.arithmetic.integer.ops import Affine, NoIntegerForm, read
from efface.arithmetic.integer.self_test import check_gradient
from efface.arithmetic.integer.sums import EXACT, power
from efface.arithmetic.integer.tail import (
    ChannelEnergies,
    IntegerTail,
    map_numbers,
    projection_exponents,
    projection_reach,
)
from efface.linear.projection import COVARIANCES, MAPS, MOMENTS, Projection
from efface.linear.taps import tap, taps_of
from efface.network.blocks import GlobalMean, Residual
from efface.network.families import Step
from efface.network.tail import Tail


def tail_of(*modules: nn.Module, features: int) -> Tail:
    steps = [Step(f"m{i}", module) for i, module in enumerate(modules)]
    torch.manual_seed(0)
    return randomised(Tail(steps, nn.Linear(features, 3)).eval())


def bottleneck() -> Tail:
    body = nn.Sequential(
        nn.Conv2d(4, 3, 1), nn.LeakyReLU(0.01), nn.Conv2d(3, 3, 3, padding=1), nn.LeakyReLU(0.01)
    )
    block = Residual(nn.Sequential(body, nn.Conv2d(3, 4, 1)), nn.Identity(), nn.LeakyReLU(0.01))
    return tail_of(block, GlobalMean(), features=4)


TAILS = {
    "bottleneck": bottleneck,
    "strided": lambda: tail_of(
        nn.Conv2d(4, 5, 3, 2, 1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(5, 4, 2, dilation=2),
        GlobalMean(),
        features=4,
    ),
    "shortcut": lambda: tail_of(
        Residual(nn.Conv2d(4, 3, 1), nn.Conv2d(4, 3, 1), nn.LeakyReLU(0.1)),
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 3, 3),
        nn.ReLU6(),
        GlobalMean(),
        features=3,
    ),
    "linear": lambda: tail_of(
        nn.Conv2d(4, 3, 3, 2),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        nn.Linear(27, 6),
        nn.LeakyReLU(0.1),
        features=6,
    ),
}
every_tail = pytest.mark.parametrize("name", TAILS)


def built(name: str, n: int = 9) -> tuple[Tail, Tensor, IntegerGraph, IntegerGradient]:
    tail = TAILS[name]()
    ops = read(nn.Sequential(*[]) if not len(tail) else _without_head(tail))
    q = torch.randint(0, 256, (n, 4, 7, 7), generator=torch.Generator().manual_seed(1))
    source = Source(-6)
    seen = scales.look(ops, [source.real(q)], output=False)
    graph = IntegerGraph(
        ops, source, seen.exponents(ops, output=False), output=False, shapes=seen.shapes
    )
    tapped = tap(tail, taps_of(tail), source.real(q))
    gradient = IntegerGradient(graph, scales.gradient_exponents(graph, tapped))
    return tail, q.float(), graph, gradient


def _without_head(tail: Tail) -> nn.Sequential:
    named = [(n, m) for n, m in tail.named_children() if m is not tail.head]
    result = nn.Sequential()
    for name, module in named:
        result.add_module(name, module)
    return result


@every_tail
def test_gradients_are_those_of_autograd_up_to_rounding(name: str) -> None:
    tail, q, graph, gradient = built(name)
    tapped = tap(tail, taps_of(tail), graph.source.real(q))
    kept = Kept()
    found = gradient(kept, graph(q.clone(), kept))
    for tap_name, (x, g) in zip(tapped.names, tapped.pairs, strict=True):
        number = next(n for n, op in graph.numbered() if op.name == tap_name)
        got = found[number] * float(power(gradient.exponents[number]))
        # 8 bits a layer and slopes that flip where rounding changes a sign near 0.
        assert float((got - g).norm() / g.norm()) < 0.2, tap_name
        inputs = kept.inputs[number] * float(power(graph.exponent(graph.ops[number - 1].inputs[0])))
        assert float((inputs - x).norm() / x.norm()) < 0.1, tap_name


@every_tail
def test_pulling_back_is_exact(name: str) -> None:
    """Against float64, which holds every such sum; the bound is proved from the weights."""
    _, _, graph, gradient = built(name)
    rng = np.random.default_rng(0)
    for number, exact in gradient.pull.items():
        op = graph.ops[number - 1]
        assert isinstance(op, Affine)
        assert exact.sum_bound < EXACT
        g = torch.from_numpy(rng.integers(-REACH, REACH + 1, (2, *graph.shapes[number]))).float()
        shape = (2, *graph.shapes[op.inputs[0]])
        got = gradient._pulled(number, op, g, shape)
        total = torch.zeros(shape)
        for span, weight in exact.parts:
            if op.geometry is None:
                part = g[..., span].double() @ weight.double().T
            else:
                o = op.geometry
                part = conv2d_input(
                    shape,
                    weight.double(),
                    g[:, span].double(),
                    o.stride,
                    o.padding,
                    o.dilation,
                    o.groups,
                )
            total = total + part.float()
        assert torch.equal(got, total)
    check_gradient(graph, gradient)


@every_tail
def test_rows_are_a_function_of_their_sample(name: str) -> None:
    tail, q, graph, gradient = built(name)
    projection = Projection.build(tail, graph.source.real(q), 200)
    exponents = projection_exponents(graph, gradient, projection, q)
    integer = IntegerTail(graph, gradient, projection, exponents)
    rows, h = integer.rows(q)
    alone = torch.cat([integer.rows(q[i : i + 1])[0] for i in range(len(q))])
    assert torch.equal(rows, alone)
    assert torch.equal(integer.features(q), h)
    assert rows.shape[1] == projection.num_features


@every_tail
def test_rows_are_close_to_those_in_floats(name: str) -> None:
    tail, q, graph, gradient = built(name)
    projection = Projection.build(tail, graph.source.real(q), 200, whiten=0)
    exponents = projection_exponents(graph, gradient, projection, q)
    rows, _ = IntegerTail(graph, gradient, projection, exponents).rows(q)
    want = projection.rows(tail, graph.source.real(q))
    assert float((rows - want).norm() / want.norm()) < 0.15


@every_tail
def test_projected_sums_are_exact(name: str) -> None:
    """ψ_l before it is scaled is an integer below 2^24."""
    tail, q, graph, gradient = built(name)
    projection = Projection.build(tail, graph.source.real(q), 200)
    exponents = projection_exponents(graph, gradient, projection, q)
    integer = IntegerTail(graph, gradient, projection, exponents)
    kept = Kept()
    gradients = gradient(kept, graph(q.clone(), kept))
    for p in integer.projected:
        row = p.row(kept.inputs[p.number], gradients[p.number], len(q)).double()
        whole = row / power(p.input_exponent + p.gradient_exponent)
        assert torch.equal(whole, whole.round())
        assert float(whole.abs().max()) < EXACT


@every_tail
def test_moments_are_those_of_python_integers(name: str) -> None:
    """And need no way back. Each sum of a sample is at most places · reach² < 2^24."""
    tail, q, graph, _ = built(name)
    projection = Projection.build(tail, graph.source.real(q), 60, layer_features=MOMENTS)
    exponents = projection_exponents(graph, None, projection, q)
    integer = IntegerTail(graph, None, projection, exponents)
    kept = Kept(backward=False)
    graph(q.clone(), kept)
    assert not kept.slopes
    assert integer.projected
    for p in integer.projected:
        rows = p.row(kept.inputs[p.number], None, len(q)).double() / power(2 * p.input_exponent)
        a = p.inputs(kept.inputs[p.number]).movedim(1, -1).reshape(len(q), -1, rows_side(rows))
        reach = projection_reach(a.shape[1])
        whole = a.round().clamp(-reach, reach).to(torch.int64).numpy()
        assert rows.tolist() == [second_moments(sample) for sample in whole]
        assert float(rows.abs().max()) < EXACT


def rows_side(rows: Tensor) -> int:
    """r of r(r + 1)/2 columns."""
    return int((8 * rows.shape[1] + 1) ** 0.5 - 1) // 2


@every_tail
def test_moments_are_close_to_those_in_floats(name: str) -> None:
    tail, q, graph, _ = built(name)
    plain = graph.source.real(q)
    projection = Projection.build(tail, plain, 60, whiten=0, layer_features=MOMENTS)
    exponents = projection_exponents(graph, None, projection, q)
    rows, _ = IntegerTail(graph, None, projection, exponents).rows(q)
    want = projection.rows(tail, plain)
    assert float((rows - want).norm() / want.norm()) < 0.1


@every_tail
def test_maps_are_those_of_python_integers(name: str) -> None:
    """Rounded to 8 bits, projected, summed: each step again in int64."""
    tail, q, graph, _ = built(name)
    projection = Projection.build(tail, graph.source.real(q), 60, layer_features=MAPS)
    maps = map_numbers([*_without_head(tail).named_children()], projection.names)
    exponents = projection_exponents(graph, None, projection, q, maps=maps)
    integer = IntegerTail(graph, None, projection, exponents, maps=maps)
    seen = {0: q}
    graph(q.clone(), observe=lambda number, y: seen.__setitem__(number, y.clone()))
    rows, _ = integer.rows(q)
    parts = rows.split([projection.num_pooled + 1, *projection.layer_sizes], dim=1)[1:]
    for p, part, scale in zip(integer.projected, parts, projection.part_scales[1:], strict=True):
        x = seen[p.number].double() * power(graph.units[p.number] - p.gradient_exponent)
        bits = x.round().clamp(-REACH, REACH).flatten(2).transpose(1, 2)
        assert float((x.abs() <= REACH).double().mean()) > 0.99
        a = p.inputs(bits.float())
        reach = projection_reach(a.shape[1])
        whole = a.round().clamp(-reach, reach).to(torch.int64).numpy()
        want = torch.tensor([second_moments(sample) for sample in whole]).float()
        assert torch.equal(part, want * float(power(2 * p.input_exponent)) / scale)


@every_tail
def test_energies_are_those_of_python_integers(name: str) -> None:
    """Sums of squares of bytes in int64; beyond 2^24 they are rounded to float32 once."""
    tail, q, graph, _ = built(name)
    projection = Projection.build(tail, graph.source.real(q), 100, layer_features=COVARIANCES)
    assert bool(projection.energies) == (name != "linear")  # there a pooled number is no channel
    maps = map_numbers([*_without_head(tail).named_children()], projection.names)
    exponents = projection_exponents(graph, None, projection, q, maps=maps)
    integer = IntegerTail(graph, None, projection, exponents, maps=maps)
    seen = {0: q}
    graph(q.clone(), observe=lambda number, y: seen.__setitem__(number, y.clone()))
    rows, _ = integer.rows(q)
    sizes = [projection.num_pooled, 1, *projection.part_sizes[1:]]
    first, _, *others = rows.split(sizes, dim=1)
    for e, part, scale in zip(
        integer.energies, [first, *others], projection.part_scales, strict=False
    ):
        x = seen[e.number].double() * power(graph.units[e.number] - e.exponent)
        whole = x.round().clamp(-REACH, REACH).to(torch.int64).flatten(2)
        want = (whole * whole).sum(2).double() * power(2 * e.exponent)
        assert torch.equal(part, want.float() / scale)


def test_energies_of_many_places_are_exact_beyond_24_bits() -> None:
    """One addition in float32 more, and the odd ones would be lost."""
    q = torch.full((2, 700, 3), 255.0)
    q[1, :, 1] = 254.0
    q[0, 699, 2] = 1.0
    want = (q.to(torch.int64) ** 2).sum(1)
    assert int(want.max()) > EXACT
    assert torch.equal(ChannelEnergies(0, 0).row(q, 2), want.double().float())
    assert torch.equal(
        ChannelEnergies(0, -3).row(q.reshape(1, 1400, 3), 1),
        (want.sum(0).double() / 64).float()[None],
    )


@every_tail
def test_covariances_are_those_of_python_integers(name: str) -> None:
    """Sums over places and their root: integers from the first to the last step."""
    tail, q, graph, _ = built(name)
    projection = Projection.build(tail, graph.source.real(q), 60, layer_features=COVARIANCES)
    maps = map_numbers([*_without_head(tail).named_children()], projection.names)
    exponents = projection_exponents(graph, None, projection, q, maps=maps)
    integer = IntegerTail(graph, None, projection, exponents, maps=maps)
    seen = {0: q}
    graph(q.clone(), observe=lambda number, y: seen.__setitem__(number, y.clone()))
    rows, _ = integer.rows(q)
    parts = rows.split([*_before_layers(projection), *projection.layer_sizes], dim=1)
    count = len(projection.names)
    for p, part, scale in zip(
        integer.projected, parts[-count:], projection.part_scales[-count:], strict=True
    ):
        x = seen[p.number].double() * power(graph.units[p.number] - p.gradient_exponent)
        bits = x.round().clamp(-REACH, REACH).flatten(2).transpose(1, 2)
        a = p.inputs(bits.float())
        reach = projection_reach(a.shape[1])
        whole = a.round().clamp(-reach, reach).to(torch.int64).tolist()
        want = torch.tensor([integer_roots(sample) for sample in whole], dtype=torch.float64)
        assert torch.equal(part, want.float() / scale)


def _before_layers(projection: Projection) -> list[int]:
    """The sizes of what stands before the layers' features."""
    return [projection.num_pooled, 1, *(e.size for e in projection.energies[1:])]


@every_tail
@pytest.mark.parametrize("kind", [MAPS, COVARIANCES])
def test_maps_are_close_to_those_in_floats(name: str, kind: str) -> None:
    tail, q, graph, _ = built(name)
    plain = graph.source.real(q)
    projection = Projection.build(tail, plain, 60, whiten=0, layer_features=kind)
    maps = map_numbers([*_without_head(tail).named_children()], projection.names)
    exponents = projection_exponents(graph, None, projection, q, maps=maps)
    rows, _ = IntegerTail(graph, None, projection, exponents, maps=maps).rows(q)
    want = projection.rows(tail, plain)
    assert float((rows - want).norm() / want.norm()) < 0.1


def test_moments_have_one_step() -> None:
    tail, q, graph, _ = built("bottleneck")
    projection = Projection.build(tail, graph.source.real(q), 60, layer_features=MOMENTS)
    with pytest.raises(ValueError, match="one step, not 0 and 1"):
        IntegerTail(graph, None, projection, dict.fromkeys(projection.names, (0, 1)))


@pytest.mark.parametrize("places", [1, 4, 49, 98, 196, 1040, 3136, 50176])
def test_projections_reach_as_far_as_their_sums_allow(places: int) -> None:
    reach = projection_reach(places)
    assert places * reach**2 < EXACT
    assert reach == 1023 or places * (reach + 1) ** 2 >= EXACT


def test_no_way_back_is_said() -> None:
    tail = tail_of(
        nn.Conv2d(4, 3, 1), nn.MaxPool2d(2), nn.Conv2d(3, 3, 1), GlobalMean(), features=3
    )
    ops = read(_without_head(tail))
    q = torch.randint(0, 256, (4, 4, 6, 6)).float()
    seen = scales.look(ops, [q], output=False)
    graph = IntegerGraph(
        ops, Source(0), seen.exponents(ops, output=False), output=False, shapes=seen.shapes
    )
    with pytest.raises(NoIntegerForm, match="MaxPool2d"):
        IntegerGradient(graph, dict.fromkeys(range(1, 5), 0))
