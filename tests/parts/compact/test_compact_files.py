"""A compact model on disk is the model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fractions_reference import rational_product
from tests.parts.compact.compacts import FEATURES, TEST, calibrated, model_of, user_records

from efface import files
from efface.digests import tensors_digest
from efface.errors import EffaceError
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.parts.compact import ridge
from efface.workspace.published import load


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bits": 12, "mu": 0.1},
        {"bases": "random", "seed": 3},
        {"features": 8},
        {"layer_features": "gradients"},
        {"power": 1.0},
        {"power": 0.75, "features": 8},
    ],
)
def test_a_saved_model_predicts_the_same_to_the_bit(
    core: Core, tmp_path: Path, options: dict[str, object]
) -> None:
    model = model_of(core, **options).fit(user_records())
    model.forget(ids=user_records()[3].id)
    model.save(tmp_path)
    again = load(tmp_path)
    assert torch.equal(again.logits(TEST), model.logits(TEST))
    assert again.user.weights_digest == model.user.weights_digest
    assert again.user.settings == model.user.settings


@pytest.mark.parametrize("features", [FEATURES, 8])
def test_a_model_of_an_earlier_version_is_read_as_it_was(
    core: Core, tmp_path: Path, features: int
) -> None:
    """It says nothing of layer features and powers: gradients, as they are."""
    model = model_of(core, features=features, layer_features="gradients", power=1.0)
    model.fit(user_records())
    model.user.layer_features = model.user.power = None
    model.save(tmp_path)
    again = MixedLinear.load(tmp_path)
    assert not {"layer_features", "power"} & set(again.user.settings)
    assert again.user.power_map is None
    assert again.user.projection.has_gradients == (features == FEATURES)
    assert again.user.given == model.user.given
    assert torch.equal(again.logits(TEST), model.logits(TEST))


@pytest.mark.parametrize(
    "change",
    [
        {"power": 0.3},
        {"power": "0.5"},
        {"power": [0.5]},
        {"power": 1.0},
        {"power": None},
        {"layer_features": "gradients"},
        {"layer_features": "anything"},
        {"layer_features": None},
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    core: Core, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Whoever changes a file can change its digest, too."""
    refused(core, tmp_path, {"layer_features": "moments", "power": 0.5}, change)


@pytest.mark.parametrize(
    "change",
    [
        {"energies": []},
        {"energies": None},
        {"energies": "before pool"},
        {"energies": ["nowhere"]},
        {"energies": ["before pool", "before pool", "before pool"]},
        {"layers": ["nowhere", "before pool"]},
        {"layer_features": "maps"},
        {"layer_features": "moments"},
        {"power": 1.0},
        {"power": 0.25},
    ],
)
def test_covariances_that_cannot_be_are_refused(
    core: Core, tmp_path: Path, change: dict[str, Any]
) -> None:
    refused(core, tmp_path, {"layer_features": "covariances"}, change)


def refused(core: Core, tmp_path: Path, options: dict[str, Any], change: dict[str, Any]) -> None:
    """A saved model with other settings, and the digest that goes with them."""
    model_of(core, **options).fit(user_records()).save(tmp_path)
    values = json.loads((tmp_path / "model.json").read_text())
    values["user"] |= change
    tensors = files.read_tensors(tmp_path / "user.safetensors")
    values["user_digest"] = tensors_digest(tensors, values["user"])
    (tmp_path / "model.json").write_text(json.dumps(values))
    with pytest.raises(EffaceError):
        MixedLinear.load(tmp_path)


@pytest.mark.parametrize("option", [{"power": 0.3}, {"layer_features": "pictures"}])
def test_unknown_features_are_refused_at_once(core: Core, option: dict[str, Any]) -> None:
    with pytest.raises(EffaceError, match="use one of"):
        model_of(core, **option)


def test_the_certificate_depends_on_what_a_row_is(core: Core) -> None:
    digest = {
        (kind, power): calibrated(core, layer_features=kind, power=power).given.calibration_digest
        for kind in ("moments", "gradients", "maps", "covariances")
        for power in (0.5, 0.75)
        if (kind, power) != ("covariances", 0.75)  # there is none
    }
    assert len(set(digest.values())) == 7


