"""Networks on bytes: the integers of the network in float32, every one of them, or they are not used."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.arithmetic.integer.test_graph import built, every_network
from tests.cases import hf_model, randomised, tiny_records
from torch import Tensor

from efface.arithmetic.integer import byte_graph, form
from efface.arithmetic.integer.byte_graph import ByteConvolution, ByteGraph, available, worth_bytes
from efface.arithmetic.integer.graph import REACH, IntegerGraph, Kept
from efface.arithmetic.integer.ops import Affine, Geometry
from efface.arithmetic.integer.sums import EXACT, ExactAffine
from efface.data.preprocess import Preprocess
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.parts.compact.user import CompactUser


def on_bytes(graph: IntegerGraph) -> ByteGraph:
    """Skips where it cannot be had: another processor, or one that is told to work as another."""
    made = ByteGraph.of(graph)
    if made is None:
        pytest.skip("here products of bytes are not added exactly, or not at all")
    return made


def whole(y: Tensor) -> Tensor:
    return y.float().contiguous()


@every_network
@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_integer_is_that_of_float32(name: str, output: bool, seed: int) -> None:
    _, _, q, graph = built(name, seed, output=output)
    made = on_bytes(graph)
    assert torch.equal(whole(made(q.clone())), whole(graph(q.clone())))
    alone = torch.cat([made(q[i : i + 1].clone()) for i in reversed(range(7))]).flip(0)
    assert torch.equal(whole(alone), whole(graph(q.clone())))


@every_network
def test_the_input_is_not_touched(name: str) -> None:
    _, _, q, graph = built(name)
    before = q.clone()
    on_bytes(graph)(q)
    assert torch.equal(q, before)


@pytest.mark.parametrize(
    ("name", "direct", "summing"),
    [("convolutions", 2, 0), ("pooled bytes", 1, 0), ("shortcuts of bytes", 2, 2)],
)
def test_activations_poolings_and_sums_are_done_by_the_kernel(
    name: str, direct: int, summing: int
) -> None:
    made = on_bytes(built(name)[3])
    assert (len(made.direct), len(made.summing)) == (direct, summing)


@given(
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    signed=st.booleans(),
    channels=st.sampled_from([3, 16, 40]),
    seed=st.integers(0, 99),
)
def test_convolutions_are_those_of_64_bits(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    padding: int,
    dilation: int,
    signed: bool,
    channels: int,
    seed: int,
) -> None:
    if not available():
        pytest.skip("no kernels for bytes on this processor")
    generator = torch.Generator().manual_seed(seed)
    o = Geometry((stride,) * 2, (padding,) * 2, (dilation,) * 2, 1)
    w = torch.randint(-127, 128, (17, channels, *kernel), generator=generator).double()
    b, shift = torch.randint(-999, 999, (17,), generator=generator).double(), torch.arange(-8, 9)
    op = Affine("layer", (0,), w, b, o)
    exact = ExactAffine.build(op, w, b, shift, REACH)
    x = torch.randint(-REACH if signed else 0, REACH + 1, (2, channels, *size), generator=generator)
    shape = (channels, *size)
    made = ByteConvolution.build(exact, 0, shape, signed=signed)
    try:
        byte_graph._probe(exact, 0, shape, signed=signed)
    except byte_graph.NotExact:
        pytest.skip("here products of bytes are not added exactly")
    want = torch.nn.functional.conv2d(x.double(), w, b, *byte_graph._listed(o))
    assert float(want.abs().max()) < EXACT
    want = want * torch.ldexp(torch.ones(17, dtype=torch.float64), shift).view(-1, 1, 1)
    got = made(byte_graph._bytes_of(x.float(), signed), rounded=False)
    assert got.double().tolist() == want.tolist()
    rounded = made(byte_graph._bytes_of(x.float(), signed), rounded=True)
    assert rounded.double().tolist() == want.round().clamp(0, REACH).tolist()


def test_a_long_sum_in_parts() -> None:
    """Where a sum is too long for 24 bits its parts are added in float32, as in the graph."""
    _, ops, q, graph = built("convolutions")
    layer = ops[2]
    assert isinstance(layer, Affine)
    on_bytes(graph)
    affine = graph.affine[3]
    (span, weight), half = affine.parts[0], 2
    cut = ((slice(0, half), weight[:, :half]), (slice(half, span.stop), weight[:, half:]))
    parts = tuple((s, w.contiguous(memory_format=torch.channels_last)) for s, w in cut)
    graph.affine[3] = replace(affine, parts=parts)
    made = on_bytes(graph)
    assert len(made.bytes[3]) == 2
    assert 3 not in made.direct
    assert torch.equal(whole(made(q.clone())), whole(graph(q.clone())))


def test_what_gradients_need_is_kept_in_float32() -> None:
    _, _, q, graph = built("convolutions")
    kept, wanted = Kept(), Kept()
    assert torch.equal(on_bytes(graph)(q.clone(), kept), graph(q.clone(), wanted))
    assert kept.inputs.keys() == wanted.inputs.keys()
    assert all(torch.equal(kept.inputs[n], x) for n, x in wanted.inputs.items())


def saturating(self: ByteConvolution, x: Tensor, *, rounded: bool) -> Tensor:
    """A kernel that adds pairs of products in 16 bits, as processors without VNNI do."""
    y = kernel(self, x, rounded=rounded)
    return y if rounded else y.clamp(-(2**15), 2**15 - 1)


def wrong_in_one_place(self: ByteConvolution, x: Tensor, *, rounded: bool) -> Tensor:
    y = kernel(self, x, rounded=rounded)
    if rounded:
        y[:, 0, 0, 0] ^= 1
    return y


kernel = ByteConvolution.__call__


@pytest.mark.parametrize("wrong", [saturating, wrong_in_one_place])
def test_a_kernel_that_is_not_exact_is_not_used(
    wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = built("convolutions")[3]
    on_bytes(graph)
    monkeypatch.setattr(ByteConvolution, "__call__", wrong)
    assert ByteGraph.of(graph) is None


def test_without_such_instructions_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_graph, "available", lambda: False)
    assert ByteGraph.of(built("convolutions")[3]) is None


def test_small_networks_stay_in_float32() -> None:
    assert not worth_bytes(built("convolutions")[3])


@pytest.mark.parametrize("options", [{}, {"layer_features": "gradients", "power": 1.0}])
@pytest.mark.parametrize("mirror", [False, True])
def test_rows_and_predictions_of_a_model_are_the_same(
    options: dict[str, object], mirror: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tiny_records(20, 1)
    sizes = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2]}
    net = randomised(hf_model("ResNet", **sizes))
    prep = Preprocess(resize=32, crop=32)
    core = Core(net, classes=records.classes, preprocess=prep, mirror=mirror)
    core.records = tiny_records(12, 5)
    model = MixedLinear(core, "compact", features=200, **options).fit(records)
    user = model.user
    assert isinstance(user, CompactUser)
    used = user.form
    assert isinstance(used, form.IntegerForm)
    wanted = user.rows(model.activations(records), core.labels(records)), model.logits(records)
    assert not any(isinstance(g, ByteGraph) for g in used._placed.values())
    monkeypatch.setattr(form, "worth_bytes", lambda graph: True)
    on_bytes(used.prefix_graph)
    found = user.rows(model.activations(records), core.labels(records)), model.logits(records)
    assert all(isinstance(g, ByteGraph) for g in used._placed.values())
    assert len(used._placed) == 2
    again = form.IntegerForm(core, used.exponents)
    again.settle(user.projection)  # type: ignore[arg-type]
    assert [isinstance(g, ByteGraph) for g in again._placed.values()] == [True, True]
    assert (found[0].features == wanted[0].features).all()
    assert torch.equal(found[1], wanted[1])
