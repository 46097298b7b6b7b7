"""Tiny copies of the official archives' layouts: three classes, a few images of 8 pixels."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

CIFAR_CLASSES = ("airplane", "automobile", "bird")
DOGS = ("n02085620-Chihuahua", "n02085782-Japanese_spaniel", "n02085936-Maltese_dog")
BIRDS = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")
SCENES = ("airport_inside", "bakery", "kitchen")


def pixels(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def jpg(path: Path, seed: int, *, height: int = 8, gray: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels(seed, height))
    (image.convert("L") if gray else image).save(path, "JPEG", quality=95)


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


# photographs


def cub200(parent: Path) -> Path:
    """Three images a class, the last of them for testing; one is gray, as in the original."""
    top = parent / "CUB_200_2011"
    names = [f"{bird}/{bird[4:]}_{k:04d}.jpg" for bird in BIRDS for k in range(3)]
    for i, name in enumerate(names):
        jpg(top / "images" / name, i, gray=i == 1)
    numbers = range(1, len(names) + 1)
    text(top / "images.txt", *(f"{i} {name}" for i, name in zip(numbers, names, strict=True)))
    text(top / "classes.txt", *(f"{i} {bird}" for i, bird in enumerate(BIRDS, start=1)))
    text(top / "image_class_labels.txt", *(f"{i} {(i - 1) // 3 + 1}" for i in numbers))
    text(top / "train_test_split.txt", *(f"{i} {int(i % 3 != 0)}" for i in numbers))
    text(parent / "attributes.txt", "1 has_bill_shape::curved")
    return top


def mit67(parent: Path) -> Path:
    """Two training images, one for testing and one in neither list, a class."""
    top = parent / "mit67"
    names = [f"{scene}/{scene}_{k}.jpg" for scene in SCENES for k in range(4)]
    for i, name in enumerate(names):
        jpg(top / "Images" / name, i)
    (top / "TrainImages.txt").write_bytes("\r\n".join(names[0::4] + names[1::4]).encode())
    (top / "TestImages.txt").write_bytes("\r\n".join(names[2::4]).encode())
    return top


def stanford_dogs(parent: Path) -> Path:
    top = parent / "stanford-dogs"
    names = [f"{dog}/{dog[:9]}_{k}.jpg" for dog in DOGS for k in range(3)]
    for i, name in enumerate(names):
        jpg(top / "Images" / name, i)
    labels = [1, 1, 1, 2, 2, 2, 3, 3, 3]
    for part, chosen in (("train", (0, 1, 3, 4, 6, 7)), ("test", (2, 5, 8))):
        listing = np.empty((len(chosen), 1), dtype=object)
        listing[:, 0] = [names[i] for i in chosen]
        column = np.array([[labels[i]] for i in chosen], dtype=np.uint8)
        (top / "lists").mkdir(exist_ok=True)
        values = {"file_list": listing, "labels": column}
        scipy.io.savemat(top / "lists" / f"{part}_list.mat", values)
    return top


def fgvc_aircraft(parent: Path) -> Path:
    """28 rows an image, of which the bottom 20 are the banner."""
    top = parent / "fgvc-aircraft-2013b"
    data = top / "data"
    planes = {"1025794": "707-320", "1340192": "707-320", "0056978": "A300B4", "0698580": "A300B4"}
    for i, number in enumerate(planes):
        jpg(data / "images" / f"{number}.jpg", i, height=28)
    makers = {"707-320": "Boeing", "A300B4": "Airbus Industrie"}
    families = {"707-320": "Boeing 707", "A300B4": "A300"}
    levels = {"variant": {p: p for p in makers}, "family": families, "manufacturer": makers}
    lists = {"variant": "variants", "family": "families", "manufacturer": "manufacturers"}
    for level, names in levels.items():
        text(data / f"{lists[level]}.txt", *names.values())
        lines = [f"{number} {names[plane]}" for number, plane in planes.items()]
        text(data / f"images_{level}_trainval.txt", *lines[0::2])
        text(data / f"images_{level}_test.txt", *lines[1::2])
    return top


def caltech256(parent: Path) -> Path:
    """64 images of one class, 62 of another, clutter, and the archive's strays."""
    top = parent / "256_ObjectCategories"
    for number, name, count in ((1, "001.ak47", 64), (56, "056.dog", 62), (257, "257.clutter", 2)):
        for k in range(1, count + 1):
            jpg(top / name / f"{number:03d}_{k:04d}.jpg", 1000 * number + k)
    jpg(top / "056.dog" / "greg" / "vision309.jpg", 1)
    text(top / "056.dog" / "RENAME2", "a script")
    return top


