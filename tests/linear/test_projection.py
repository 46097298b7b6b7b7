"""Compact features are projected per-sample gradients, on bases that core data alone decide."""

from __future__ import annotations

import copy
from collections import OrderedDict
from functools import cache

import numpy as np
import pytest
import torch
from tests import cases
from tests.reference import feature_gradients, second_moments
from torch import Tensor, nn

from efface.errors import BackboneError, EffaceError, FormatError
from efface.linear.projection import (
    GRADIENTS,
    LEAST_SIGMA,
    MOMENTS,
    Projection,
    layers_of,
    leading_directions,
    whitened,
)
from efface.linear.taps import Tap, Tapper, tap, taps_of
from efface.linear.winograd import WinogradLayer
from efface.network.blocks import GlobalMean
from efface.network.families import Step
from efface.network.tail import Tail

# A layer used twice has no single input and output gradient.
NOT_TAPPED = {"tied weights"}
TAPPED = [case.name for case in cases.CASES if case.name not in NOT_TAPPED]
every_case = pytest.mark.parametrize("name", TAPPED)


@cache
def float_tail(name: str) -> Tail:
    return cases.BY_NAME[name].build().float()  # type: ignore[return-value]


def inputs(name: str, n: int = 6, seed: int = 1) -> Tensor:
    return cases.BY_NAME[name].inputs(n, seed)


@cache
def built(name: str = "cnn", num_features: int = 200) -> Projection:
    return Projection.build(float_tail(name), inputs(name, 30, seed=5).float(), num_features)


def split(projection: Projection, rows: Tensor) -> list[Tensor]:
    """(pooled, constant, ψ_1, ψ_2, …)."""
    pairs = zip(projection.inputs, projection.gradients, strict=True)
    sizes = [a.shape[1] * g.shape[1] for a, g in pairs]
    return list(rows.split([projection.num_pooled, 1, *sizes], dim=1))


# --- what the features are ------------------------------------------------------------------------


@every_case
def test_the_features_are_projected_gradients(name: str) -> None:
    """ψ_l = vec(R_gᵀ [∂(1ᵀh)/∂W_l] R_a) / c_l, sample by sample in float64 by torch.func."""
    projection, x = built(name), inputs(name)
    rows = projection.rows(float_tail(name), x.float())
    assert rows.shape == (6, projection.num_features)
    pooled, constant, *parts = split(projection, rows.double())
    assert projection.names
    assert torch.equal(constant, torch.ones_like(constant))
    features = cases.tail(name).features(x.clone()).detach()  # type: ignore[operator]
    # Parts have a mean squared norm of 1 on core data; float32 through a few layers.
    close = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(pooled, features / projection.part_scales[0], **close)
    for i, (layer, part) in enumerate(zip(projection.names, parts, strict=True)):
        gradient = feature_gradients(cases.tail(name), layer, x)  # (n, outputs, width)
        r_a, r_g = projection.inputs[i].double(), projection.gradients[i].double()
        want = (r_g.T @ gradient @ r_a).flatten(1) / projection.part_scales[i + 1]
        torch.testing.assert_close(part, want, **close)


@every_case
def test_moments_are_sums_over_places(name: str) -> None:
    """ψ_l = triu(R_aᵀ [Σ_s a_l(s) a_l(s)ᵀ] R_a) / c_l, number by number in float64."""
    tail, x = float_tail(name), inputs(name, 4)
    projection = Projection.build(tail, inputs(name, 30, 5).float(), 60, layer_features=MOMENTS)
    rows = projection.rows(tail, x.float())
    assert rows.shape == (4, projection.num_features)
    assert projection.num_features <= 60
    assert not projection.gradients
    sizes = [projection.num_pooled, 1, *projection.layer_sizes]
    _, constant, *parts = rows.double().split(sizes, dim=1)
    assert torch.equal(constant, torch.ones_like(constant))
    for i, (layer, part) in enumerate(zip(projection.names, parts, strict=True)):
        seen = inputs_of(name, layer, x)  # (n, s, width)
        projected = (seen @ projection.inputs[i].double()).numpy()
        want = torch.tensor([second_moments(sample) for sample in projected])
        want /= projection.part_scales[i + 1].double()
        torch.testing.assert_close(part, want.double(), rtol=1e-3, atol=1e-4)  # float32


