"""Bases and scales of the projection, its fast convolutions and its files."""

from __future__ import annotations

import copy
from collections import OrderedDict

import numpy as np
import pytest
import torch
from tests.linear.projections import built, every_case, float_tail, inputs, split
from tests.linear.test_projection import tail_of
from tests.reference import feature_gradients
from torch import Tensor, nn

from efface.errors import EffaceError, FormatError
from efface.linear.projection import (
    LEAST_SIGMA,
    Projection,
    leading_directions,
    whitened,
)
from efface.linear.taps import LayerTap, tap, taps_of
from efface.linear.winograd import WinogradLayer
from efface.network.blocks import GlobalMean
from efface.network.tail import Tail

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
    conv = LayerTap("c", nn.Conv2d(3, 5, (2, 4)))
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
