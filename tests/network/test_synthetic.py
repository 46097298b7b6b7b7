"""Calibration without data: what it is made of, and that nobody's data are in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import cases
from torch import nn

from efface import files
from efface.arithmetic.choice import Arithmetic, choose_form_without_data
from efface.data.preprocess import Preprocess
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError
from efface.model.mixed_linear import MixedLinear
from efface.network import blocks, synthetic
from efface.network.core import Core
from efface.network.training import Stage
from efface.parts.compact.calibration import DEFAULT_RIDGE, Calibration
from efface.workspace import Workspace
from efface.workspace.published import load

CLASSES = ["a", "b", "c"]
GRAY = Preprocess(0, 0, 1, (0.5,), (0.5,))


def normalised(**options: object) -> Core:
    """A network with BatchNorms whose statistics are not the trivial ones."""
    net = cases.randomised(cases.named_sequential())
    return Core(net, classes=CLASSES, preprocess=GRAY, **options)  # type: ignore[arg-type]


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_fixed_by_the_seed_and_differ_from_each_other(channels: int) -> None:
    made, again = (synthetic.images(6, 16, channels) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(made, again, strict=True))
    assert all(a.dtype == np.uint8 and a.shape[:2] == (16, 16) for a in made)
    assert len({a.tobytes() for a in (*made, *synthetic.images(6, 16, channels, seed=1))}) == 12
    means = np.array([a.mean() for a in synthetic.images(64, 16, channels)])
    assert means.std() > 10  # as a whole, not only from pixel to pixel


# --- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fold", [True, False], ids=["folded", "as it was"])
def test_strange_inputs_get_the_statistics_the_network_recorded(fold: bool) -> None:
    """After conv and BatchNorm: mean β and variance γ² v/(v + eps), whatever goes in."""
    core, net = normalised(fold_batchnorm=fold), cases.randomised(cases.named_sequential())
    norm = net.stem[1]  # type: ignore[index]
    x = 3 + 7 * torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), blocks.matched_statistics(core.prefix) as matched:
        seen = core.prefix[0][:2](x)
    assert matched == 1
    spread = norm.weight.abs() * (norm.running_var / (norm.running_var + norm.eps)).sqrt()
    torch.testing.assert_close(seen.mean((0, 2, 3)), norm.bias.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        seen.std((0, 2, 3), correction=0), spread.detach(), atol=1e-4, rtol=1e-4
    )


def test_matching_ends_with_its_block_and_leaves_the_core_as_it_was() -> None:
    core = normalised()
    before, x = core.digest, torch.randn(4, 1, 8, 8)
    plain = core.boundary(x)
    with blocks.matched_statistics(core.prefix):
        assert not torch.equal(core.boundary(x), plain)
    assert torch.equal(core.boundary(x), plain)
    assert core.digest == before
    assert not any("output_" in name for name in core.tensors)


def test_a_channel_that_is_constant_stays_finite() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).eval()
    nn.init.zeros_(net[0].weight)  # type: ignore[arg-type]
    with torch.no_grad(), blocks.matched_statistics(blocks.fold_batchnorm(net)):
        assert torch.isfinite(net(torch.randn(3, 1, 4, 4))).all()


@pytest.mark.parametrize("fold", [True, False], ids=["folded", "as it was"])
def test_a_loaded_core_has_the_statistics_it_was_saved_with(tmp_path: Path, fold: bool) -> None:
    """Not those of the network that load() is given: its weights are replaced, too."""
    core = normalised(fold_batchnorm=fold)
    core.save(tmp_path)
    loaded = Core.load(tmp_path, cases.named_sequential())
    made, matched = synthetic.activations(loaded)
    assert matched == 1
    assert torch.equal(made, synthetic.activations(core)[0])
    again = tmp_path / "again"
    loaded.save(again)
    for name in ("core.json", "core.safetensors"):
        assert (again / name).read_bytes() == (tmp_path / name).read_bytes()


def test_cores_saved_without_statistics_load_with_none(tmp_path: Path) -> None:
    core = normalised()
    core.save(tmp_path)
    files.write_tensors(tmp_path / "core.safetensors", core.tensors)
    with pytest.raises(FormatError, match="does not have the digest"):
        Core.load(tmp_path, cases.named_sequential())
    values = json.loads((tmp_path / "core.json").read_text())
    files.write_json(
        tmp_path / "core.json", {k: v for k, v in values.items() if k != "statistics_digest"}
    )
    loaded = Core.load(tmp_path, cases.named_sequential())
    assert loaded.digest == core.digest
    assert synthetic.activations(loaded, 32)[1] == 0


@pytest.mark.parametrize("change", ["value", "name"])
def test_changed_statistics_are_noticed(tmp_path: Path, change: str) -> None:
    core = normalised()
    core.save(tmp_path)
    kept = {k: v + 1 for k, v in core.statistics.items()}
    if change == "name":
        kept = {k.replace("statistics.", "statistics.nowhere."): v for k, v in kept.items()}
    files.write_tensors(tmp_path / "core.safetensors", core.tensors | kept)
    with pytest.raises(FormatError, match=r"the digest|do not fit"):
        Core.load(tmp_path, cases.named_sequential())


def test_a_prefix_that_was_trained_has_no_statistics_of_the_one_before() -> None:
    core = normalised()
    core.fit(cases.tiny_records(30, 3), [Stage("head", 1, 0.01)])
    assert core.statistics
    core.fit(cases.tiny_records(30, 3), [Stage("all", 1, 0.01)])
    assert not core.statistics


def test_activations_are_full_batches_and_tell_how_far_they_are() -> None:
    core, told = normalised(), list[float]()
    made, _ = synthetic.activations(core, 40, progress=lambda done, _: told.append(done))
    assert made.shape == (64, *core.boundary_shape)
    assert told == [0.5, 1.0]
    told.clear()
    choose_form_without_data(
        core, Arithmetic.AUTO, count=64, progress=lambda done, _: told.append(done)
    )
    assert told == [0.5, 1.0]  # in integers, too


# --- the model ------------------------------------------------------------------------------------


def fitted(core: Core, records: Records, **options: object) -> MixedLinear:
    return MixedLinear(core, "compact", **{"features": 80, **options}).fit(records)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("core", "source"),
    [
        (normalised(), Calibration.STATISTICS),
        (Core("cnn", classes=CLASSES), Calibration.SYNTHETIC),
        (
            Core(cases.randomised(cases.tiny("vit")), classes=CLASSES, preprocess=Preprocess(8, 8)),
            Calibration.SYNTHETIC,
        ),
    ],
    ids=["BatchNorm", "no norm", "LayerNorm"],
)
def test_a_model_without_core_data_learns_and_forgets_exactly(
    core: Core, source: Calibration
) -> None:
    records, test = cases.tiny_records(60, 1), cases.tiny_records(60, 9, split=Split.TEST)
    model = fitted(core, records)
    assert model.user.calibration is source
    assert model.user.total_ridge == DEFAULT_RIDGE
    assert not core.logits(test).any()
    assert model.accuracy(test) > 0.6  # chance is a third
    assert model.user.num_saturated(model.data.rows) < 0.01 * model.data.rows.features.size
    model.forget(ids=records.ids[:7])
    other = fitted(core, records[7:])
    assert model.user.statistics_digest == other.user.statistics_digest
    assert model.user.weights_digest == other.user.weights_digest


def test_bases_and_scales_do_not_depend_on_the_users() -> None:
    models = [fitted(normalised(), cases.tiny_records(20, seed)) for seed in (1, 2)]
    for key, value in models[0].user.tensors.items():
        assert torch.equal(models[1].user.tensors[key], value) == (key != "theta")


def test_a_given_ridge_wins_over_the_default() -> None:
    records = cases.tiny_records(20, 1)
    assert fitted(normalised(), records, mu=0.5).user.ridge_mu == 0.5
    assert fitted(normalised(), records, total_ridge=0.7).user.total_ridge == 0.7


def test_public_records_of_other_classes_give_scales_but_no_ridge() -> None:
    made = cases.tiny_records(12, 5)
    public = Records([*made], (*made.classes, "another"))
    model = MixedLinear(normalised(), features=80)
    model.fit(cases.tiny_records(20, 1), calibration=public)
    assert model.user.calibration is Calibration.GIVEN
    assert model.user.total_ridge == DEFAULT_RIDGE


def test_user_records_are_refused_for_calibration() -> None:
    records, model = cases.tiny_records(20, 1), MixedLinear(normalised(), features=80)
    with pytest.raises(EffaceError, match="are user records"):
        model.fit(records, calibration=records[:3])
    with pytest.raises(EffaceError, match="no records to calibrate on"):
        model.fit(records, calibration=records[[]])


def test_where_the_scales_came_from_is_kept_with_the_model(tmp_path: Path) -> None:
    net = cases.named_sequential
    core = Core(net(), classes=CLASSES, preprocess=GRAY)
    model = fitted(core, cases.tiny_records(20, 1))
    workspace = Workspace.create(tmp_path / "w", model)
    values = json.loads((workspace.path / "releases" / "1" / "model.json").read_text())
    assert values["user"]["calibration"] == str(Calibration.STATISTICS)
    loaded = load(tmp_path / "w", module=net())
    assert loaded.user.calibration is Calibration.STATISTICS


def test_models_saved_before_it_was_kept_still_load(tmp_path: Path) -> None:
    model = fitted(Core("cnn", classes=CLASSES), cases.tiny_records(20, 1))
    model.user.calibration = None
    model.save(tmp_path)
    assert "calibration" not in (tmp_path / "model.json").read_text()
    assert load(tmp_path).user.calibration is None
