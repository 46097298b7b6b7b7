"""``efface init`` says what is in the data, and writes a config that trains."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.photos import write_photos
from tests.places import ROOT
from typer.testing import CliRunner, Result

from efface.cli import app
from efface.data.looks import near_pairs
from efface.data.names import slips
from efface.data.promises import is_core_owner
from efface.pipeline.config import load_config
from efface.pipeline.core_people import PAGE
from efface.pipeline.survey import survey

init = import_module("efface.commands.init")


def efface(*words: object, typed: str | None = None) -> Result:
    given = [str(word) for word in words]
    return CliRunner().invoke(app, given, env={"COLUMNS": "200"}, input=typed)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixteen people, of whom some are spelt in two ways; a damaged file, a copy and a near copy."""
    folder = write_photos(tmp_path / "photos", num_test=6)
    monkeypatch.chdir(tmp_path)
    listing = folder / "metadata.csv"
    text = listing.read_text()
    for old, new in (("person-02", "Joanna"), ("person-03", "Johanna"), ("person-04", "unknown")):
        text = text.replace(old, new)
    listing.write_text(text.replace("Joanna", "joanna", 1))
    (folder / "0002.png").write_bytes(b"broken")
    (folder / "0090.png").write_bytes((folder / "0001.png").read_bytes())
    with Image.open(folder / "0007.png") as image:  # somebody else's, saved again a little brighter
        brighter = np.asarray(image).astype(int) + 3
        Image.fromarray(brighter.clip(0, 255).astype(np.uint8)).save(folder / "0080.png")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_a_survey_finds_what_is_odd(photos: Path) -> None:
    found = survey(str(photos))
    assert found.splits == {"core": 0, "user": 95, "test": 6}
    assert found.people == 17
    assert found.ownerless == 0
    assert [one.id for one in found.damaged] == ["0002.png"]
    assert [(p.first, p.second) for p in found.equal] == [("0001.png", "0090.png")]
    assert ("0007.png", "0080.png") in {(p.first, p.second) for p in found.near}
    text = "\n".join(found.suspicious)
    assert "'Joanna' and 'joanna' look alike" in text
    assert "'Joanna' and 'Johanna' differ by one letter" in text
    assert "'unknown' is nobody in particular" in text
    assert not any("look alike" in note for note in found.notes)  # said once


def test_the_config_answers_the_questions_and_names_nobody(photos: Path) -> None:
    result = efface("init", photos, "--backbone", "hf:models/resnet-50")
    assert result.exit_code == 0, result.stderr
    assert "17 people" in result.stdout
    text = Path("run.toml").read_text()
    config = load_config("run.toml")
    assert config.data.core_fraction == 0
    assert config.data.classes == ("checks", "disc", "stripes")
    assert config.data.skip_bad
    assert config.core.backbone == "hf:models/resnet-50"
    assert not any(name.lower() in text.lower() for name in ("joanna", "person-"))
    order = [text.index(words) for words in ("core_fraction = 0,", "core_data =", "with eyes open")]
    assert order == sorted(order)


def test_a_class_of_one_person_is_pointed_out(photos: Path) -> None:
    listing = photos / "metadata.csv"
    rows = listing.read_text().splitlines()
    rows[1] = "0000.png,annas-house,person-00,cohort-0,train"
    listing.write_text("\n".join(rows) + "\n")
    result = efface("init", photos)
    assert "1 classes have images of one person only" in result.stderr


def test_core_from_people_is_said_in_numbers(photos: Path) -> None:
    result = efface("init", photos, "--core-fraction", 0.5, "--json")
    values = json.loads(result.stdout)
    owners = values["found"]["owners"]
    drawn = sum(is_core_owner(owner, 0.5) for owner in owners)
    assert any(f"{drawn} of 17 people core" in text for text in values["warnings"])
    assert f"core_fraction = 0.5  # {drawn} of 17 people" in Path("run.toml").read_text()


def test_training_says_how_many_people_can_never_be_forgotten(photos: Path) -> None:
    with (photos / "metadata.csv").open() as file:
        rows = list(csv.DictReader(file))
    rows = [row for row in rows if row["split"] == "train" and row["file_name"] != "0002.png"]
    owners = {row["owner"] for row in rows}
    images = sum(is_core_owner(row["owner"], 0.5) for row in rows)
    people = sum(is_core_owner(owner, 0.5) for owner in owners)
    assert 0 < people < len(owners)
    text = f"core_fraction = 0.5 makes {people} of {len(owners)} people core, {images} images: "
    words = ("train", photos, "--core-fraction", 0.5, "--skip-bad", "--out", "model")
    result = efface(*words, "--features", 40, "--json")
    assert result.exit_code == 0, result.stderr
    assert text in result.stderr
    assert "never forgotten, and a request of theirs is refused" in result.stderr
    assert "docs/officer.md" in result.stderr
    assert json.loads(result.stdout)["core_people"] == people
    looked = json.loads(efface(*words, "--dry-run", "--json").stdout)
    assert looked["core_people"] == people
    assert looked["notes"][0].startswith(text)


def test_the_page_on_core_that_is_named_has_the_answers() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert "## What if someone in core asks?" in page
    assert "## How do I choose core?" in page
    said = " ".join(efface("train", "--help").stdout.replace("│", " ").split())
    assert "core whole: they are never forgotten." in said