def inputs_of(name: str, layer: str, x: Tensor) -> Tensor:
    """What a layer is given, sample by sample in float64; of a convolution the patches."""
    tail: nn.Module = cases.tail(name)
    module, kept = tail.get_submodule(layer), []
    handle = module.register_forward_pre_hook(lambda _, a: kept.append(a[0].detach().clone()))
    with torch.no_grad():
        for sample in x.split(1):
            tail.features(sample.clone())  # type: ignore[operator]
    handle.remove()
    return torch.cat([Tap(layer, module).rows(a, 1) for a in kept])


def test_moments_are_of_layers_that_look_at_one_place_if_there_are_any() -> None:
    bottleneck, plain = float_tail("resnet bottleneck"), float_tail("cnn")
    chosen = layers_of(bottleneck, MOMENTS)
    assert {t.module.kernel_size for t in chosen} == {(1, 1)}
    assert len(chosen) < len(layers_of(bottleneck, GRADIENTS))
    assert [t.name for t in layers_of(plain, MOMENTS)] == [t.name for t in taps_of(plain)]
    with pytest.raises(EffaceError, match="unknown layer features 'x'"):
        layers_of(plain, "x")


@pytest.mark.parametrize("wanted", [20, 50, 100, 400])
def test_moments_take_as_many_features_as_fit(wanted: int) -> None:
    tail, x = float_tail("resnet bottleneck"), inputs("resnet bottleneck", 30, seed=5).float()
    projection = Projection.build(tail, x, wanted, layer_features=MOMENTS)
    layers = layers_of(tail, MOMENTS)
    assert projection.num_features <= wanted
    side = Projection.side(tail, wanted, MOMENTS)
    assert 9 + len(layers) * side * (side + 1) // 2 <= wanted
    assert 9 + len(layers) * (side + 1) * (side + 2) // 2 > wanted


def test_moments_survive_their_tensors() -> None:
    tail, x = float_tail("cnn"), inputs("cnn").float()
    made = Projection.build(tail, x, 100, layer_features=MOMENTS)
    again = Projection.from_tensors(made.to_tensors(), made.names, made.num_pooled)
    assert torch.equal(again.rows(tail, x), made.rows(tail, x))
    assert again.part_sizes == made.part_sizes


@every_case
def test_inputs_alone_are_those_of_the_whole_way(name: str) -> None:
    tail, x = float_tail(name), inputs(name).float()
    taps = [t for t in taps_of(tail) if t.name in built(name).names]
    forward = Tapper(tail, taps, backward=False)(x)
    both = Tapper(tail, taps)(x)
    assert forward.names == both.names
    torch.testing.assert_close(forward.features, both.features)
    for (a, nothing), (b, _) in zip(forward.pairs, both.pairs, strict=True):
        torch.testing.assert_close(a, b)
        assert nothing.numel() == 0


@every_case
def test_all_dense_layers_below_the_head_are_tapped(name: str) -> None:
    want = {
        key
        for key, module in cases.tail(name).named_modules()
        if (isinstance(module, nn.Conv2d) and module.groups == 1) or type(module) is nn.Linear
    } - {"classifier"}
    assert set(built(name).names) == want


@every_case
def test_a_full_projection_loses_nothing(name: str) -> None:
    """With square orthonormal bases ‖ψ_l‖ = ‖∂(1ᵀh)/∂W_l‖_F / c_l."""
    x = inputs(name)
    projection = Projection.build(float_tail(name), x.float(), 10**6, whiten=0)
    parts = split(projection, projection.rows(float_tail(name), x.float()).double())[2:]
    for i, (layer, part) in enumerate(zip(projection.names, parts, strict=True)):
        gradient = feature_gradients(cases.tail(name), layer, x) / projection.part_scales[i + 1]
        torch.testing.assert_close(
            part.norm(dim=1), gradient.flatten(1).norm(dim=1), rtol=1e-3, atol=1e-4
        )


@every_case
def test_a_row_is_a_function_of_its_sample(name: str) -> None:
    """To the bit: whoever else is there, in which order, wherever in memory, on however many threads."""
    x = inputs(name, 9).float()
    rows = built(name).rows(float_tail(name), x)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    assert torch.equal(built(name).rows(float_tail(name), x[order]), rows[order])
    assert torch.equal(built(name).rows(float_tail(name), unaligned(x[4:5])), rows[4:5])
    before = torch.get_num_threads()
    torch.set_num_threads(3 - min(before, 2))  # 2 where it was 1, else 1
    try:
        assert torch.equal(built(name).rows(float_tail(name), x), rows)
    finally:
        torch.set_num_threads(before)


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers at an address that no vector instruction likes."""
    memory = torch.empty(x.numel() + 1)
    memory[1:] = x.reshape(-1)
    return memory[1:].view(x.shape)


def test_the_network_is_left_as_it_was() -> None:
    """Taps are hooks: none stays behind, and the caller's own network is not even touched."""
    calls: list[int] = []
    tail, projection = float_tail("cnn"), built()
    handle = tail.head.register_forward_hook(lambda *_: calls.append(1))
    projection.rows(tail, inputs("cnn", 3).float())
    handle.remove()
    assert calls == []
    assert not any(m._forward_hooks or "forward" in vars(m) for m in tail.modules())


