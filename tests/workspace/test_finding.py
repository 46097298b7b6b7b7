"""A person found by a picture: the same file, re-encoded, resized, mirrored; and what is kept for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from tests.photos import write_photos
from tests.shell import light
from typer.testing import CliRunner, Result

from efface.cli import app
from efface.data.looks import UNKNOWN, both_looks, distances, look_of, looks_of
from efface.data.records import Records
from efface.errors import GuaranteeError, RecordError, RequestError
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.training import Stage
from efface.workspace import Workspace
from efface.workspace.finding import find, near_copies, request_for

SIZE = 96


def efface(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def landscape(seed: int, side: int = SIZE) -> np.ndarray:
    """Something like a photo: large shapes, smaller ones on top of them, some grain."""
    rng = np.random.default_rng(seed)
    layers = [
        np.asarray(
            Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).resize(
                (side, side), Image.Resampling.BICUBIC
            ),
            dtype=float,
        )
        for size in (3, 6, 12)
    ]
    mixed = 0.5 * layers[0] + 0.3 * layers[1] + 0.2 * layers[2] + rng.normal(0, 3, (side, side, 3))
    return mixed.clip(0, 255).astype(np.uint8)


COPIES: dict[str, Callable[[Image.Image, Path], None]] = {
    "JPEG": lambda image, path: image.save(path.with_suffix(".jpg"), quality=40),
    "smaller": lambda image, path: image.resize((50, 50)).save(path),
    "larger": lambda image, path: image.resize((200, 200)).save(path),
    "mirrored": lambda image, path: ImageOps.mirror(image).save(path),
    "mirrored JPEG": lambda image, path: ImageOps.mirror(image).save(path.with_suffix(".jpg")),
    "gray": lambda image, path: image.convert("L").save(path),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Owners with photos that differ; ``person-00`` and ``person-01`` share one under other files."""
    folder = write_photos(tmp_path_factory.mktemp("photos"), num_owners=12, each=4)
    for i, path in enumerate(sorted(folder.glob("*.png"))):
        Image.fromarray(landscape(i)).save(path)
    return folder


