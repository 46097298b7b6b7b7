"""An image that cannot be read is named before anything is trained, and not after the core was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.written import truncated
from tests.photos import write_photos
from tests.shell import efface, values_of

from efface.data.promises import is_core_owner
from efface.pipeline.train import Training

BAD = {"cut off": truncated(1), "garbage": b"\x00garbage" * 40, "empty": b""}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", num_owners=6, num_test=6)


def a_users_photo(photos: Path) -> Path:
    """Of somebody who is not core at 0.5: nobody looks at it while the core is trained."""
    rows = [line.split(",") for line in (photos / "metadata.csv").read_text().splitlines()[1:]]
    name = next(row[0] for row in rows if row[2] != "nobody" and not is_core_owner(row[2], 0.5))
    return photos / name


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_image_of_a_user_is_named_before_the_core_is_trained(
    kind: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    for step in ("core", "fit_core", "fit_user"):
        monkeypatch.setattr(Training, step, lambda *_, step=step: begun.append(step))
    bad = a_users_photo(photos)
    bad.write_bytes(BAD[kind])
    result = efface("train", photos, "--core-fraction", 0.5, "--out", tmp_path / "model")
    assert result.exit_code == 2
    assert repr(bad.name) in result.stderr
    assert "--skip-bad" in result.stderr
    assert begun == []
    assert not (tmp_path / "model").exists()


def test_bad_images_are_set_aside_when_asked(photos: Path, tmp_path: Path) -> None:
    bad = a_users_photo(photos)
    bad.write_bytes(BAD["cut off"])
    words = ("--core-fraction", 0.5, "--features", 40, "--out", tmp_path / "model", "--skip-bad")
    result = efface("train", photos, *words, "--json")
    assert values_of(result)["skipped"] == 1
    assert f"1 files set aside, the first {bad.name!r}" in result.stderr


def test_what_is_damaged_later_is_still_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swapped between reading and training: the digest is compared when it is decoded."""
    bad, fit_core = a_users_photo(photos), Training.fit_core

    def swapped(self: Training, *given: object) -> None:
        fit_core(self, *given)  # type: ignore[arg-type]
        bad.write_bytes(BAD["cut off"])

    monkeypatch.setattr(Training, "fit_core", swapped)
    words = ("--core-fraction", 0.5, "--features", 40, "--out", tmp_path / "model")
    result = efface("train", photos, *words)
    assert result.exit_code == 2
    assert "its content changed after it was read" in result.stderr