def test_no_samples_have_no_rows() -> None:
    assert built().rows(float_tail("cnn"), torch.zeros(0, 2, 6, 5)).shape == (
        0,
        built().num_features,
    )


def test_tapping_leaves_no_trace() -> None:
    tail, x = float_tail("in-place block"), inputs("in-place block").float()
    before, state = x.clone(), {k: v.clone() for k, v in tail.state_dict().items()}
    logits = tail(x.clone())
    built("in-place block").rows(tail, x)
    assert torch.equal(x, before)
    assert torch.equal(tail(x.clone()), logits)
    assert all(torch.equal(v, state[k]) for k, v in tail.state_dict().items())
    assert all(p.grad is None for p in tail.parameters())
    assert not any(m._forward_hooks for m in tail.modules())


class Adds(nn.Module):
    """x += body(x): the body's input changes after it was seen."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(4, 4), in_place

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        if self.in_place:
            x += self.linear(x)
            return x
        return x + self.linear(x)


class Unused(nn.Module):
    """A layer that is never called, and one whose output goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.never, self.nowhere = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.nowhere(x)
        return torch.tanh(self.used(x))


def tail_of(*modules: nn.Module, features: int = 4) -> Tail:
    steps = [Step(f"m{i}", m) for i, m in enumerate(modules)]
    torch.manual_seed(0)
    return Tail(steps, nn.Linear(features, 3)).eval()


def test_inputs_are_those_that_the_layer_saw() -> None:
    tail, x = tail_of(Adds(True), nn.Tanh()), inputs("smooth activations", 5).float()
    twin = tail_of(Adds(False), nn.Tanh())
    twin.load_state_dict(tail.state_dict())
    projection = Projection.build(twin, x, 10**4)
    assert torch.equal(projection.rows(tail, x), projection.rows(twin, x))


def test_layers_that_the_features_do_not_depend_on_are_left_out() -> None:
    tail, x = tail_of(Unused()), torch.randn(5, 4)
    projection = Projection.build(tail, x, 1000)
    assert projection.names == ("m0.used",)
    assert projection.rows(tail, x).shape == (5, 4 + 1 + 16)


