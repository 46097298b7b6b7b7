"""Images that a program holds: the same pixels are the same records, whatever carries them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests import cases
from torch.utils.data import Dataset, Subset

from efface.data.images import Channels, digest_of
from efface.data.pictures import Pictures
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, RecordError
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
RGB = RNG.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = ["cat", "dog", "cat", "dog", "cat", "dog"]
OWNERS = ["anna", "anna", "ben", "ben", "cem", "cem"]


class Pairs(Dataset):
    """A torch data set that holds Pillow images."""

    def __init__(self, images: np.ndarray, labels: list[Any], classes: list[str] | None = None):
        self.images, self.labels = images, labels
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Image.Image, Any]:
        return Image.fromarray(self.images[i]), self.labels[i]


class FakeImage:
    """As ``datasets.Image``: whether cells are decoded is one of its attributes."""

    def __init__(self) -> None:
        self.decode = True


class FakeLabel:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class FakeDataset:
    """What is used of ``datasets.Dataset``: features, column_names, cast_column, with_format, [column]."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
        self.columns_, self.features = columns, features

    column_names = property(lambda self: list(self.columns_))

    def with_format(self, kind: None) -> FakeDataset:
        return self

    def cast_column(self, name: str, feature: Any) -> FakeDataset:
        return FakeDataset(self.columns_, {**self.features, name: feature})

    def __len__(self) -> int:
        return len(self.columns_["label"])

    def __getitem__(self, name: str) -> list[Any]:
        cells = self.columns_[name]
        if getattr(self.features.get(name), "decode", False):
            return [Image.open(io.BytesIO(cell["bytes"])) for cell in cells]
        return cells


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def channels_first(images: np.ndarray) -> torch.Tensor:
    array = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.mark.parametrize("images", [GRAY, RGB], ids=["gray", "rgb"])
def test_the_same_pixels_are_the_same_records(images: np.ndarray) -> None:
    want = Records.from_arrays(images, LABELS, owners=OWNERS)
    pillow = [Image.fromarray(pixels) for pixels in images]
    frame = pd.DataFrame({"image": list(images), "label": LABELS, "owner": OWNERS})
    for found in (
        Records.from_arrays(list(images), LABELS, owners=OWNERS),
        Records.from_arrays(channels_first(images), LABELS, owners=OWNERS),
        Records.from_images(list(images), LABELS, owners=np.array(OWNERS)),
        Records.from_images(list(channels_first(images)), LABELS, owners=OWNERS),
        Records.from_images(pillow, pd.Series(LABELS), owners=pd.Series(OWNERS)),
        Records.from_images(images[:, ::-1][:, ::-1], LABELS, owners=OWNERS),  # not contiguous
        Records.from_dataset(Pairs(images, LABELS), owners=OWNERS),
        Records.from_dataset(Pairs(images, [0, 1] * 3, ["cat", "dog"]), owners=OWNERS),
        Records.from_dataframe(frame),
    ):
        assert found == want
    assert want.digests == tuple(digest_of(pixels) for pixels in images)
    assert want.ids == tuple(digest[:16] for digest in want.digests)
    np.testing.assert_array_equal(want[3].image().squeeze(), images[3])


def test_files_are_files_whoever_names_them(tmp_path: Path) -> None:
    """Listed, in a DataFrame, in an ImageFolder or found in the folder: the digest is that of the file."""
    for i, pixels in enumerate(RGB):
        path = tmp_path / LABELS[i] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(pixels))
    want = Records.from_folder(tmp_path)
    paths = [tmp_path / name for name in want.ids]
    labels = want.column("label")

    class Folder:
        """As torchvision's ImageFolder."""

        def __init__(self) -> None:
            self.root, self.classes, self.loader = str(tmp_path), ["cat", "dog"], None
            indices = [self.classes.index(name) for name in labels]
            self.samples = list(zip(map(str, paths), indices, strict=True))

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, i: int) -> Any:
            raise AssertionError("files are not decoded")

    folder = Records.from_dataset(Folder())
    assert folder == want
    assert Records.from_dataset(Subset(Folder(), [4, 1])) == want[[4, 1]]  # type: ignore[arg-type]
    frame = pd.DataFrame({"path": [str(p.relative_to(tmp_path)) for p in paths], "label": labels})
    for found in (
        Records.from_images(paths, labels),
        Records.from_images(np.array([str(p) for p in paths]), labels),
        Records.from_dataframe(frame, root=tmp_path),
    ):
        assert found.digests == want.digests
    again = Records.from_images(list(RGB), LABELS)
    assert {r.image().tobytes() for r in again} == {r.image().tobytes() for r in want}