@pytest.fixture(scope="module")
def made(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = Records.open(photos, core_fraction=0.3)
    core = Core("cnn", classes=records.classes).fit(records.core, [Stage("all", epochs=1)])
    model = MixedLinear(core, features=60).fit(records.user, replay=records.core)
    path = tmp_path_factory.mktemp("made") / "w"
    Workspace.create(path, model)
    return path


@pytest.fixture
def workspace(made: Path, tmp_path: Path) -> Workspace:
    return Workspace.open(shutil.copytree(made, tmp_path / "w"))


@pytest.mark.parametrize("name", COPIES)
def test_a_near_copy_is_found_and_nothing_else(
    name: str, photos: Path, workspace: Workspace, tmp_path: Path
) -> None:
    record = workspace.records[5]
    copy = tmp_path / "copy.png"
    COPIES[name](Image.open(photos / record.id), copy)
    (file,) = tmp_path.glob("copy.*")
    (match,) = find(workspace, file)
    assert (match.id, match.owner, match.part) == (record.id, record.owner, "user")
    assert not match.same
    assert match.mirrored == ("mirrored" in name)


def test_the_same_file_comes_first_whatever_its_name(
    photos: Path, workspace: Workspace, tmp_path: Path
) -> None:
    record = workspace.records[0]
    file = shutil.copy(photos / record.id, tmp_path / "another name.png")
    match = find(workspace, file)[0]
    assert (match.id, match.same, match.distance) == (record.id, True, 0)


@pytest.mark.parametrize("near", [[], ["--near"]])
def test_somebody_is_found_and_forgotten_by_a_picture_without_torch(
    near: list[str], photos: Path, workspace: Workspace
) -> None:
    record = workspace.records[0]
    transform = frozenset({"scipy", "PIL.Image", "importlib.metadata"})  # of imagehash
    light("forget", workspace.path, "--image", photos / record.id, *near, needs=transform)
    assert record.id not in Workspace.open(workspace.path).records.ids


def test_core_is_looked_at_without_names(photos: Path, workspace: Workspace) -> None:
    core = Records.open(photos, core_fraction=0.3).core[0]
    match = find(workspace, photos / core.id)[0]
    assert (match.id, match.owner, match.part, match.same) == (core.id, None, "core", True)
    with pytest.raises(GuaranteeError, match="core data"):
        request_for([match], near=False)


def test_a_picture_that_is_not_there_is_not_found(workspace: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    Image.fromarray(landscape(10_000)).save(file)
    assert find(workspace, file) == []
    with pytest.raises(RequestError, match="no record is this picture"):
        request_for([], near=True)
    (tmp_path / "words.jpg").write_text("no picture")
    with pytest.raises(RecordError, match=r"words\.jpg.*not an image.*picture that can be opened"):
        find(workspace, tmp_path / "words.jpg")
    with pytest.raises(RecordError, match="no such file"):
        find(workspace, tmp_path / "missing.png")


def test_looks_are_private_and_go_with_the_record(workspace: Workspace) -> None:
    data, owner = workspace.data, workspace.records[0].owner
    assert data.looks is not None
    gone = {look for r, look in zip(data.records, data.looks, strict=True) if r.owner == owner}
    assert gone
    holding = lambda: [  # noqa: E731
        p.relative_to(workspace.path).parts[0]
        for p in workspace.path.rglob("*")
        if p.is_file() and any(look.encode() in p.read_bytes() for look in gone)
    ]
    assert holding() == ["private"]
    workspace.forget(owner=owner)
    assert holding() == []
    assert workspace.data.looks is not None
    assert len(workspace.data.looks) == len(workspace.records)


def test_looks_follow_their_records_through_forgetting_and_adding(
    photos: Path, workspace: Workspace
) -> None:
    owner = workspace.records[0].owner
    again = Records.open(photos).user.select(owner=owner)
    workspace.forget(owner=owner)
    workspace.add(again, allow_reingest=True)
    source = {record.id: record for record in Records.open(photos)}
    want = looks_of(source[name] for name in workspace.records.ids)
    assert workspace.data.looks == want


def test_forget_by_picture(photos: Path, workspace: Workspace, tmp_path: Path) -> None:
    record = workspace.records[2]
    near = tmp_path / "near.jpg"
    Image.open(photos / record.id).save(near, quality=50)
    result = efface("forget", workspace.path, "--image", near)
    assert result.exit_code == 2
    assert record.id in result.stderr
    assert "--near" in result.stderr
    assert record.id in workspace.records.ids
    both = efface("forget", workspace.path, "--image", near, "--owner", record.owner)
    assert both.exit_code == 2
    result = efface("forget", workspace.path, "--image", near, "--near", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["num_records"] == 1
    assert record.id not in workspace.records.ids


def test_forget_by_the_same_file_lists_near_copies_and_leaves_them(
    photos: Path, workspace: Workspace, tmp_path: Path
) -> None:
    record = workspace.records[2]
    folder = tmp_path / "more" / record.label
    folder.mkdir(parents=True)
    ImageOps.mirror(Image.open(photos / record.id)).save(folder / "theirs.png")
    workspace.add(Records.from_folder(tmp_path / "more"))
    result = efface("forget", workspace.path, "--image", photos / record.id)
    assert result.exit_code == 0, result.stderr
    assert "theirs.png" in result.stderr
    assert record.id not in workspace.records.ids
    assert any(name.endswith("theirs.png") for name in workspace.records.ids)


def test_a_request_by_name_tells_of_near_copies_under_other_names(
    photos: Path, workspace: Workspace, tmp_path: Path
) -> None:
    record = workspace.records[2]
    folder = tmp_path / "more" / record.label
    folder.mkdir(parents=True)
    Image.open(photos / record.id).save(folder / "theirs.jpg", quality=60)
    workspace.add(Records.from_folder(tmp_path / "more"))
    mine = workspace.records.select(owner=record.owner).ids
    (copy,) = near_copies(workspace, mine)
    assert copy.endswith("theirs.jpg")
    assert near_copies(workspace, [*mine, copy]) == []
    result = efface("forget", workspace.path, "--owner", record.owner)
    assert result.exit_code == 0, result.stderr
    assert "1 other records look like these and stay" in result.stderr
    assert copy in result.stderr


def test_find_prints_a_table(photos: Path, workspace: Workspace) -> None:
    record = workspace.records[0]
    result = efface("find", workspace.path, photos / record.id)
    assert result.exit_code == 0, result.stderr
    assert record.owner in result.stdout
    assert "the same file" in result.stdout
    values = json.loads(efface("find", workspace.path, photos / record.id, "--json").stdout)
    assert values["matches"][0]["id"] == record.id


# --- looks ----------------------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_distances_count_bits(a: int, b: int) -> None:
    found = distances(f"{a:016x}", [f"{b:016x}", UNKNOWN, f"{a:016x}"])
    assert found.tolist() == [bin(a ^ b).count("1"), 64, 0]


def test_tiny_pictures_have_no_look_and_are_near_nothing() -> None:
    assert look_of(landscape(1, 8)) == UNKNOWN
    assert distances(UNKNOWN, [look_of(landscape(1)), UNKNOWN]).tolist() == [64, 64]


def test_a_mirrored_picture_has_the_looks_the_other_way_round() -> None:
    pixels = landscape(3)
    one, other = both_looks(pixels)
    assert both_looks(np.ascontiguousarray(pixels[:, ::-1])) == (other, one)
    assert look_of(pixels[:, :, :1]) == look_of(np.repeat(pixels[:, :, :1], 3, axis=2))