@pytest.mark.parametrize(
    "options",
    [{"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}, {"padding": 1, "groups": 2}],
)
def test_convolutions_of_other_kinds_are_left_out(options: dict[str, object]) -> None:
    """Their gradient is not Σ_s g(s) a(s)ᵀ over zero-padded patches of all channels."""
    odd = nn.Conv2d(2, 4, 3, **options)  # type: ignore[arg-type]
    tail, x = tail_of(odd, nn.Tanh(), nn.Conv2d(4, 4, 1), GlobalMean()), torch.randn(5, 2, 4, 4)
    projection = Projection.build(tail, x, 1000)
    assert projection.names == ("m2",)
    assert torch.isfinite(projection.rows(tail, x)).all()


def test_a_layer_used_twice_is_refused_by_name() -> None:
    x = inputs("tied weights").float()
    with pytest.raises(BackboneError, match="layer 0 is used twice"):
        Projection.build(float_tail("tied weights"), x, 200)
    assert Projection.build(float_tail("tied weights"), x, 4).names == ()  # the last layer will do


def test_a_batch_that_is_not_the_samples_is_refused() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.reshape(2, -1, 4)).reshape(x.shape)

    with pytest.raises(BackboneError, match=r"m0\.linear sees a batch of 2 for 6 samples"):
        Projection.build(tail_of(Mixed()), torch.randn(6, 4), 100)


# --- bases and scales -----------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("bases", ["core", "random"])
def test_bases_are_orthonormal_and_parts_have_unit_norm_on_core_data(name: str, bases: str) -> None:
    x = inputs(name, 30, seed=5).float()
    projection = Projection.build(float_tail(name), x, 150, bases=bases, whiten=0)
    for basis in (*projection.inputs, *projection.gradients):
        gram = basis.double().T @ basis.double()
        torch.testing.assert_close(gram, torch.eye(len(gram), dtype=gram.dtype), rtol=0, atol=1e-5)
    projection = Projection.build(float_tail(name), x, 150, bases=bases)
    pooled, _, *parts = split(projection, projection.rows(float_tail(name), x).double())
    for part in (pooled, *parts):
        assert float(part.square().sum(1).mean()) == pytest.approx(1, rel=1e-3)  # float32


def test_core_bases_are_the_leading_eigenvectors() -> None:
    """They catch as much of the second moment as eigh's, to the accuracy of the iteration."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 20, generator=generator) * torch.arange(20, 0, -1)
    basis = leading_directions(rows, 5, seed=0)
    caught = float((rows @ basis).square().sum())
    best = float(torch.linalg.eigvalsh(rows.double().T @ rows.double())[-5:].sum())
    assert best * (1 - 1e-3) < caught < best * (1 + 1e-5)
    powers = (rows @ basis).square().sum(0)
    assert powers.tolist() == sorted(powers.tolist(), reverse=True)
    assert leading_directions(rows[:, :3], 5, seed=0).shape == (3, 3)


def test_core_bases_catch_more_than_random_ones() -> None:
    name, x = "resnet bottleneck", inputs("resnet bottleneck", 30, seed=5).float()
    sizes = {
        bases: Projection.build(float_tail(name), x, 25, bases=bases, whiten=0).part_scales[1:]
        for bases in ("core", "random")
    }
    assert (sizes["core"] > sizes["random"]).all()  # the norms before they are scaled to 1


def test_random_bases_do_not_depend_on_the_data_and_do_on_the_seed() -> None:
    def basis(seed: int, data_seed: int) -> Tensor:
        x = inputs("cnn", 10, data_seed).float()
        built_anew = Projection.build(float_tail("cnn"), x, 80, bases="random", seed=seed)
        return torch.cat([b.flatten() for b in (*built_anew.inputs, *built_anew.gradients)])

    assert torch.equal(basis(0, 1), basis(0, 2))
    assert not torch.equal(basis(0, 1), basis(1, 1))


def test_unknown_bases_and_no_samples_are_refused() -> None:
    with pytest.raises(EffaceError, match=r"unknown bases 'pca'.*core, random"):
        Projection.build(float_tail("cnn"), inputs("cnn").float(), 80, bases="pca")
    with pytest.raises(EffaceError, match="no samples to calibrate"):
        Projection.build(float_tail("cnn"), torch.zeros(0, 2, 6, 5), 80)


@pytest.mark.parametrize("wanted", [50, 100, 400, 2000])
def test_about_as_many_features_as_asked_for(wanted: int) -> None:
    tail = float_tail("resnet bottleneck")
    x = inputs("resnet bottleneck", 30, seed=5).float()
    projection = Projection.build(tail, x, wanted)
    count = len(taps_of(tail))
    side = int(np.sqrt((wanted - 9) // count))
    most = sum(min(side, t.width) * min(side, t.outputs) for t in taps_of(tail))
    assert projection.num_features == 8 + 1 + most <= wanted


@pytest.mark.parametrize("wanted", [0, 1, 4, 5])
def test_few_features_are_the_last_layer(wanted: int) -> None:
    projection = Projection.build(float_tail("cnn"), inputs("cnn").float(), wanted)
    assert projection.names == ()
    x = inputs("cnn").float()
    rows = projection.rows(float_tail("cnn"), x)
    h = float_tail("cnn").features(x)
    torch.testing.assert_close(
        rows, torch.cat([h / projection.part_scales[0], torch.ones(6, 1)], 1)
    )


def test_calibration_samples_are_spread_over_the_data() -> None:
    """Sorted by class, the first few would show one class only: the bases see all of them."""
    class_a, class_b = torch.zeros(8, 4), torch.zeros(8, 4)
    class_a[:, 0], class_b[:, 3] = 1, 1
    layers: OrderedDict[str, nn.Module] = OrderedDict(linear=nn.Linear(4, 4), tanh=nn.Tanh())
    tail = tail_of(nn.Sequential(layers))
    both = torch.cat([class_a, class_b])
    projection = Projection.build(tail, both, 9, max_samples=4, whiten=0)
    caught = projection.inputs[0].square().sum(1)  # the share of each direction
    assert projection.inputs[0].shape == (4, 2)
    torch.testing.assert_close(caught, torch.tensor([1.0, 0.0, 0.0, 1.0]), rtol=0, atol=1e-4)


# --- 3 × 3 convolutions by Winograd's products ------------------------------------------------------


def wide_tail() -> Tail:
    body = (nn.Conv2d(5, 64, 1), nn.Tanh(), nn.Conv2d(64, 80, 3, padding=1), nn.Tanh())
    return tail_of(*body, GlobalMean(), features=80)


def test_wide_convolutions_have_the_same_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Winograd's products, against torch.func in float64; and they are what ran."""
    calls: list[str] = []
    for method in ("forward", "pull_back"):
        real = getattr(WinogradLayer, method)
        spy = lambda *args, real=real, method=method: (calls.append(method), real(*args))[1]  # noqa: E731
        monkeypatch.setattr(WinogradLayer, method, spy)
    tail, x = wide_tail(), torch.randn(5, 5, 7, 6, generator=torch.Generator().manual_seed(0))
    projection = Projection.build(tail, x, 300)
    calls.clear()
    rows = projection.rows(tail, x).double()
    assert calls == ["forward", "pull_back"] * 5
    twin = copy.deepcopy(tail).double()
    for i, (layer, part) in enumerate(
        zip(projection.names, split(projection, rows)[2:], strict=True)
    ):
        gradient = feature_gradients(twin, layer, x.double())
        r_a, r_g = projection.inputs[i].double(), projection.gradients[i].double()
        want = (r_g.T @ gradient @ r_a).flatten(1) / projection.part_scales[i + 1]
        torch.testing.assert_close(part, want, rtol=1e-3, atol=1e-4)
    assert "forward" not in vars(tail[2])  # the layer is itself again


def test_wide_rows_do_not_depend_on_their_place_in_the_batch() -> None:
    tail, x = wide_tail(), torch.randn(16, 5, 7, 7, generator=torch.Generator().manual_seed(0))
    projection = Projection.build(tail, x, 300)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    rows = projection.rows(tail, x)
    assert torch.equal(projection.rows(tail, x[order]), rows[order])


def test_new_weights_are_seen() -> None:
    tail, x = wide_tail(), torch.randn(4, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    projection = Projection.build(tail, x, 300)
    before = projection.rows(tail, x)
    tail[2].weight.data.mul_(0.5)  # type: ignore[union-attr, operator]
    assert not torch.allclose(projection.rows(tail, x)[:, :80], before[:, :80])


# --- files ----------------------------------------------------------------------------------------


def test_it_survives_its_tensors() -> None:
    again = Projection.from_tensors(built().to_tensors(), built().names, built().num_pooled)
    x = inputs("cnn").float()
    assert torch.equal(again.rows(float_tail("cnn"), x), built().rows(float_tail("cnn"), x))
    assert again.num_features == built().num_features


def test_another_tail_is_refused() -> None:
    with pytest.raises(FormatError, match="belongs to another tail"):
        built().rows(float_tail("residual"), inputs("residual").float())


# --- taps -----------------------------------------------------------------------------------------


@every_case
def test_projecting_is_multiplying_the_rows(name: str) -> None:
    tail, x = float_tail(name), inputs(name).float()
    taps = taps_of(tail)
    seen = tap(tail, taps, x)
    generator = torch.Generator().manual_seed(0)
    for t, (a, g) in zip(taps, seen.pairs, strict=True):
        basis = torch.randn(t.width, 3, generator=generator)
        rows = t.rows(a, len(x))
        assert rows.shape[0] == t.gradient_rows(g, len(x)).shape[0] == len(x)
        assert (rows.shape[2], t.gradient_rows(g, len(x)).shape[2]) == (t.width, t.outputs)
        torch.testing.assert_close(t.project(a, basis, len(x)), rows @ basis, rtol=1e-4, atol=1e-4)


def test_a_tap_knows_its_size() -> None:
    conv = Tap("c", nn.Conv2d(3, 5, (2, 4)))
    assert (conv.width, conv.outputs) == (24, 5)


# --- whitening ------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.75, 1.0])
def test_whitening_divides_by_a_power_of_the_spread(exponent: float) -> None:
    rows = torch.randn(400, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 7)
    basis = leading_directions(rows, 4, 0)
    before = (rows @ basis).square().mean(0).sqrt()
    after = (rows @ whitened(basis, rows, exponent)).square().mean(0).sqrt()
    torch.testing.assert_close(after, before ** (1 - exponent))


def test_whitening_does_not_blow_up_what_is_not_there() -> None:
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1, 1, 1, 0]
    )
    basis = torch.eye(4)
    found = whitened(basis, rows, 1.0)
    largest = float((rows @ basis).square().mean(0).sqrt().max())
    assert float(found[3, 3]) == pytest.approx(1 / (LEAST_SIGMA * largest))
    assert torch.equal(whitened(basis, torch.zeros(5, 4), 1.0), basis)
