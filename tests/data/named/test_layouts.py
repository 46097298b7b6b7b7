"""Data sets by name: each layout where it may lie, and what it holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.data.named import archives
from tests.data.named.archives import COPIES

from efface.data.named.layouts import NAMES, Spec, data_root, parse
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import FormatError, RecordError

SPLITS = {  # of the copies: user, test
    "cifar10": (15, 3),
    "caltech256": (120, 6),
    "caltech101": (60, 52),
    "mit67": (6, 3),
    "stanford-dogs": (6, 3),
    "cub200": (6, 3),
    "fgvc-aircraft": (2, 2),
    "fashion-mnist": (20, 10),
    "mnist": (20, 10),
}


@pytest.fixture(autouse=True)
def _no_data_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("EFFACE_DATA", str(tmp_path_factory.mktemp("empty")))


def test_there_is_a_copy_of_every_layout() -> None:
    assert set(COPIES) == set(SPLITS) == set(NAMES)


# where it may lie


@pytest.mark.parametrize("name", COPIES)
def test_top_folder_and_parent_forced_and_recognised(name: str, tmp_path: Path) -> None:
    parent = tmp_path / "somewhere"
    top = COPIES[name](parent)
    records = Records.open(f"{name}:{top}")
    assert (len(records.user), len(records.test)) == SPLITS[name]
    assert records == Records.open(f"{name}:{parent}") == Records.open(top) == Records.open(parent)
    assert records == Records.open(str(top))
    assert not records.skipped


@pytest.mark.parametrize("name", COPIES)
def test_bare_name_is_looked_up_under_the_data_root(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = COPIES[name](tmp_path / name)
    monkeypatch.setenv("EFFACE_DATA", str(tmp_path))
    assert Records.open(name) == Records.open(top)


def test_archives_side_by_side_under_the_data_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cub200", "cifar10", "caltech256", "fgvc-aircraft"):
        COPIES[name](tmp_path)
    archives.idx_files(tmp_path / "FashionMNIST" / "raw", zipped=True)
    monkeypatch.setenv("EFFACE_DATA", str(tmp_path))
    for name in ("cub200", "cifar10", "caltech256", "fgvc-aircraft", "fashion-mnist"):
        assert len(Records.open(name).user) == SPLITS[name][0]
    with pytest.raises(FormatError, match="mnist was not found"):
        Records.open("mnist")
    with pytest.raises(FormatError, match=r"may be .*cub200.*say which"):
        Records.open(tmp_path)


def test_a_name_that_is_not_there_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        Records.open("cub200")
    for part in (
        "train_test_split.txt",
        str(data_root() / "cub200"),
        "data get cub200",
        "EFFACE_DATA",
    ):
        assert part in str(caught.value)
    with pytest.raises(FormatError, match="256_ObjectCategories"):
        Records.open(f"caltech256:{tmp_path}")
    with pytest.raises(FormatError, match=r"not found in .*nowhere"):
        Records.open("mit67:nowhere")


def test_a_folder_of_that_name_wins_over_the_data_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archives.jpg(tmp_path / "cub200" / "train" / "cat" / "1.jpg", 1)
    assert Records.open("cub200").ids == ("train/cat/1.jpg",)


def test_a_misspelt_name() -> None:
    with pytest.raises(FormatError, match="did you mean 'stanford-dogs'"):
        Records.open("stanford_dogs")


def test_parse() -> None:
    assert parse("cub200") == Spec("cub200")
    assert parse("fashion-mnist") == Spec("fashion-mnist")
    assert parse("caltech256-30-seed2") == Spec("caltech256", "30-seed2")
    assert parse("fgvc-aircraft-family:/x:y") == Spec("fgvc-aircraft", "family", Path("/x:y"))
    for other in ("digits", "cub200-30", "cub200:", "photos", Path("cub200")):
        assert parse(other) is None


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EFFACE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "efface" / "data"


# how it is told


def test_other_folders_are_read_as_before(tmp_path: Path) -> None:
    for name in ("accordion", "airplanes", "Images"):
        archives.jpg(tmp_path / "train" / name / "1.jpg", len(name))
    assert Records.open(tmp_path).classes == ("Images", "accordion", "airplanes")


def test_a_listing_wins_over_the_layout(tmp_path: Path) -> None:
    top = archives.cub200(tmp_path)
    name = f"images/{archives.BIRDS[0]}/Black_footed_Albatross_0000.jpg"
    (top / "metadata.csv").write_text(f"file_name,label\n{name},bird\n")
    assert Records.open(top).classes == ("bird",)


def test_idx_files_are_told_apart_by_the_folder(tmp_path: Path) -> None:
    raw = archives.idx_files(tmp_path / "FashionMNIST" / "raw", zipped=False)
    assert Records.open(raw).classes[0] == Records.open(raw.parent).classes[0] == "T-shirt/top"
    unknown = archives.idx_files(tmp_path / "a" / "b", zipped=False)
    with pytest.raises(FormatError, match=r"may be fashion-mnist or mnist"):
        Records.open(unknown)
    assert Records.open(f"mnist:{unknown}").classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cub200", "train_test_split.txt"),
        ("mit67", "TestImages.txt"),
        ("stanford-dogs", "lists/train_list.mat"),
        ("fgvc-aircraft", "data/variants.txt"),
        ("cifar10", "data_batch_3.bin"),
        ("mnist", "t10k-labels-idx1-ubyte"),
    ],
)
def test_a_missing_list_is_named(name: str, file: str, tmp_path: Path) -> None:
    top = COPIES[name](tmp_path)
    (top / file).unlink()
    missing = Path(file).name
    for spec in (f"{name}:{top}", f"{name}:{tmp_path}", top):
        with pytest.raises(FormatError, match=rf"incomplete .*{missing} is missing") as caught:
            Records.open(spec)
        assert "efface data get" in caught.value.fix


@pytest.mark.parametrize("name", ["cub200", "mit67", "stanford-dogs", "fgvc-aircraft"])
def test_an_image_that_is_listed_but_missing(name: str, tmp_path: Path) -> None:
    top = COPIES[name](tmp_path)
    gone = Records.open(top).user[0]
    gone.source.path.unlink()  # type: ignore[attr-defined]
    with pytest.raises(RecordError, match=rf"{gone.id}.* is listed, but not in .*1 such") as caught:
        Records.open(top)
    assert "--skip-bad" in caught.value.fix
    if name != "fgvc-aircraft":  # there it was the only training image of its class
        records = Records.open(top, skip_bad=True)
        assert [bad.id for bad in records.skipped] == [gone.id]
        assert len(records.user) == SPLITS[name][0] - 1


def test_a_list_that_leads_out_of_the_folder(tmp_path: Path) -> None:
    top = archives.mit67(tmp_path)
    (top / "TestImages.txt").write_text("kitchen/../../../secret.jpg\n")
    with pytest.raises(RecordError, match="outside of"):
        Records.open(top)


# what it holds


@pytest.mark.parametrize("name", COPIES)
def test_images_stay_on_disk_and_core_fractions_work(name: str, tmp_path: Path) -> None:
    top = COPIES[name](tmp_path)
    records = Records.open(top, core_fraction=0.5, seed=1)
    assert len(records.test) == SPLITS[name][1]
    num = SPLITS[name][0]  # images are drawn one by one: five standard deviations
    assert len(records.core) == pytest.approx(num / 2, abs=2.5 * num**0.5)
    again = Records.open(top, core_fraction=0.5, seed=2)
    assert again.test.ids == records.test.ids  # the seed moves the core, never the test data
    assert {image.shape[2] for image in (r.image() for r in records)} <= {1, 3}
    sources = [record.source for record in records]
    held = [a for s in sources if (a := getattr(s, "array", None)) is not None]
    assert all(isinstance(_base(array), np.memmap) for array in held) or name == "fashion-mnist"
    assert held or all(source.path.is_file() for source in sources)  # type: ignore[attr-defined]


def _base(array: np.ndarray) -> np.ndarray:
    """The array that holds the data of a view."""
    while not isinstance(array, np.memmap) and isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_cub200(tmp_path: Path) -> None:
    records = Records.open(archives.cub200(tmp_path))
    assert records.classes == archives.BIRDS
    assert records.test.ids == tuple(f"{bird}/{bird[4:]}_0002.jpg" for bird in archives.BIRDS)
    assert [record.label for record in records.test] == list(archives.BIRDS)
    assert {record.image().shape for record in records} == {(8, 8, 3)}  # the gray one too
    assert records[0].owner == records[0].id
    gray = Records.open(tmp_path, channels="gray")
    assert {record.image().shape for record in gray} == {(8, 8, 1)}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("classes.txt", "1\n", "line 1 of classes.txt is not a key and a value"),
        ("images.txt", "1 a.jpg\n1 b.jpg\n", "line 2 of images.txt repeats a key"),
        ("images.txt", "", "is empty"),
        ("image_class_labels.txt", "1 1\n", "has no line for 8 images, the first is 2"),
        ("train_test_split.txt", "".join(f"{i} 7\n" for i in range(1, 10)), "says '7' for image 1"),
    ],
)
def test_malformed_cub200(file: str, content: str, message: str, tmp_path: Path) -> None:
    top = archives.cub200(tmp_path)
    (top / file).write_text(content)
    with pytest.raises(FormatError, match=message):
        Records.open(top)


def test_mit67(tmp_path: Path) -> None:
    records = Records.open(archives.mit67(tmp_path))
    assert records.classes == archives.SCENES
    assert records.user.ids[:3] == tuple(f"{scene}/{scene}_0.jpg" for scene in archives.SCENES)
    assert any("3 images are in neither official list" in note for note in records.notes)


def test_mit67_as_it_is_also_packed(tmp_path: Path) -> None:
    top = archives.mit67(tmp_path)
    expected = Records.open(top)
    (top / "indoorCVPR_09").mkdir()
    (top / "Images").rename(top / "indoorCVPR_09" / "Images")
    assert Records.open(top) == expected


def test_malformed_mit67(tmp_path: Path) -> None:
    top = archives.mit67(tmp_path)
    good = (top / "TestImages.txt").read_text()
    for content, message in (("kitchen\n", "not class/file"), ("\n\n", "is empty")):
        (top / "TestImages.txt").write_text(content)
        with pytest.raises(FormatError, match=message):
            Records.open(top)
    (top / "TestImages.txt").write_text(good + "\nbakery/bakery_0.jpg")
    with pytest.raises(RecordError, match="1 images are in the train and the test list"):
        Records.open(top)
    (top / "TestImages.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="is not text"):
        Records.open(top)


def test_stanford_dogs(tmp_path: Path) -> None:
    top = archives.stanford_dogs(tmp_path)
    records = Records.open(top)
    assert records.classes == archives.DOGS
    assert records.test.ids == tuple(f"{dog}/{dog[:9]}_2.jpg" for dog in archives.DOGS)
    for name in ("train_list.mat", "test_list.mat"):  # where lists.tar itself puts them
        (top / "lists" / name).rename(top / name)
    assert Records.open(top) == records


def test_malformed_stanford_dogs(tmp_path: Path) -> None:
    import scipy.io

    top = archives.stanford_dogs(tmp_path)
    path = top / "lists" / "test_list.mat"
    dogs = np.array([[f"{archives.DOGS[1]}/x.jpg"]], dtype=object)
    for values, message in (
        ({"labels": [[1]]}, "does not hold file_list and labels"),
        ({"file_list": dogs, "labels": [[1], [2]]}, "has 1 files and 2 labels"),
        ({"file_list": dogs, "labels": [[1]]}, "label 1 stands for"),
    ):
        scipy.io.savemat(path, values)
        with pytest.raises(FormatError, match=message):
            Records.open(top)
    path.write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"is not a \.mat file"):
        Records.open(top)


def test_fgvc_aircraft_without_the_banner(tmp_path: Path) -> None:
    top = archives.fgvc_aircraft(tmp_path)
    records = Records.open(top)
    assert records.classes == ("707-320", "A300B4")
    assert records.user.ids == ("1025794.jpg", "0056978.jpg")
    assert records == Records.open(top / "data")
    plain = Records.from_folder(top / "data").where(lambda r: r.id == "images/1025794.jpg")
    whole, shown = plain[0].image(), records.user[0].image()
    assert (whole.shape, shown.shape) == ((28, 8, 3), (8, 8, 3))
    np.testing.assert_array_equal(shown, whole[:8])
    assert plain[0].digest != records.user[0].digest  # what is derived from one is not of the other


def test_fgvc_aircraft_with_nothing_but_a_banner(tmp_path: Path) -> None:
    top = archives.fgvc_aircraft(tmp_path)
    archives.jpg(top / "data" / "images" / "1025794.jpg", 1, height=20)
    with pytest.raises(RecordError, match=r"1025794.*banner"):
        Records.open(top).user[0].image()


def test_fgvc_aircraft_levels(tmp_path: Path) -> None:
    top = archives.fgvc_aircraft(tmp_path)
    assert Records.open(f"fgvc-aircraft-family:{top}").classes == ("Boeing 707", "A300")
    makers = Records.open(f"fgvc-aircraft-manufacturer:{top}")
    assert [record.label for record in makers.user] == ["Boeing", "Airbus Industrie"]
    archives.text(top / "data" / "families.txt", "A300")
    with pytest.raises(FormatError, match="unknown class 'Boeing 707'"):
        Records.open(f"fgvc-aircraft-family:{top}")


def test_caltech256(tmp_path: Path) -> None:
    top = archives.caltech256(tmp_path)
    records = Records.open(top)
    assert records.classes == ("001.ak47", "056.dog")
    assert Counter(r.label for r in records.user) == {"001.ak47": 60, "056.dog": 60}
    assert Counter(r.label for r in records.test) == {"001.ak47": 4, "056.dog": 2}
    assert set(records.ids) >= {"001.ak47/001_0001.jpg", "056.dog/056_0062.jpg"}
    assert any("2 class folders where the archive has 256" in note for note in records.notes)


def test_caltech_draws(tmp_path: Path) -> None:
    top = archives.caltech256(tmp_path)
    first, second = (Records.open(f"caltech256-30-seed{seed}:{top}") for seed in (0, 1))
    assert len(first.user) == len(second.user) == 60
    assert set(first.ids) == set(second.ids)
    assert first.user.ids != second.user.ids
    assert first == Records.open(f"caltech256-30:{top}")
    # nested: the first 30 of 60 are the 30, and one image less moves one image at most
    assert set(first.user.ids) < set(Records.open(top).user.ids)
    first.user[0].source.path.unlink()  # type: ignore[attr-defined]
    fewer = Records.open(f"caltech256-30:{top}")
    assert len(set(fewer.user.ids) ^ set(first.user.ids)) == 2
    with pytest.raises(FormatError, match="no training images"):
        Records.open(f"caltech256-0:{top}")


def test_caltech101(tmp_path: Path) -> None:
    records = Records.open(archives.caltech101(tmp_path))
    assert records.classes == ("accordion", "airplanes")
    assert Counter(r.label for r in records.user) == {"accordion": 30, "airplanes": 30}
    assert Counter(r.label for r in records.test) == {"accordion": 2, "airplanes": 50}
    assert any("3 images are not used" in note for note in records.notes)
    small = Records.open(f"caltech101-40:{tmp_path}")
    assert any("leave none to test 'accordion'" in note for note in small.notes)


def test_empty_caltech(tmp_path: Path) -> None:
    (tmp_path / "101_ObjectCategories").mkdir()
    with pytest.raises(FormatError, match="no class folders"):
        Records.open(tmp_path)
    (tmp_path / "101_ObjectCategories" / "ant").mkdir()
    with pytest.raises(FormatError, match=r"no images in .*ant"):
        Records.open(tmp_path)


def test_idx(tmp_path: Path) -> None:
    plain = Records.open(archives.mnist(tmp_path))
    zipped = Records.open(f"mnist:{archives.fashion_mnist(tmp_path)}")
    assert plain == zipped  # the same images, the same records
    assert plain.user.ids[:2] == ("train/000000", "train/000001")
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    np.testing.assert_array_equal(plain.user[3].image()[:, :, 0], images[3])
    assert [record.label for record in plain.test] == list("0123456789")
    assert all(record.split is Split.USER for record in plain.user)


def test_malformed_idx(tmp_path: Path) -> None:
    top = archives.mnist(tmp_path)
    path = top / "t10k-labels-idx1-ubyte"
    images = np.zeros((2, 2, 2), np.uint8)
    for content, message in (
        (archives.idx(images), "not an idx file of bytes with 1 axes"),
        (archives.idx(images[0, 0])[:-1], r"holds 1 bytes of data where \(2,\)"),
        (archives.idx(images[0, 0]), "10 images and 2 labels"),
        (archives.idx(np.full(10, 10, np.uint8)), "labels go up to 10"),
        (b"", "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            Records.open(top)
    path.unlink()
    path.with_name(f"{path.name}.gz").write_bytes(b"no gzip")
    with pytest.raises(FormatError, match="cannot be read"):
        Records.open(top)
