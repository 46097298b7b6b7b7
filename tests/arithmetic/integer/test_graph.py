"""Networks on integers: every number that of a twin in Python's fractions, every sum proved to be exact."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import randomised
from tests.fractions_reference import integer_network
from tests.reference import rarest
from torch import Tensor, nn

from efface.arithmetic.integer import scales
from efface.arithmetic.integer.graph import REACH, IntegerGraph, Source, evaluate, shapes_of, summed
from efface.arithmetic.integer.ops import Affine, NoIntegerForm, read
from efface.arithmetic.integer.self_test import NotExact, check_graph
from efface.arithmetic.integer.sums import (
    EXACT,
    ExactAffine,
    integers,
    least_exponent,
    power,
    weight_exponents,
)
from efface.network.blocks import GlobalMean, LeakyReLU6, Residual

SIDE = 6


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2, bias=False),
        nn.ReLU(),
    ),
    "batch norms": lambda: nn.Sequential(
        nn.Conv2d(2, 3, (3, 2), padding=(1, 0)), norm(3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), norm(3)
    ),
    "residual": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 1),
        Residual(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()), nn.Identity(), nn.ReLU()),
        Residual(nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.LeakyReLU(0.01)),
        GlobalMean(),
    ),
    "pooled bytes": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(3, 2, 2)
    ),
    "shortcuts of bytes": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 1),
        nn.ReLU(),
        Residual(
            nn.Sequential(nn.Conv2d(4, 3, 1), nn.ReLU(), nn.Conv2d(3, 4, 3, padding=1)),
            nn.Identity(),
            nn.ReLU(),
        ),
        Residual(nn.Conv2d(4, 4, 1), nn.Identity(), nn.ReLU()),
    ),
    "caps and slopes": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 2, dilation=2),
        nn.ReLU6(),
        nn.Conv2d(3, 3, 1),
        LeakyReLU6(0.1),
        GlobalMean(),
    ),
    "groups": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.LeakyReLU(0.2)
    ),
    "linear layers": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)
    ),
    "pooled, then linear": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 4),
        nn.LeakyReLU(0.1),
    ),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def built(name: str, seed: int = 0, *, output: bool = True, size: float = 1.0) -> tuple:
    """A network of random weights, its operations, images, and the same on integers."""
    torch.manual_seed(seed)
    net = randomised(NETWORKS[name]().eval())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(size)
    ops = read(net)
    q = torch.randint(-128, 128, (7, 2, SIDE, SIDE)).float()
    factor, shift = torch.tensor([0.01, 0.02]).double(), torch.tensor([0.3, -0.1]).double()
    source = Source(0, 128, factor, shift)
    seen = scales.look(ops, [source.real(q)], output=output)
    exponents = seen.exponents(ops, output=output)
    graph = IntegerGraph(ops, source, exponents, output=output, shapes=seen.shapes)
    return net, ops, q, graph


@every_network
@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_number_is_that_of_fractions(name: str, output: bool, seed: int) -> None:
    _, _, q, graph = built(name, seed, output=output)
    got = graph(q.clone())
    for i in (0, 6):
        want = integer_network(graph, q[i].numpy())
        assert got[i].double().numpy().tolist() == want.astype(np.float64).tolist()


@every_network
def test_company_order_and_layout_do_not_matter(name: str) -> None:
    _, _, q, graph = built(name)
    together = graph(q.clone())
    alone = torch.cat([graph(q[i : i + 1].clone()) for i in reversed(range(7))]).flip(0)
    channels_last = graph(q.contiguous(memory_format=torch.channels_last))
    assert torch.equal(together, alone)
    assert torch.equal(together, channels_last)


@every_network
def test_the_input_is_not_touched(name: str) -> None:
    _, _, q, graph = built(name)
    before = q.clone()
    graph(q)
    assert torch.equal(q, before)


@every_network
def test_it_is_the_network_up_to_rounding(name: str) -> None:
    """8 bits a tensor, 8 bits a weight: a few per cent of the whole after a handful of layers."""
    net, ops, q, graph = built(name, output=False)
    x = graph.source.real(q)
    with torch.no_grad():
        want = net(x)
    torch.testing.assert_close(evaluate(ops, x), want, rtol=1e-4, atol=1e-4)
    got = graph(q.clone()) * float(power(graph.units[len(ops)]))
    # Two networks end in nothing that sums, so their border sees the pixels' padding: see _with_source.
    assert float((got - want).norm() / want.norm()) < 0.08


@every_network
def test_the_sums_of_every_layer_are_proved_small(name: str) -> None:
    _, ops, _, graph = built(name, size=4.0)
    for number, op in enumerate(ops, start=1):
        if isinstance(op, Affine):
            exact = graph.affine[number]
            unit = power(exact.shift).reshape(-1, *[1] * (op.weight.dim() - 1))
            for position, (_, weight) in enumerate(exact.parts):
                w = weight.double() / unit
                assert torch.equal(w, w.round())
                most = graph.reach[op.inputs[0]] * w.abs().flatten(1).sum(1)
                if position == 0 and exact.bias is not None:
                    most = most + (exact.bias.double() / power(exact.shift)).abs()
                assert float(most.max()) <= exact.sum_bound < EXACT


def test_summed_tensors_are_those_that_layers_and_means_read() -> None:
    ops = read(NETWORKS["residual"]())
    # 1 conv, 2 conv, 3 relu, 4 add, 5 relu, 6 conv, 7 conv, 8 add, 9 leaky, 10 mean
    assert summed(ops, output=False) == {1: False, 5: False, 9: True}
    assert summed(ops, output=True)[10] is False


@pytest.mark.parametrize("side", [4, 150])
def test_what_a_tensor_reaches_is_that_of_all_its_numbers_in_order(side: int) -> None:
    """Of many numbers the rarest are clipped, of few none; most of these are equal, as after a ReLU."""
    torch.manual_seed(0)
    ops = read(nn.Sequential(nn.Identity(), nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Conv2d(1, 1, 1)))
    images = (10 * torch.randn(5, 1, side, side) - 5).round()
    seen = scales.look(ops, images.split(2), output=True)
    rare, largest = rarest(evaluate(ops[:-1], images), scales.RARE)
    number = len(ops) - 1
    expected = max(rare) if side**2 * scales.RARE < 1 else sum(rare) / len(rare)
    assert seen.sizes[number] == pytest.approx(expected, rel=1e-12)
    assert seen.largest[number] == largest


def test_tensors_that_nothing_reads_any_more_are_let_go() -> None:
    """A shortcut is kept until it is added; a batch of photos has gigabytes of the others."""
    net = nn.Sequential(nn.Conv2d(2, 3, 1), *NETWORKS["residual"]()[1:])
    kept: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def observe(_: int, y: Tensor) -> None:
        kept.append(weakref.ref(y))
        alive.append(sum(made() is not None for made in kept))

    output = evaluate(read(net), torch.zeros(1, 2, SIDE, SIDE), observe)
    assert len(alive) > 8
    assert max(alive) == 3  # what is read, what is made, and a shortcut
    assert [made() for made in kept if made() is not None] == [output]


def test_shapes_need_no_computing() -> None:
    _, ops, q, graph = built("residual")
    assert shapes_of(ops, tuple(q.shape[1:])) == graph.shapes


# --- long sums ------------------------------------------------------------------------------------


def long_affine(inputs: int, outputs: int = 3, seed: int = 0) -> tuple[Affine, Tensor, Tensor]:
    torch.manual_seed(seed)
    weight = torch.randint(-127, 128, (outputs, inputs)).double()
    bias = torch.randint(-(2**22), 2**22, (outputs,)).double()
    return Affine("long", (0,), weight, bias, None), weight, bias


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 5), st.integers(-40, 20))
def test_sums_too_long_for_float32_are_split(inputs: int, seed: int, shift: int) -> None:
    op, weight, bias = long_affine(inputs, seed=seed)
    exact = ExactAffine.build(op, weight, bias, torch.full((3,), shift), REACH)
    x = torch.full((1, inputs), float(REACH)) * torch.sign(weight[:1]).float()  # the largest sums
    total = np.zeros(3, dtype=np.float32)
    for position, (span, _) in enumerate(exact.parts):
        part = [
            sum(
                int(w) * int(v)
                for w, v in zip(row[span].tolist(), x[0, span].tolist(), strict=True)
            )
            for row in weight
        ]
        part = [
            s + (int(b) if position == 0 else 0) for s, b in zip(part, bias.tolist(), strict=True)
        ]
        assert all(abs(s) < EXACT for s in part)
        total = total + np.array(part, dtype=np.float32)
    assert exact(x)[0].numpy().tolist() == (total * np.float32(2.0**shift)).tolist()


def test_a_sum_that_cannot_be_split_is_refused() -> None:
    op, weight, _ = long_affine(4)
    with pytest.raises(NoIntegerForm, match=r"2\^24"):
        ExactAffine.build(
            op, weight, torch.full((3,), 2.0**24).double(), torch.zeros(3).long(), REACH
        )


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-30, 1e30), st.integers(1, 100_000))
def test_the_least_exponent_is_least(largest: float, levels: int) -> None:
    e = int(least_exponent(torch.tensor(largest, dtype=torch.float64), levels))
    assert largest / levels <= 2.0**e
    assert largest / levels > 2.0 ** (e - 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 40))
def test_weights_get_the_better_of_two_steps(seed: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, width, generator=generator, dtype=torch.float64)
    chosen = weight_exponents(weight)
    top = least_exponent(weight.abs().amax(1), 127)

    def error(e: Tensor) -> Tensor:
        step = power(e)[:, None]
        return (integers(weight, step) * step - weight).square().sum(1)

    best = torch.minimum(error(top), error(top - 1))
    # Errors are compared in 1/1024 of a step: the chosen one may be worse by that little.
    assert bool((error(chosen) <= best + width * power(top).square() / 1024).all())


def test_a_dead_output_keeps_its_bias() -> None:
    conv = nn.Conv2d(2, 2, 1)
    with torch.no_grad():
        conv.weight[0] = 0
        conv.bias[0] = 3.7
    ops = read(nn.Sequential(conv))
    x = torch.randint(0, 255, (1, 2, 4, 4)).float()
    seen = scales.look(ops, [x], output=True)
    graph = IntegerGraph(
        ops, Source(0), seen.exponents(ops, output=True), output=True, shapes=seen.shapes
    )
    got = graph(x)[0, 0] * float(power(graph.exponent(1)))
    torch.testing.assert_close(
        got, torch.full((4, 4), 3.7), rtol=0, atol=float(power(graph.exponent(1)))
    )


# --- what is refused ------------------------------------------------------------------------------


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (nn.Sequential(nn.Conv2d(2, 2, 1), nn.GELU()), "GELU"),
        (nn.Sequential(nn.Conv2d(2, 2, 1), nn.LayerNorm(4)), "LayerNorm"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding="same")), "padded"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding_mode="reflect", padding=1)), "padded"),
        (nn.Sequential(nn.Conv2d(2, 2, 1), Strange()), "sigmoid"),
        (nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)), "statistics"),
    ],
)
def test_what_has_no_integer_form_is_named(net: nn.Module, named: str) -> None:
    with pytest.raises(NoIntegerForm, match=named):
        read(net.eval())


@every_network
def test_this_machine_is_exact(name: str) -> None:
    _, _, _, graph = built(name)
    check_graph(graph)


@pytest.mark.parametrize("name", ["convolutions", "linear layers", "groups"])
def test_a_backend_that_rounds_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As TF32 or bfloat16 would: sums with 8 significant bits."""
    _, _, _, graph = built(name)
    real = Affine.apply

    def lossy(self: Affine, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return real(self, x, weight, bias).bfloat16().float()

    for number, exact in graph.affine.items():
        op = graph.ops[number - 1]
        object.__setattr__(exact, "apply", lambda *a, op=op: lossy(op, *a))
    with pytest.raises(NotExact, match="exactly"):
        check_graph(graph)
