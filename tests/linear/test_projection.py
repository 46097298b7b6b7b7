"""Compact features are projected per-sample gradients, on bases that core data alone decide."""

from __future__ import annotations

import pytest
import torch
from tests import cases
from tests.linear.projections import built, every_case, float_tail, inputs, split
from tests.reference import feature_gradients, second_moments
from torch import Tensor, nn

from efface.errors import BackboneError, EffaceError
from efface.linear.matrix_root import STEPS
from efface.linear.projection import (
    COVARIANCES,
    GRADIENTS,
    MAPS,
    MOMENTS,
    Projection,
    layers_of,
    side_of,
)
from efface.linear.taps import LayerTap, MapTap, Tapper, taps_of
from efface.network.blocks import GlobalMean
from efface.network.families import Step
from efface.network.tail import Tail


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


@every_case
def test_maps_are_moments_of_what_steps_read(name: str) -> None:
    """The first step, and the last one that reads more than one place; number by number in float64."""
    tail, x = float_tail(name), inputs(name, 4)
    projection = Projection.build(tail, inputs(name, 30, 5).float(), 60, layer_features=MAPS)
    rows = projection.rows(tail, x.float())
    steps = [step for step, module in tail.named_children() if module is not tail.head]
    shapes = {step: given_to(name, step, x)[0].shape for step in steps}  # of one sample
    places = {3: lambda s: s[1], 4: lambda s: s[2] * s[3]}  # tokens, maps
    wide = [f"before {n}" for n, s in shapes.items() if places.get(len(s), lambda s: 1)(s) > 1]
    if not wide:  # vectors only: there is no map
        other = Projection.build(tail, inputs(name, 30, 5).float(), 60, layer_features=MOMENTS)
        assert torch.equal(rows, other.rows(tail, x.float()))
        return
    assert projection.names == tuple(dict.fromkeys((wide[0], wide[-1])))
    sizes = [projection.num_pooled, 1, *projection.layer_sizes]
    _, constant, *parts = rows.double().split(sizes, dim=1)
    assert torch.equal(constant, torch.ones_like(constant))
    for i, (layer, part) in enumerate(zip(projection.names, parts, strict=True)):
        projected = (inputs_of(name, layer, x) @ projection.inputs[i].double()).numpy()
        want = torch.tensor([second_moments(sample) for sample in projected])
        want /= projection.part_scales[i + 1].double()
        torch.testing.assert_close(part, want.double(), rtol=1e-3, atol=1e-4)  # float32


@every_case
def test_covariances_and_energies_of_maps(name: str) -> None:
    """Energies of the map that is pooled, in the place of its means, and of the first one inside that a
    convolution reads; behind them roots of covariances of the maps. Number by number in float64."""
    tail, x = float_tail(name), inputs(name, 4)
    calibration, size = inputs(name, 30, 5).float(), 100
    projection = Projection.build(tail, calibration, size, layer_features=COVARIANCES)
    maps = Projection.build(tail, calibration, size, layer_features=MAPS)
    assert projection.num_features <= size
    assert projection.names == maps.names
    rows = projection.rows(tail, x.float()).double()
    has_places = all(name.startswith("before ") for name in projection.names)
    assert projection.roots == has_places
    if not has_places:
        assert torch.equal(rows, maps.rows(tail, x.float()).double())
        return
    others = projection.energies[1:]
    sizes = [projection.num_pooled, 1, *(e.size for e in others), *projection.layer_sizes]
    energies, constant, *parts = rows.split(sizes, dim=1)
    assert torch.equal(constant, torch.ones_like(constant))
    scales = projection.part_scales.double()
    if projection.energies:
        assert projection.energies[0].name == projection.names[-1]
    for energy, part, scale in zip(projection.energies, [energies, *parts], scales, strict=False):
        want = torch.stack([_squares(a) for a in given_to(name, _plain(energy.name), x)])
        torch.testing.assert_close(part, want / scale, rtol=1e-3, atol=1e-4)  # float32
    behind = scales[len(others) + 1 :]
    for i, (layer, part) in enumerate(zip(projection.names, parts[len(others) :], strict=True)):
        projected = inputs_of(name, layer, x) @ projection.inputs[i].double()
        want = torch.stack([_slow_roots(sample) for sample in projected])
        torch.testing.assert_close(part, want / behind[i], rtol=1e-3, atol=1e-4)


