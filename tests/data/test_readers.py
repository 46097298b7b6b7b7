"""Folders, the embedded digits, and which reader it is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.data.written import pixels, png, truncated, write

from efface.data.images import Channels
from efface.data.record import Skipped
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError


def test_folder_of_splits(tmp_path: Path) -> None:
    files = {
        "train/cat/1.png": png(1),
        "train/dog/deep/2.PNG": png(2),
        "core/cat/3.png": png(3),
        "test/cat/4.png": png(4),
        "val/dog/5.png": png(5),
    }
    records = Records.open(write(tmp_path, files))
    assert records == Records.from_folder(str(tmp_path))
    assert records.classes == ("cat", "dog")
    assert records.core.ids == ("core/cat/3.png",)
    assert records.user.ids == ("train/cat/1.png", "train/dog/deep/2.PNG")
    assert records.test.ids == ("test/cat/4.png", "val/dog/5.png")
    assert records.owners == records.ids
    assert records[0].cohort == "default"
    assert records.skipped == records.notes == ()
    np.testing.assert_array_equal(records.user[1].image(), pixels(2))


def test_folder_of_classes_is_user_data(tmp_path: Path) -> None:
    records = Records.open(write(tmp_path, {"cat/1.png": png(1), "dog/2.png": png(2)}))
    assert records.user.ids == ("cat/1.png", "dog/2.png")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    records = Records.open(write(tmp_path, {"train/1.png": png(1), "car/2.png": png(2)}))
    assert records.classes == ("car", "train")


def test_splits_without_classes_are_no_classes(tmp_path: Path) -> None:
    write(tmp_path, {"train/1.png": png(1), "test/2.png": png(2)})
    with pytest.raises(FormatError, match="no class folders"):
        Records.from_folder(tmp_path)


def test_empty_folder_and_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no class folders"):
        Records.open(tmp_path)
    with pytest.raises(FormatError, match="not a folder"):
        Records.from_folder(tmp_path / "nowhere")


def test_hidden_files_are_ignored_others_are_listed(tmp_path: Path) -> None:
    files = {
        ".DS_Store": b"",
        ".cache/x.png": b"",
        "README.txt": b"",
        "spare/9.png": png(9),
        "train/cat/1.png": png(1),
        "train/cat/._1.png": b"",
        "train/cat/Thumbs.db": b"",
        "train/cat/notes.txt": b"",
        "train/loose.png": png(2),
    }
    records = Records.from_folder(write(tmp_path, files))
    assert records.ids == ("train/cat/1.png",)
    assert records.skipped == (
        Skipped("README.txt", "not a split folder with class folders"),
        Skipped("spare", "not a split folder with class folders"),
        Skipped("train/loose.png", "outside any class folder"),
        Skipped("train/cat/notes.txt", "not an image file"),
    )
    assert records[:0].skipped == records.skipped


def test_linked_folders_are_listed_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"cat/1.png": png(1)})
    os.symlink(tmp_path / "cat", tmp_path / "cat/again")
    records = Records.from_folder(tmp_path)
    assert records.ids == ("cat/1.png",)
    assert records.skipped == (Skipped("cat/again", "not an image file"),)


def test_empty_class_folder_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"train/cat/1.png": png(1), "train/dog/readme.md": b""})
    with pytest.raises(RecordError, match="'train/dog': this class folder has no images"):
        Records.from_folder(tmp_path)


def test_class_without_training_records_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"train/cat/1.png": png(1), "test/dog/2.png": png(2)})
    with pytest.raises(RecordError, match="'dog': this class has no core or user record"):
        Records.from_folder(tmp_path)
    write(tmp_path, {"train/dog/3.png": png(3)})
    named = Records.from_folder(tmp_path, classes=["cat", "dog", "emu"])  # the list is the caller's
    assert named.notes == ("class 'emu' has no core or user record",)


def test_pure_test_data_needs_no_training_records(tmp_path: Path) -> None:
    records = Records.from_folder(
        write(tmp_path, {"test/dog/2.png": png(2)}), classes=["cat", "dog"]
    )
    assert records.labels.tolist() == [1]


def test_given_classes_order_and_limit(tmp_path: Path) -> None:
    write(tmp_path, {"cat/1.png": png(1), "dog/2.png": png(2)})
    assert Records.from_folder(tmp_path, classes=["dog", "cat"]).labels.tolist() == [1, 0]
    with pytest.raises(RecordError, match=r"'dog/2.png': label 'dog' is not one of the classes"):
        Records.from_folder(tmp_path, classes=["cat"])


@pytest.mark.parametrize("data", [b"", b"no image", png(1)[:20]])
def test_unreadable_image_is_found_at_once(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, {"cat/1.png": png(1), "cat/2.png": data})
    with pytest.raises(RecordError, match=r"'cat/2.png'.*Fix: .*skip_bad"):
        Records.from_folder(tmp_path)
    records = Records.from_folder(tmp_path, skip_bad=True)
    assert records.ids == ("cat/1.png",)
    assert [bad.id for bad in records.skipped] == ["cat/2.png"]


def test_truncated_image_is_found_at_once(tmp_path: Path) -> None:
    write(tmp_path, {"cat/1.png": png(1), "cat/2.jpg": truncated(2)})
    with pytest.raises(RecordError, match=r"'cat/2.jpg'.*truncated.*Fix: .*--skip-bad"):
        Records.from_folder(tmp_path)
    records = Records.from_folder(tmp_path, skip_bad=True)
    (bad,) = records.skipped
    assert bad.id == "cat/2.jpg"
    assert bad.reason.startswith("the image cannot be read (image file is truncated")


def test_all_images_that_cannot_be_read_are_named_together(tmp_path: Path) -> None:
    bad = {f"cat/{i}.jpg": truncated(i) for i in range(2, 9)}
    write(tmp_path, {"cat/1.png": png(1), "cat/0.png": b"", **bad})
    with pytest.raises(RecordError) as problem:
        Records.from_folder(tmp_path)
    assert problem.value.record == "cat/0.png"
    assert "7 more cannot be read: 'cat/2.jpg', 'cat/3.jpg'" in problem.value.message
    assert "and 2 more" in problem.value.message
    assert "--skip-bad" in problem.value.fix


def test_what_is_damaged_in_its_middle_is_found_at_decoding(tmp_path: Path) -> None:
    data = png(2)
    middle = data.index(b"IDAT") + 8
    write(
        tmp_path, {"cat/1.png": png(1), "cat/2.png": data[:middle] + b"\0" * 9 + data[middle + 9 :]}
    )
    records = Records.from_folder(tmp_path)
    with pytest.raises(RecordError, match=r"'cat/2.png'.*cannot be read"):
        records[1].image()


def test_skipping_never_empties_a_class(tmp_path: Path) -> None:
    write(tmp_path, {"cat/1.png": png(1), "dog/2.png": b""})
    with pytest.raises(RecordError, match="'dog': this class has no core or user record"):
        Records.from_folder(tmp_path, skip_bad=True)
    (tmp_path / "cat/1.png").write_bytes(b"")
    with pytest.raises(FormatError, match="no usable image among 2"):
        Records.from_folder(tmp_path, skip_bad=True)


def test_mixed_channels_name_the_first_odd_record(tmp_path: Path) -> None:
    write(
        tmp_path, {"a/1.png": png(1, 1), "a/2.png": png(2), "a/3.png": png(3), "a/4.png": png(4, 1)}
    )
    write(tmp_path, {"a/5.png": png(5)})
    with pytest.raises(RecordError, match=r"'a/1.png': 1 channel.*2 such of 5.*channels=\"rgb\""):
        Records.from_folder(tmp_path)
    rgb = Records.from_folder(tmp_path, channels="rgb")
    assert {record.image().shape for record in rgb} == {(6, 6, 3)}
    gray = Records.from_folder(tmp_path, channels=Channels.GRAY)
    assert {record.image().shape for record in gray} == {(6, 6, 1)}
    assert rgb.digests == gray.digests
    with pytest.raises(EffaceError, match="channels 'cmyk' are unknown"):
        Records.from_folder(tmp_path, channels="cmyk")


def test_core_and_user_copy_is_refused_test_copy_noted(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/1.png": png(1), "test/a/1.png": png(1)})
    (note,) = Records.from_folder(tmp_path).notes
    assert "training and test" in note
    write(tmp_path, {"core/a/copy.png": png(1)})
    with pytest.raises(RecordError, match=r"'train/a/1.png'.*core data, as 'core/a/copy.png'"):
        Records.from_folder(tmp_path)


def test_core_fraction_keeps_copies_on_one_side(tmp_path: Path) -> None:
    files = {f"a/{i}.png": png(i // 2) for i in range(12)}
    for seed in range(5):
        records = Records.from_folder(write(tmp_path, files), core_fraction=0.5, seed=seed)
        assert not set(records.core.digests) & set(records.user.digests)
        assert len(records) + len(records.skipped) == 12


def test_digits() -> None:
    records = Records.open("digits")
    assert repr(records) == "Records(1797 in 10 classes: core 539, user 899, test 359)"
    assert records.classes == tuple("0123456789")
    assert records.notes == records.skipped == ()
    people = set(records.user.owners)
    assert len(people) == 60
    assert not people & {*records.core.owners, *records.test.owners}
    sizes = [records.user.owners.count(person) for person in people]
    assert min(sizes) >= 14
    cohorts = {(record.owner, record.cohort) for record in records.user}
    assert len(cohorts) == 60  # an owner is of one cohort
    assert len({cohort for _, cohort in cohorts}) == 4
    for split, share in ((records.core, 0.3), (records.test, 0.2)):
        counts = np.bincount(split.labels)
        np.testing.assert_allclose(counts, share * np.bincount(records.labels), atol=0.5)


def test_digits_pixels_and_reproducibility() -> None:
    from sklearn.datasets import load_digits

    records = Records.digits()
    expected = load_digits().images[7] * 255 / 16
    np.testing.assert_allclose(records[7].image()[:, :, 0], expected, atol=0.5)
    assert records[7].image().dtype == np.uint8
    assert records == Records.digits()
    # pinned: a split that moved would turn every published number of the demo
    rows = "".join(f"{r.id} {r.label} {r.split} {r.owner} {r.cohort} {r.digest}" for r in records)
    assert hashlib.sha256(rows.encode()).hexdigest().startswith("959c00ba9a5fb35b")
    assert Records.digits(channels="rgb")[0].image().shape == (8, 8, 3)


@pytest.mark.parametrize("name", ["nowhere", "archive.zip"])
def test_open_says_what_it_reads(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match=r"neither there nor a known name.*digits.*parquet"):
        Records.open(tmp_path / name)
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(FormatError, match=r"nothing that can be read.*digits.*parquet"):
        Records.open(tmp_path / name)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="skip_all"):
        Records.open("digits", skip_all=True)


def test_reading_warns_of_nothing_and_leaves_no_file_open(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": png(1), "a/2.jpg": truncated(1)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Records.open(tmp_path, skip_bad=True)[0].image()


def test_import_is_light() -> None:
    code = (
        "import sys, efface.data.records, efface.data.readers;"
        "print([m for m in ('torch', 'pyarrow', 'sklearn', 'scipy') if m in sys.modules])"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.strip() == "[]"