def test_training_without_a_share_says_nothing_of_people(photos: Path) -> None:
    result = efface("train", photos, "--core-fraction", 0, "--classes", "a", "--dry-run")
    assert "people core" not in result.stdout + result.stderr


# The questions on a terminal.


@pytest.fixture
def answered(photos: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``efface init`` as on a terminal, with these lines typed."""
    monkeypatch.setattr(init, "_somebody_is_there", lambda: True)

    def run(*lines: str, words: tuple[object, ...] = ()) -> Result:
        return efface("init", photos, *words, typed="".join(f"{line}\n" for line in lines))

    return run


def test_enter_chooses_the_public_network_and_nobody_as_core(answered: Any) -> None:
    result = answered("", "")
    assert result.exit_code == 0, result.stderr
    assert "Which data may be core? It is never forgotten." in result.stdout
    config = load_config("run.toml")
    assert config.core.backbone == "hf:microsoft/resnet-50"
    assert (config.data.core_fraction, config.data.core_data) == (0, None)


def test_a_public_set_is_asked_for_by_name(answered: Any) -> None:
    assert answered("hf:models/mine", "2", "public").exit_code == 0
    config = load_config("run.toml")
    assert config.core.backbone == "hf:models/mine"
    assert (config.data.core_fraction, config.data.core_data) == (None, "public")


@pytest.mark.parametrize(("sure", "fraction"), [("y", 0.5), ("n", 0.0), ("", 0.0)])
def test_people_become_core_only_after_a_yes_to_their_number(
    answered: Any, sure: str, fraction: float
) -> None:
    result = answered("", "3", "0.5", sure)
    assert result.exit_code == 0, result.stderr
    people = survey("photos").core_people(0.5)
    assert f"{people} of 17 people can then never be forgotten. Go on?" in result.stdout
    assert load_config("run.toml").data.core_fraction == fraction


def test_what_options_answer_is_not_asked(answered: Any, photos: Path) -> None:
    given = ("--backbone", "cnn", "--core-fraction", 0.3)
    result = answered(words=given)
    assert result.exit_code == 0, result.stderr
    assert "Which data" not in result.stdout
    assert "The network (" not in result.stdout
    result = answered("cnn", words=("--core-data", "public", "--overwrite"))
    assert load_config("run.toml").data.core_data == "public"
    assert "Which data" not in result.stdout


def test_data_with_core_records_of_its_own_is_not_asked_about_core(
    answered: Any, photos: Path
) -> None:
    listing = photos / "metadata.csv"
    listing.write_text(listing.read_text().replace("cohort-1,train", "cohort-1,core"))
    result = answered("")
    assert result.exit_code == 0, result.stderr
    assert "Which data" not in result.stdout


def test_nobody_is_asked_who_said_so(answered: Any) -> None:
    result = answered(words=("--no-input",))
    assert result.exit_code == 0, result.stderr
    assert "Which data" not in result.stdout


def test_a_config_that_is_there_stays(photos: Path) -> None:
    Path("run.toml").write_text("mine")
    result = efface("init", photos)
    assert result.exit_code == 2
    assert "already there" in result.stderr
    assert Path("run.toml").read_text() == "mine"
    assert efface("init", photos, "--overwrite").exit_code == 0


def test_what_it_writes_can_be_trained(photos: Path, tmp_path: Path) -> None:
    """With a public set as core, and images that are gray and coloured."""
    write_photos(tmp_path / "public", num_owners=6, num_test=0, seed=5)
    with Image.open(photos / "0005.png") as image:
        image.convert("L").save(photos / "0005.png")
    result = efface("init", photos, "--core-data", "public", "--backbone", "cnn", "--out", "model")
    assert result.exit_code == 0, result.stderr
    assert load_config("run.toml").data.channels == "rgb"
    trained = efface("train", "--config", "run.toml", "--features", 64, "--json")
    assert trained.exit_code == 0, trained.stderr
    values = json.loads(trained.stdout)
    assert values["records"] == {"core": 36, "user": 95, "test": 6}
    assert efface("forget", "model", "--owner", "person-07").exit_code == 0
    assert efface("verify", "model", "--retrain").exit_code == 0


def test_bad_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert efface("init", "nowhere").exit_code == 2
    (tmp_path / "list.csv").write_text("file_name,label,owners\na.png,x,ann\n")
    result = efface("init", "list.csv")
    assert result.exit_code == 2
    assert "looks like 'owner'" in result.stderr
    assert not Path("run.toml").exists()


def test_near_pairs_are_those_of_few_bits() -> None:
    looks = ["0000000000000000", "0000000000000007", "", "ffffffffffffffff", "000000000000000f"]
    assert near_pairs(looks, 3) == [(0, 1), (1, 4)]
    assert near_pairs(looks, 4) == [(0, 1), (0, 4), (1, 4)]
    assert near_pairs([], 3) == near_pairs([""], 3) == []


def test_slips_of_names() -> None:
    assert slips(["Joanna", "Johanna", "Bernd", "Brend", "u17", "u18", "Ann", "Anne"]) == [
        ["Bernd", "Brend"],
        ["Joanna", "Johanna"],
    ]