def _slow_roots(p: Tensor) -> Tensor:
    """About √(C / tr C) on and above the diagonal, C the covariance over places, not rounded on the way."""
    c = torch.cov(p.T, correction=0).reshape(p.shape[1], p.shape[1])
    trace = float(c.trace())
    y, z = c / (trace if trace > 0 else 1.0), torch.eye(len(c), dtype=c.dtype)
    for _ in range(STEPS):
        m = (3 * torch.eye(len(c), dtype=c.dtype) - z @ y) / 2
        y, z = y @ m, m @ z
    return torch.stack([y[i, j] for i in range(len(y)) for j in range(i, len(y))])


def _plain(name: str) -> str:
    return name.removeprefix("before ")


def _squares(a: Tensor) -> Tensor:
    """Channel by channel of one sample's maps (views, c, h, w), or tokens (views, t, c)."""
    channels = a.transpose(0, 1).flatten(1) if a.dim() == 4 else a.flatten(0, -2).T
    return torch.tensor([sum(float(v) ** 2 for v in row) for row in channels], dtype=torch.float64)


def test_energies_of_a_bottleneck_are_of_what_is_pooled_and_what_is_inside() -> None:
    tail, x = float_tail("resnet bottleneck"), inputs("resnet bottleneck", 30, 5).float()
    found = Projection.build(tail, x, 100, layer_features=COVARIANCES).energies
    convolutions = [n for n, m in tail.named_modules() if isinstance(m, nn.Conv2d)]
    assert len(found) == 2
    assert found[1].name in convolutions[1:]
    few = Projection.build(tail, x, tail.head.in_features + 4, layer_features=COVARIANCES)
    assert len(few.energies) == 1  # no room for the second
    alone = Projection.build(tail, x, tail.head.in_features, layer_features=COVARIANCES)
    assert (alone.energies, alone.names) == ((), ())  # the last layer alone has its means


def test_energies_survive_their_tensors() -> None:
    tail, x = float_tail("resnet bottleneck"), inputs("resnet bottleneck", 30, 5).float()
    made = Projection.build(tail, x, 100, layer_features=COVARIANCES)
    names, tensors = [e.name for e in made.energies], made.to_tensors()
    again = Projection.from_tensors(tensors, made.names, made.num_pooled, names, made.roots)
    assert torch.equal(again.rows(tail, x), made.rows(tail, x))
    assert again.part_sizes == made.part_sizes
    with pytest.raises(ValueError):  # noqa: PT011
        Projection.from_tensors(tensors, made.names, made.num_pooled, names[:1])
    tensors["energies"] = tensors["energies"] - 100
    with pytest.raises(ValueError, match="energies of what is pooled"):
        Projection.from_tensors(tensors, made.names, made.num_pooled, names)


def inputs_of(name: str, layer: str, x: Tensor) -> Tensor:
    """What a layer or step is given, sample by sample in float64; of a convolution the patches."""
    plain = layer.removeprefix("before ")
    module = cases.tail(name).get_submodule(plain)
    tap = LayerTap(layer, module) if plain == layer else MapTap(layer, module)
    return torch.cat([tap.rows(a, 1) for a in given_to(name, plain, x)])


def given_to(name: str, module_name: str, x: Tensor) -> list[Tensor]:
    """The input of a module, sample by sample in float64."""
    tail: nn.Module = cases.tail(name)
    kept: list[Tensor] = []
    handle = tail.get_submodule(module_name).register_forward_pre_hook(
        lambda _, a: kept.append(a[0].detach().clone())
    )
    with torch.no_grad():
        for sample in x.split(1):
            tail.features(sample.clone())  # type: ignore[operator]
    handle.remove()
    return kept


def test_moments_are_of_layers_that_look_at_one_place_if_there_are_any() -> None:
    bottleneck, plain = float_tail("resnet bottleneck"), float_tail("cnn")
    x, y = inputs("resnet bottleneck").float(), inputs("cnn").float()
    chosen = layers_of(bottleneck, MOMENTS, x)
    assert {t.module.kernel_size for t in chosen} == {(1, 1)}
    assert len(chosen) < len(layers_of(bottleneck, GRADIENTS, x))
    assert [t.name for t in layers_of(plain, MOMENTS, y)] == [t.name for t in taps_of(plain)]
    with pytest.raises(EffaceError, match="unknown layer features 'x'"):
        layers_of(plain, "x", y)


@pytest.mark.parametrize("wanted", [20, 50, 100, 400])
def test_moments_take_as_many_features_as_fit(wanted: int) -> None:
    tail, x = float_tail("resnet bottleneck"), inputs("resnet bottleneck", 30, seed=5).float()
    projection = Projection.build(tail, x, wanted, layer_features=MOMENTS)
    layers = layers_of(tail, MOMENTS, x)
    assert projection.num_features <= wanted
    side = side_of(wanted - 9, len(layers), MOMENTS)
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
