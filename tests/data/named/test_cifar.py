"""CIFAR-10: both versions agree, and its pickles are read without running them."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.data.named import archives

from efface.data.named.pickled_batches import read_batch
from efface.data.records import Records
from efface.errors import FormatError


def test_binary_version(tmp_path: Path) -> None:
    records = Records.open(archives.cifar10(tmp_path))
    assert records.classes == archives.CIFAR_CLASSES
    assert records.user.ids[3] == "train/000003"
    images, labels = archives.batch(1)  # the second batch begins after three images
    np.testing.assert_array_equal(
        records.user[3].image(), images[0].reshape(3, 32, 32).transpose(1, 2, 0)
    )
    assert [r.label for r in records.user[3:6]] == [archives.CIFAR_CLASSES[k] for k in labels]


def test_both_versions_are_the_same_records(tmp_path: Path) -> None:
    binary = Records.open(archives.cifar10(tmp_path / "a"))
    python = Records.open(archives.cifar10_python(tmp_path / "b"))
    assert binary == python
    assert binary.digests == python.digests


def test_the_binary_version_is_preferred(tmp_path: Path) -> None:
    archives.cifar10(tmp_path)
    top = archives.cifar10_python(tmp_path)
    (top / "test_batch").write_bytes(b"not even a pickle")
    assert len(Records.open(tmp_path)) == len(Records.open(f"cifar10:{tmp_path}")) == 18


def test_same_digests_as_an_npz(tmp_path: Path) -> None:
    records = Records.open(archives.cifar10(tmp_path))
    images = np.stack([record.image() for record in records.user])
    file = tmp_path / "cifar.npz"
    np.savez(file, x_train=images, y_train=records.user.labels, classes=records.classes)
    assert Records.open(file) == records.user


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no multiple of 3073"),
        (bytes(3072), "no multiple of 3073"),
        (b"\x09" * 3073, "label 9"),
    ],
)
def test_malformed_binary(content: bytes, message: str, tmp_path: Path) -> None:
    top = archives.cifar10(tmp_path)
    (top / "test_batch.bin").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        Records.open(top)


# pickles


def test_the_copy_is_a_real_pickle(tmp_path: Path) -> None:
    images, labels = archives.batch(0)
    data = archives.pickled({"data": images, "labels": labels})
    theirs = pickle.loads(data, encoding="bytes")
    (tmp_path / "batch").write_bytes(data)
    ours = read_batch(tmp_path / "batch")
    np.testing.assert_array_equal(ours[b"data"], theirs[b"data"])
    np.testing.assert_array_equal(ours[b"data"], images)
    assert ours[b"labels"] == theirs[b"labels"] == labels


class Touch:
    """Creates a file when it is unpickled the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_asks_for_more_runs_nothing(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": Touch(mark)}, protocol))
    with pytest.raises(FormatError, match=r"asks for (_?io|builtins|__builtin__)\.open"):
        read_batch(tmp_path / "batch")
    assert not mark.exists()
    pickle.loads((tmp_path / "batch").read_bytes())["data"].close()
    assert mark.exists()  # it would have


def test_names_below_an_allowed_one_are_refused(tmp_path: Path) -> None:
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile.\x93."
    (tmp_path / "batch").write_bytes(dotted)
    with pytest.raises(FormatError, match="is no batch"):
        read_batch(tmp_path / "batch")


@pytest.mark.parametrize(
    "value",
    [
        {"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": ["a"]},
        {"labels": [0, 1]},
        {"data": "text", "labels": [0]},
        ["data"],
    ],
)
def test_malformed_batches(value: object, tmp_path: Path) -> None:
    top = archives.cifar10_python(tmp_path)
    (top / "data_batch_2").write_bytes(archives.pickled(value))
    with pytest.raises(FormatError, match="data_batch_2"):
        Records.open(top)


def test_a_pickle_that_asks_for_a_huge_memo(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")  # in C: 32 GB of pointers
    assert read_batch(tmp_path / "batch") == {}


@given(st.binary(max_size=40), st.integers(0, 60))
@example(b"\x96", 0)  # a bytearray of 10¹⁸ bytes
def test_a_damaged_pickle_is_a_format_error_or_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    data = archives.pickled({"data": np.zeros((1, 4), np.uint8), "labels": [0]})
    file = tmp_path_factory.mktemp("batch") / "batch"
    file.write_bytes(data[:at] + noise + data[at + len(noise) :])
    with contextlib.suppress(FormatError):
        assert isinstance(read_batch(file), dict)
