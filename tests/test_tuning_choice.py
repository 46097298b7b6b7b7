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
from sklearn.linear_model import Ridge
from tests import cases

from efface import tuning_choice
from efface.arithmetic import Arithmetic, choose_form
from efface.backbone import Backbone, load_backbone
from efface.core import Core
from efface.errors import EffaceError, FormatError, RecordError
from efface.finetuning import FineTuning, fine_tune
from efface.integer.form import IntegerForm
from efface.preprocess import Preprocess
from efface.records import Records, Split
from efface.training import Stage
from efface.tuning_choice import (
    RIDGES,
    candidates_of,
    choose_tuning,
    held_out,
    ridge_scores,
    tuned_backbone,
)

GRAY = Preprocess(0, 0, 1, (0.5,), (0.5,))
GOOD = FineTuning(epochs=8, batch_size=8, rate=0.02, scale=(0.6, 1.0), flip=False)
RUINOUS = replace(GOOD, epochs=1, rate=3.0, head_rate=3.0)
DIVERGING = replace(GOOD, rate=1e12, head_rate=1e12)


def core_records(n: int = 60, **options: object) -> Records:
    return cases.tiny_records(n, split=Split.CORE, **options)


def backbone() -> Backbone:
    torch.manual_seed(0)
    return load_backbone(cases.named_sequential(), preprocess=GRAY)


# --- the choice -----------------------------------------------------------------------------------


def test_a_network_that_gains_is_fine_tuned() -> None:
    tuned, choice = tuned_backbone(backbone(), core_records(), [RUINOUS, GOOD, DIVERGING])
    assert choice.best.settings == GOOD
    assert choice.best.error < 0.7 * choice.trials[0].error  # of the network as it came
    assert choice.trials[-1].error == math.inf
    expected = fine_tune(backbone(), core_records(), GOOD).backbone  # on all core records
    assert torch.equal(tuned.steps[0].module[0].weight, expected.steps[0].module[0].weight)


def test_a_network_that_only_gets_worse_stays_as_it_came() -> None:
    start = fine_tune(backbone(), core_records(seed=5), GOOD).backbone
    tuned, choice = tuned_backbone(start, core_records(), [RUINOUS, DIVERGING])
    assert choice.best.settings is None
    assert tuned is start


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


def test_ridge_scores_are_those_of_a_plain_ridge() -> None:
    rng = np.random.default_rng(0)
    train, new = rng.normal(size=(20, 30)), rng.normal(size=(9, 30))
    labels, new_labels = rng.integers(0, 3, 20), rng.integers(0, 3, 9)
    targets, wanted = np.eye(3)[labels], np.eye(3)[new_labels]
    centred = train - train.mean(0)
    found = []
    for ridge in RIDGES:
        model = Ridge(alpha=ridge * (centred**2).sum(1).mean()).fit(train, targets)
        guess = model.predict(new)
        error = ((guess - wanted) ** 2).sum() / ((targets.mean(0) - wanted) ** 2).sum()
        found.append((error, (guess.argmax(1) == new_labels).mean()))
    scores = ridge_scores(
        *(torch.from_numpy(a) for a in (train, labels, new, new_labels)), num_classes=3
    )
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


@pytest.mark.parametrize("error", ["low", -1.0, True, [], {}])
def test_a_choice_that_was_changed_is_refused(tmp_path: Path, error: object) -> None:
    choose_tuning(backbone(), core_records(), [], folder=tmp_path)
    values = json.loads((tmp_path / "choice.json").read_text())
    next(iter(values["trials"].values()))["error"] = error
    (tmp_path / "choice.json").write_text(json.dumps(values))
    with pytest.raises(FormatError, match="is not as it was saved"):
        choose_tuning(backbone(), core_records(), [], folder=tmp_path)


def test_candidates_are_every_rate_with_every_length() -> None:
    found = candidates_of(FineTuning(rate=0.01, head_rate=0.1), (0.001, 0.01), (5, 10))
    assert [(s.rate, s.epochs) for s in found] == [(0.001, 5), (0.001, 10), (0.01, 5), (0.01, 10)]
    assert [s.head_rate for s in found] == pytest.approx([0.01, 0.01, 0.1, 0.1])


# --- the core -------------------------------------------------------------------------------------


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