def caltech101(parent: Path) -> Path:
    """32 images of one class, 83 of another: more than 30 + 50."""
    top = parent / "101_ObjectCategories"
    for seed, (name, count) in enumerate(
        {"accordion": 32, "airplanes": 83, "BACKGROUND_Google": 2}.items()
    ):
        for k in range(1, count + 1):
            jpg(top / name / f"image_{k:04d}.jpg", 1000 * seed + k)
    return top


# arrays


def batch(number: int) -> tuple[np.ndarray, list[int]]:
    """Three images a batch, (3, 3 · 32 · 32), one a class."""
    images = np.random.default_rng(number).integers(0, 256, (3, 3072), dtype=np.uint8)
    return images, [number % 3, (number + 1) % 3, (number + 2) % 3]


def cifar10(parent: Path) -> Path:
    top = parent / "cifar-10-batches-bin"
    top.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        images, labels = batch(number)
        table = np.concatenate([np.array(labels, np.uint8)[:, None], images], axis=1)
        (top / f"{name}.bin").write_bytes(table.tobytes())
    text(top / "batches.meta.txt", *CIFAR_CLASSES, "")
    return top


def cifar10_python(parent: Path) -> Path:
    top = parent / "cifar-10-batches-py"
    top.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        images, labels = batch(number)
        (top / name).write_bytes(pickled({"data": images, "labels": labels, "batch_label": name}))
    (top / "batches.meta").write_bytes(pickled({"label_names": list(CIFAR_CLASSES)}))
    return top


def pickled(value: object) -> bytes:
    """As Python 2 wrote it: protocol 2, text as byte strings."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: object) -> bytes:
    if isinstance(value, dict):
        items = b"".join(_opcodes(k) + _opcodes(v) for k, v in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, np.ndarray):
        return _array(value)
    data = value.encode() if isinstance(value, str) else value
    assert isinstance(data, bytes)
    return b"T" + struct.pack("<i", len(data)) + data


def _array(array: np.ndarray) -> bytes:
    empty = b"cnumpy\nndarray\n" + _opcodes(0) + b"\x85" + _opcodes("b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + _opcodes(array.dtype.str[1:]) + _opcodes(0) + _opcodes(1) + b"\x87R"
    order = b"(" + _opcodes(3) + _opcodes("|") + b"NNN" + 2 * _opcodes(-1) + _opcodes(0) + b"tb"
    shape = b"(" + b"".join(map(_opcodes, array.shape)) + b"t"
    state = b"(" + _opcodes(1) + shape + kind + order + b"\x89" + _opcodes(array.tobytes()) + b"tb"
    return b"cnumpy.core.multiarray\n_reconstruct\n" + empty + state


def idx(array: np.ndarray) -> bytes:
    lengths = b"".join(struct.pack(">I", n) for n in array.shape)
    return bytes((0, 0, 8, array.ndim)) + lengths + array.tobytes()


def idx_files(top: Path, *, zipped: bool) -> Path:
    """20 training and 10 test images of 8 × 8, two and one a class."""
    top.mkdir(parents=True)
    for seed, (part, count) in enumerate({"train": 20, "t10k": 10}.items()):
        images = np.random.default_rng(seed).integers(0, 256, (count, 8, 8), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array)
            path = top / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return top


def fashion_mnist(parent: Path) -> Path:
    return idx_files(parent / "fashion-mnist", zipped=True)


def mnist(parent: Path) -> Path:
    return idx_files(parent / "mnist", zipped=False)


COPIES: dict[str, Callable[[Path], Path]] = {
    "cifar10": cifar10,
    "caltech256": caltech256,
    "caltech101": caltech101,
    "mit67": mit67,
    "stanford-dogs": stanford_dogs,
    "cub200": cub200,
    "fgvc-aircraft": fgvc_aircraft,
    "fashion-mnist": fashion_mnist,
    "mnist": mnist,
}