def test_an_encoded_dataset_is_read_as_it_is_stored() -> None:
    cells = [{"bytes": png(pixels), "path": None} for pixels in RGB]
    columns = {"image": cells, "label": [0, 1] * 3, "owner": OWNERS}
    features = {"image": FakeImage(), "label": FakeLabel(["cat", "dog", "owl"]), "owner": None}
    records = Records.from_dataset(FakeDataset(columns, features), classes=["cat", "dog", "owl"])
    assert records.digests == tuple(digest_of(cell["bytes"]) for cell in cells)
    assert records.column("label") == LABELS
    assert records.owners == tuple(OWNERS)


def test_one_split_is_to_be_chosen() -> None:
    cells = [{"bytes": png(pixels), "path": None} for pixels in RGB]
    features = {"image": FakeImage(), "label": None}
    splits = {"train": FakeDataset({"image": cells, "label": LABELS}, features)}
    with pytest.raises(EffaceError, match=r"choose one: dataset\['train'\]"):
        Records.from_dataset(splits)
    with pytest.raises(EffaceError, match="this has the splits train"):
        Pictures.of(splits)


def test_the_real_datasets_if_they_are_here(tmp_path: Path) -> None:
    """The same records as from the Parquet file that it writes."""
    datasets = pytest.importorskip("datasets")
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    columns = {"image": [Image.fromarray(pixels) for pixels in RGB], "label": [0, 1] * 3}
    data = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    data.to_parquet(tmp_path / "data.parquet")
    found = Records.from_dataset(data.with_format("numpy"))
    assert found.digests == Records.from_parquet(tmp_path / "data.parquet").digests
    assert found.column("label") == LABELS
    np.testing.assert_array_equal(found[2].image(), RGB[2])


def test_declared_names_are_a_list_and_a_folders_names_are_not() -> None:
    features = {"image": FakeImage(), "label": FakeLabel(["cat", "dog"])}
    cells = [{"bytes": png(pixels), "path": None} for pixels in RGB]
    declared = FakeDataset({"image": cells, "label": [0, 1] * 3}, features)
    assert Records.from_dataset(declared).listed
    assert not Records.from_dataset(Pairs(RGB, [0, 1] * 3, ["cat", "dog"])).listed
    assert Records.from_dataset(Pairs(RGB, [0] * 6, ["cat", "dog"])).classes == ("cat",)


def test_content_is_taken_by_value() -> None:
    images, single = GRAY.copy(), [GRAY[0].copy()]
    picture = Image.fromarray(GRAY[1].copy())
    records = Records.from_arrays(images, LABELS)
    others = Records.from_images([*single, picture], ["cat", "dog"])
    shown = Pictures.of(images)
    images[:] = 0
    single[0][:] = 0
    picture.paste(0, (0, 0, 8, 8))
    for found in (records, shown):
        np.testing.assert_array_equal(found[2].image().squeeze(), GRAY[2])
    np.testing.assert_array_equal(others[0].image().squeeze(), GRAY[0])
    np.testing.assert_array_equal(others[1].image().squeeze(), GRAY[1])