def test_rows_are_the_quantised_powers_of_psi(core: Core) -> None:
    """sign(ψ) √|ψ| / d, then centre and step, number by number."""
    user = calibrated(core, layer_features="moments", power=0.5)
    x = core.activations(user_records(6))
    rows = user.rows(x, core.labels(user_records(6))).features
    psi = torch.cat([p for p, _ in user.form.rows(user.projection, x)]).double().numpy()
    sizes, divisors = user.projection.part_sizes, user.power_map.divisors
    by_feature = np.repeat(divisors, sizes)
    by_feature = np.insert(by_feature, sizes[0], 1.0)
    for i, j in np.ndindex(rows.shape):
        root = math.copysign(math.sqrt(abs(psi[i, j])), psi[i, j]) / by_feature[j]
        real = (root - user.quantiser.centre[j]) / user.quantiser.scale[j]
        assert rows[i, j] == min(max(round(real), -127), 127)


def test_a_model_without_users_is_saved_as_the_core(core: Core, tmp_path: Path) -> None:
    model_of(core).save(tmp_path / "never fitted")
    fitted = model_of(core).fit(user_records())
    fitted.forget(everything=True)
    fitted.save(tmp_path / "all forgotten")
    for name in ("never fitted", "all forgotten"):
        again = load(tmp_path / name)
        # Never fitted it has no form yet and computes as the core does; else in integers of 8 bits.
        exact = name == "never fitted"
        torch.testing.assert_close(
            again.logits(TEST), core.logits(TEST), rtol=0, atol=0 if exact else 1e-3
        )
        assert torch.equal(again.logits(TEST), again.user.form.logits(again.activations(TEST)))


def test_a_loaded_model_cannot_forget_what_it_has_not_got(core: Core, tmp_path: Path) -> None:
    model_of(core).fit(user_records()).save(tmp_path)
    with pytest.raises(EffaceError, match="no training data at hand"):
        load(tmp_path).forget(ids="s1-3")


def test_a_model_saved_in_float64_still_predicts_as_before(core: Core, tmp_path: Path) -> None:
    """Earlier versions, and releases with noise: a product in float64, and a digest of float64's bytes."""
    model = model_of(core).fit(user_records())
    single = model.user.weights_digest
    model.user.theta = model.user.theta.astype(np.float64) * (1 + 2.0**-30)
    wide = model.user.weights_digest
    model.save(tmp_path)
    again = load(tmp_path).user
    assert again.theta.dtype == np.float64
    assert again.weights_digest == wide != single
    x = model.activations(TEST)
    rows = model.user.rows(x, core.labels(TEST))
    real = rows.features * model.user.quantiser.scale @ again.theta
    want = model.user.kept * model.user.form.logits(x) + torch.from_numpy(real).float()
    torch.testing.assert_close(again.logits(x), want, rtol=0, atol=1e-5)  # float32's rounding


def test_predictions_have_one_rounding_behind_the_rows(core: Core) -> None:
    user = model_of(core).fit(user_records()).user
    features = user.rows(core.activations(TEST), core.labels(TEST)).features
    want = rational_product(features[:4], user.theta, user.quantiser.scale)
    assert user.weights_proved
    assert user._product(features)[:4].tolist() == [[float(v) for v in row] for row in want]


def test_the_chosen_ridge_is_the_one_that_is_solved_with(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """λ / n times n again would be another number for some n."""
    seen: list[float] = []
    real = ridge._System.solve

    def watching(self: ridge._System, strength: float, *rest: Any) -> ridge.RidgeSolution:
        seen.append(strength)
        return real(self, strength, *rest)

    monkeypatch.setattr(ridge._System, "solve", watching)
    user = calibrated(core, total_ridge=0.2)
    rows = user.rows(core.activations(user_records(11)), core.labels(user_records(11)))
    user.add_rows(rows)
    assert 0.2 / 11 * 11 != 0.2
    assert seen == [0.2]
