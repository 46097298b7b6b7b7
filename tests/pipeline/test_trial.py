"""Random requests against training without them, from images: every workspace must be the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.photos import CLASSES, write_photos
from typer.testing import CliRunner, Result

from efface.cli import app
from efface.data.records import Records
from efface.errors import EffaceError, RecordError
from efface.pipeline.config import Config, load_config
from efface.pipeline.trial import Recipe, differences, run, summary
from efface.workspace import Workspace

QUICK = {"core.stages": [{"train": "all", "epochs": 1}], "user.features": 60}
PEOPLE = "person-"


def efface(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def settings(spec: Path | str, **changes: object) -> Config:
    return load_config(None, {"data.spec": str(spec), **QUICK, **changes})


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), num_owners=16, each=5)


def test_random_requests_on_digits_agree_byte_for_byte() -> None:
    made = run(settings("digits"), 8, seed=1)
    assert [trial.differences for trial in made] == [()] * 8
    assert {trial.kind for trial in made} >= {"owner", "ids", "add"}


def test_random_requests_on_photos_with_owners_agree_byte_for_byte(photos: Path) -> None:
    config = settings(photos, **{"data.core_fraction": 0.4})
    made = run(config, 40, seed=2)
    assert summary(made)["agree"] == 40
    assert {trial.kind for trial in made} == {"ids", "owner", "cohort", "label", "add"}


def test_a_trial_sees_what_a_broken_request_leaves(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a record's name left in the list of records, the comparison would find it."""
    from efface.parts.training_set import TrainingSet

    honest = TrainingSet.without

    def sloppy(self: TrainingSet, forget: object) -> TrainingSet:
        done = honest(self, forget)  # type: ignore[arg-type]
        first = replace(done.records[0], cohort="left over")
        return replace(done, records=Records([first, *done.records[1:]], done.records.classes))

    monkeypatch.setattr(TrainingSet, "without", sloppy)
    made = run(settings(photos, **{"data.core_fraction": 0.4}), 4, seed=0, reuse_core=True)
    forgot = [trial for trial in made if trial.kind != "add"]
    assert forgot
    assert not any(trial.agrees for trial in forgot)
    assert "private/N/records.json" in forgot[0].differences


def test_the_tangent_part_is_not_for_this(photos: Path) -> None:
    with pytest.raises(EffaceError, match="byte by byte"):
        Recipe(settings(photos, **{"user.kind": "tangent"}))


def test_the_command_prints_how_many_agree(photos: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('[user]\nfeatures = 60\n[[core.stages]]\ntrain = "all"\nepochs = 1\n')
    words = ("--core-fraction", 0.4, "--requests", 3, "--reuse-core", "--config", config)
    result = efface("trial", photos, *words, "--out", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    assert "3 of 3 agree byte for byte" in result.stdout
    assert json.loads((tmp_path / "out.json").read_text())["agree"] == 3


# --- the class list -------------------------------------------------------------------------------


def with_a_rare_class(folder: Path) -> Path:
    """One person alone, who is not drawn into core, has a class of his own."""
    drawn = Records.open(write_photos(folder), core_fraction=0.4)
    loner = drawn.user[0].owner
    lines = (folder / "metadata.csv").read_text().splitlines()
    for i, line in enumerate(lines):
        name, _, *rest = line.split(",")
        if f",{loner}," in line:
            lines[i] = ",".join((name, "rare", *rest))
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_class_that_only_user_records_have_must_be_named(tmp_path: Path) -> None:
    folder = with_a_rare_class(tmp_path / "photos")
    words = ("train", folder, "--core-fraction", 0.4, "--features", 60, "--out", tmp_path / "m")
    result = efface(*words)
    assert result.exit_code == 2
    assert "'rare' has no core record" in result.stderr
    assert "--classes" in result.stderr
    assert not (tmp_path / "m").exists()
    names = tmp_path / "classes.txt"
    names.write_text("\n".join((*CLASSES, "rare")))
    assert efface(*words, "--classes", names).exit_code == 0
    assert Workspace.open(tmp_path / "m").settings["classes"] == [*CLASSES, "rare"]


def test_forgetting_the_only_person_of_a_class_is_never_having_had_them(tmp_path: Path) -> None:
    folder = with_a_rare_class(tmp_path / "photos")
    listed = {"data.core_fraction": 0.4, "data.classes": [*CLASSES, "rare"]}
    config = settings(folder, **listed)
    recipe = Recipe(config)
    everybody = config.data.model_copy(update={"core_fraction": None}).build()
    loner = next(r.owner for r in everybody if r.label == "rare")
    workspace = recipe.train(everybody, tmp_path / "w")
    workspace.forget(owner=loner)
    without = everybody.where(lambda record: record.owner != loner)
    never = recipe.train(without, tmp_path / "never")
    assert list(differences(workspace.path, never.path)) == []
    (never.path / "core" / "1" / "config.toml").write_text("changed")
    assert list(differences(workspace.path, never.path)) == ["core/K/config.toml"]


def test_classes_of_core_data_do_not_move_when_people_come_or_go(photos: Path) -> None:
    recipe = Recipe(settings(photos, **{"data.core_fraction": 0.4}))
    everybody = Records.open(photos)
    assert not everybody.listed
    whole = recipe.split(everybody)
    for owner in sorted(set(whole.user.owners)):
        fewer = recipe.split(everybody.where(lambda record, gone=owner: record.owner != gone))
        assert fewer.classes == whole.classes
        assert fewer.core == whole.core


def test_test_records_of_a_class_that_core_does_not_have_are_set_aside(photos: Path) -> None:
    from efface.data.class_list import settled

    records = Records.open(photos, core_fraction=0.4)
    odd = [replace(r, label="odd") if i < 2 else r for i, r in enumerate(records.test)]
    joined = Records([*records.core, *records.user, *odd], listed=False)
    settled_ = settled(joined)
    assert "odd" not in settled_.classes
    assert len(settled_.test) == len(records.test) - 2
    assert sum("no core record" in s.reason for s in settled_.skipped) == 2
    mine = [replace(r, label="odd") if i < 1 else r for i, r in enumerate(records.user)]
    with pytest.raises(RecordError, match="1 such classes"):
        settled(Records([*records.core, *mine], listed=False))