@pytest.mark.parametrize(
    ("mode", "channels"),
    [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3), ("CMYK", 3), ("I;16", 1)],
)
def test_pillow_images_of_any_mode_show_what_their_file_shows(mode: str, channels: int) -> None:
    image = Image.fromarray(RGB[0]).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(GRAY[0].astype(np.uint16) * 257)
    buffer = io.BytesIO()
    image.save(buffer, "TIFF")
    held, file = Records.from_images([image, buffer.getvalue()], ["a", "b"], channels=None)
    np.testing.assert_array_equal(held.image(), file.image())
    assert held.image().shape[2] == channels


def test_a_picture_is_turned_upright_as_its_file_is() -> None:
    tall = Image.fromarray(np.arange(60, dtype=np.uint8).reshape(10, 6))
    exif = tall.getexif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    tall.save(buffer, "JPEG", exif=exif, quality=100)
    opened = Image.open(io.BytesIO(buffer.getvalue()))
    held, file = Records.from_images([opened, buffer.getvalue()], ["a", "b"])
    assert held.image().shape == (6, 10, 1)
    np.testing.assert_array_equal(held.image(), file.image())


def test_the_columns_of_a_frame() -> None:
    frame = pd.DataFrame(
        {
            "picture": list(GRAY),
            "species": LABELS,
            "owner": [17, 17, None, 18, 18, 18],  # pandas makes floats of them
            "split": ["core", "core", "train", "train", "test", "test"],
            "camera": ["x"] * 6,
        }
    )
    records = Records.from_dataframe(frame, image="picture", label="species", ids=list("uvwxyz"))
    assert records.owners == ("17", "17", "w", "18", "18", "18")
    assert [r.split for r in records][::2] == [Split.CORE, Split.USER, Split.TEST]
    assert records[0].extra == {"camera": "x"}
    with pytest.raises(EffaceError, match="no column 'image' among picture, species"):
        Records.from_dataframe(frame)


def test_copies_have_names_of_their_own() -> None:
    records = Records.from_arrays(GRAY[[0, 1, 0]], LABELS[:3])
    assert records.ids == (records.ids[0], records.ids[1], f"{records.ids[0]}-2")


def test_options_are_those_of_every_reader() -> None:
    records = Records.from_arrays(GRAY, [3, 10, 3, 10, 3, 10], owners=OWNERS, core_fraction=0.5)
    assert records.classes == ("3", "10")
    assert not records.listed
    same = Records.from_arrays(GRAY, [3, 10] * 3, owners=OWNERS).with_core_fraction(0.5)
    assert records == same
    listed = Records.from_arrays(GRAY, [3, 10] * 3, classes=[10, 3, 4], split="test")
    assert listed.classes == ("10", "3", "4")
    assert len(listed.test) == 6
    mixed = [*GRAY[:3], *RGB[:3]]
    assert {r.channels for r in Records.from_images(mixed, LABELS, channels="rgb")} == {"rgb"}
    broken = Records.from_images(
        [GRAY[0], b"no image"], ["a", "b"], classes=["a", "b"], skip_bad=True
    )
    assert len(broken) == len(broken.skipped) == 1


NAN = np.full((2, 8, 8), np.nan)


