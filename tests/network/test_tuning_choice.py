"""A fine-tuned core: chosen on held-out core images, saved with its weights, in integers too."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import log_loss
from tests import cases
from tests.devices import every_device, watched

from efface.arithmetic.choice import Arithmetic, choose_form
from efface.arithmetic.integer.form import IntegerForm
from efface.data.preprocess import Preprocess
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError
from efface.network import tuning_choice
from efface.network.backbone import Backbone, load_backbone
from efface.network.core import Core
from efface.network.finetuning import FineTuning, fine_tune
from efface.network.training import Stage
from efface.network.tuning_choice import (
    RIDGES,
    SHARPNESSES,
    candidates_of,
    choose_tuning,
    held_out,
    left_out_scores,
    tuned_backbone,
)

GRAY = Preprocess(0, 0, 1, (0.5,), (0.5,))
GOOD = FineTuning(epochs=8, batch_size=8, rate=0.02, head_rate=0.1, scale=(0.6, 1.0), flip=False)
RUINOUS = replace(GOOD, epochs=1, rate=3.0, head_rate=3.0)
DIVERGING = replace(GOOD, rate=1e12, head_rate=1e12)


def core_records(n: int = 60, **options: object) -> Records:
    return cases.tiny_records(n, split=Split.CORE, **options)


def faint_records(n: int = 120) -> Records:
    """Images that the features of random weights do not tell apart at once."""
    rng, labels = np.random.default_rng(0), [i % 3 for i in range(n)]
    images = rng.integers(0, 90, (n, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, label * 3 : label * 3 + 3] += 60
    return cases.records_of(images, labels, split=Split.CORE)


def backbone() -> Backbone:
    torch.manual_seed(0)
    return load_backbone(cases.named_sequential(), preprocess=GRAY)


# --- the choice -----------------------------------------------------------------------------------


def test_a_network_that_gains_is_fine_tuned() -> None:
    records = faint_records()
    tuned, choice = tuned_backbone(backbone(), records, [RUINOUS, GOOD, DIVERGING])
    assert choice.best.settings == GOOD
    assert choice.best.loss < 0.7 * choice.trials[0].loss  # of the network as it came
    assert choice.trials[-1].loss == math.inf
    expected = fine_tune(backbone(), records, GOOD).backbone  # on all core records
    assert torch.equal(tuned.steps[0].module[0].weight, expected.steps[0].module[0].weight)


def test_a_network_that_only_gets_worse_stays_as_it_came() -> None:
    tuned, choice = tuned_backbone(start := backbone(), faint_records(), [RUINOUS, DIVERGING])
    assert choice.best.settings is None
    assert tuned is start
    assert choice.trials[1].loss < math.inf


def test_core_records_only() -> None:
    mixed = core_records(9) + cases.tiny_records(9, seed=1)
    with pytest.raises(RecordError, match="the core cannot forget"):
        choose_tuning(backbone(), mixed, [GOOD])
    with pytest.raises(EffaceError, match="too few"):
        choose_tuning(backbone(), core_records(1), [GOOD])


def test_owners_are_held_out_whole_whoever_else_is_there() -> None:
    records = core_records(300)
    owned = Records(
        [replace(r, owner=f"person {i % 100}") for i, r in enumerate(records)], records.classes
    )
    mask = held_out(owned)
    gone = {owner for owner, out in zip(owned.owners, mask, strict=True) if out}
    kept = {owner for owner, out in zip(owned.owners, mask, strict=True) if not out}
    assert not gone & kept
    assert 0.08 < mask.mean() < 0.32  # a fifth of 100 people, ± 3 standard deviations
    np.testing.assert_array_equal(held_out(owned[50:]), mask[50:])


def test_held_out_owners_are_not_those_most_surely_core() -> None:
    """The draw of core takes the owners of low hashes; the same hash again would take nearly all of them."""
    everyone = cases.tiny_records(600).with_core_fraction(0.2)
    assert held_out(everyone.core).mean() == pytest.approx(0.2, abs=0.12)


def test_scores_are_those_of_a_ridge_fitted_anew_without_each_image() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(20, 30)), rng.integers(0, 3, 20)
    scored = np.arange(20) >= 15
    centred = rows - rows.mean(0)
    power = (centred**2).sum(1).mean()
    inputs, targets = np.c_[centred, np.full(20, np.sqrt(power))], np.eye(3)[labels]
    found = []
    for ridge in RIDGES:
        guesses = []
        for i in np.flatnonzero(scored):
            x, y = np.delete(inputs, i, 0), np.delete(targets, i, 0)
            inner = x.T @ x + ridge * power * np.eye(31)
            guesses.append(inputs[i] @ np.linalg.solve(inner, x.T @ y))
        guess = np.array(guesses)
        losses = [log_loss(labels[scored], softmax(t * guess, axis=1)) for t in SHARPNESSES]
        found.append((min(losses), (guess.argmax(1) == labels[scored]).mean()))
    scores = left_out_scores(*map(torch.from_numpy, (rows, labels, scored)), num_classes=3)
    assert scores == pytest.approx(min(found), rel=1e-9)  # float64, two ways to solve


def test_a_choice_goes_on_with_the_trials_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = core_records()
    first = choose_tuning(backbone(), records, [RUINOUS, DIVERGING], folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "choice.json"
    ]  # no weights of trials
    tried: list[FineTuning] = []  # the network as it came is not looked at again either

    def spy(*arguments: object, **options: object) -> object:
        tried.append(arguments[2])  # type: ignore[arg-type]
        return fine_tune(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning_choice, "fine_tune", spy)
    second = choose_tuning(backbone(), records, [RUINOUS, DIVERGING, GOOD], folder=tmp_path)
    assert tried == [GOOD]
    assert second.trials[:3] == first.trials
    choose_tuning(backbone(), records[1:], [RUINOUS], folder=tmp_path)
    assert tried == [GOOD, RUINOUS]  # other records: another trial


@pytest.mark.parametrize("loss", ["low", -1.0, True, [], {}])
def test_a_choice_that_was_changed_is_refused(tmp_path: Path, loss: object) -> None:
    choose_tuning(backbone(), core_records(), [], folder=tmp_path)
    values = json.loads((tmp_path / "choice.json").read_text())
    next(iter(values["trials"].values()))["loss"] = loss
    (tmp_path / "choice.json").write_text(json.dumps(values))
    with pytest.raises(FormatError, match="is not as it was saved"):
        choose_tuning(backbone(), core_records(), [], folder=tmp_path)


def test_candidates_are_every_rate_with_every_length() -> None:
    found = candidates_of(FineTuning(rate=0.01, head_rate=0.1), (0.001, 0.01), (5, 10))
    assert [(s.rate, s.epochs) for s in found] == [(0.001, 5), (0.001, 10), (0.01, 5), (0.01, 10)]
    assert [s.head_rate for s in found] == pytest.approx([0.01, 0.01, 0.1, 0.1])


# --- the core -------------------------------------------------------------------------------------


@every_device
def test_trials_are_made_on_the_device_and_say_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, records = [replace(GOOD, epochs=2)], core_records(40)
    here = choose_tuning(backbone(), records, short)
    used = watched(monkeypatch)
    there = choose_tuning(backbone(), records, short, device=device)
    assert used == {device}
    for one, other in zip(here.trials, there.trials, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-2)  # floats in another order


def test_a_core_of_a_fine_tuned_network_needs_no_other_files(tmp_path: Path) -> None:
    """Its weights travel with it, prefix included; BatchNorm's old statistics do not."""
    cases.tiny("resnet-basic").save_pretrained(tmp_path / "net")
    records = core_records(24, side=16, channels=3)
    start = load_backbone(f"hf:{tmp_path / 'net'}", preprocess=Preprocess(16, 16))
    tuned = fine_tune(start, records, replace(GOOD, epochs=2)).backbone
    core = Core(tuned, classes=records.classes).fit(records, [Stage("head", epochs=3)])
    assert core.prefix_digest != Core(start, classes=records.classes).prefix_digest
    assert core.statistics == {}
    core.save(tmp_path / "core")
    shutil.rmtree(tmp_path / "net")
    loaded = Core.load(tmp_path / "core")
    assert loaded.digest == core.digest
    torch.testing.assert_close(loaded.logits(records), core.logits(records), rtol=0, atol=0)


def test_a_fine_tuned_core_has_an_integer_form() -> None:
    torch.manual_seed(0)
    records = core_records(24, side=16, channels=3)
    net = cases.tiny("resnet-bottleneck")
    start = load_backbone(net, preprocess=Preprocess(16, 16))
    tuned = fine_tune(start, records, GOOD).backbone
    core = Core(tuned, classes=records.classes).fit(records, [Stage("head", epochs=30)])
    form = choose_form(core, Arithmetic.INTEGER, records).form
    assert isinstance(form, IntegerForm)
    exact, plain = form.logits(form.boundary(records)), core.logits(records)
    assert float((exact - plain).norm() / plain.norm()) < 0.1  # 8 bits through seven layers