@pytest.mark.parametrize(
    ("images", "labels", "options", "text"),
    [
        (GRAY, LABELS[:5], {}, "5 labels for 6 images"),
        (GRAY, LABELS, {"owners": OWNERS[:2]}, "2 owners for 6 images"),
        (GRAY, LABELS, {"owners": "anna"}, "owners is one text"),
        (GRAY, LABELS, {"ids": ["x"] * 6}, "6 records have this id"),
        (GRAY, LABELS, {"split": "training"}, "unknown split 'training'"),
        (GRAY, ["cat", 1] * 3, {}, "some labels are text and some are numbers"),
        (GRAY, [True, False] * 3, {}, "its label is True"),
        (GRAY, [1.5, 2.0] * 3, {}, "its label is 1.5"),
        (GRAY, [None] * 6, {}, "its label is None"),
        (GRAY, LABELS, {"owners": [object()] * 6}, "names are text or whole numbers"),
        (GRAY, LABELS, {"classes": ["cat"]}, "label 'dog' is not one of the classes"),
        (GRAY / 255, LABELS, {}, "pixels are float64, which says nothing about their range"),
        (NAN, ["a", "b"], {}, "pixels are float64"),
        (GRAY.astype(np.int64), LABELS, {}, "pixels are int64"),
        (GRAY > 9, LABELS, {}, "pixels are bool"),
        (GRAY[0], LABELS, {}, r"an array of shape \(8, 8\) holds no images"),
        (RGB.transpose(0, 3, 1, 2), LABELS, {}, "8 channels"),
        (list(NAN), ["a", "b"], {}, "'image 0': its pixels are float64"),
        (GRAY[:0], [], {}, "no images were given"),
        ([], [], {}, "no images were given"),
        ("cat.png", ["cat"], {}, "one image was given"),
        (Image.fromarray(GRAY[0]), ["cat"], {}, "one image was given"),
        ([("x", 1)], ["cat"], {}, "tuple is no image"),
        ([None], ["cat"], {}, "NoneType is no image"),
        ({"a": 1}, ["cat"], {}, "a dict holds no images"),
        (["nowhere.png"], ["cat"], {}, "nowhere.png is missing"),
        ([*GRAY[:2], RGB[0]], LABELS[:3], {}, "3 channel"),
    ],
)
def test_what_is_wrong_is_said(images: Any, labels: Any, options: Any, text: str) -> None:
    with pytest.raises(EffaceError, match=text) as caught:
        Records.from_images(images, labels, **options)
    assert caught.value.fix


def test_data_sets_of_something_else() -> None:
    with pytest.raises(RecordError, match="the data set gives a ndarray"):
        Records.from_dataset(GRAY)
    with pytest.raises(RecordError, match="label 2 is outside the 2 classes"):
        Records.from_dataset(Pairs(GRAY, [0, 1, 2, 0, 1, 2], ["cat", "dog"]))
    with pytest.raises(EffaceError, match="differ in shape"):
        Records.from_arrays([GRAY[0], GRAY[0, :4]], ["a", "b"])


def test_a_model_is_shown_images_without_labels(tmp_path: Path) -> None:
    """Records, arrays, Pillow images, files and pictures of the same pixels: the same logits."""
    core = Core("cnn", classes=["a", "b", "c"]).fit(cases.tiny_records(12, 0, split=Split.CORE))
    for kind, options in (("compact", {"features": 60}), ("tangent", {})):
        model = MixedLinear(core, kind, **options).fit(cases.tiny_records(20, 1))
        labelled = Records.from_arrays(GRAY, ["a", "b", "c"] * 2)
        want = model.logits(labelled)
        paths = []
        for i, pixels in enumerate(GRAY):
            paths.append(tmp_path / f"{i}.png")
            paths[-1].write_bytes(png(pixels))
        colour = np.repeat(GRAY[..., None], 3, 3)
        for shown in (GRAY, list(GRAY), paths, colour, Pictures.of(paths, Channels.GRAY)):
            assert torch.equal(model.logits(shown), want)
        assert model.predict(GRAY).tolist() == [model.classes[i] for i in want.argmax(1)]
        assert model.predict_proba(paths).shape == (6, 3)
        with pytest.raises(RecordError, match="is 9 × 9 after preprocessing, others are 8 × 8"):
            model.predict([GRAY[0], np.zeros((9, 9), np.uint8)])


def test_a_picture_is_what_it_was_when_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(GRAY[0]))
    shown = Pictures.of([path])
    assert shown[:1].ids == (str(path),)
    path.write_bytes(png(GRAY[1]))
    with pytest.raises(RecordError, match="content changed"):
        shown[0].image()
    with pytest.raises(RecordError, match="is missing"):
        Pictures.of([tmp_path / "b.png"])
