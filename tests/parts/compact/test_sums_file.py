"""Sums in a file: written and read some rows at a time, the same as all at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from tests.parts.compact.sums import fitted, random_rows
from tests.reference import exact_digest, exact_statistics

from efface import files
from efface.errors import FormatError
from efface.parts.compact import packed, sums_file
from efface.parts.compact.statistics import Statistics

SIZES = [1, 3, 64, 65, 512, 700]  # of one strip and of two, around tiles and masks


def sums_of(k: int, limbs: int = 1) -> Statistics:
    return fitted(*random_rows(90, k, 2, bits=16), bits=16, limbs=limbs)


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("k", SIZES)
def test_the_file_is_that_of_the_arrays_at_once(tmp_path: Path, k: int, limbs: int) -> None:
    """The slow twin: all words in memory, and safetensors' own writer."""
    sums = sums_of(k, limbs)
    with files.hashing() as known:
        sums_file.write_sums(tmp_path / "ours", sums)
    plain = {name: np.ascontiguousarray(array) for name, array in sums.to_arrays().items()}
    safetensors.numpy.save_file(plain, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert known == {tmp_path / "ours": sums_file.SUMS + sums.digest()}


def test_words_in_blocks_of_any_size_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, targets = random_rows(90, 200, 2, bits=16)
    for words in (1, 200, 777, 1 << 20):
        monkeypatch.setattr(packed, "BLOCK_WORDS", words)
        sums = fitted(rows, targets, bits=16)
        sums_file.write_sums(tmp_path / "file", sums)
        assert sums.digest() == exact_digest(rows, targets, 16, 16)
        assert sums_file.read_sums(tmp_path / "file").digest() == sums.digest()


@pytest.mark.parametrize("k", SIZES)
def test_strips_are_read_as_they_were(tmp_path: Path, k: int) -> None:
    """Diagonal blocks whole, by the fractions of the slow twin."""
    rows, targets = random_rows(20, k, 2)
    sums_file.write_sums(tmp_path / "file", fitted(rows, targets))
    found = sums_file.read_sums(tmp_path / "file")
    gram, _, _ = exact_statistics(rows, targets)
    for start, stop, strip in found.strips():
        assert strip.tolist() == [[float(v) for v in row[:stop]] for row in gram[start:stop]]
    found.remove(rows[:3], targets[:3])  # it is memory of its own, and no longer the file's
    assert found.digest() == fitted(rows[3:], targets[3:]).digest()
    assert sums_file.read_sums(tmp_path / "file").digest() == fitted(rows, targets).digest()


@pytest.mark.parametrize("entry", [2**52 + 1, -(2**52) - 1, 2**53 + 1, 2**62, -(2**63)])
@pytest.mark.parametrize("name", ["gram", "cross"])
def test_words_that_float64_does_not_hold_are_refused(
    tmp_path: Path, entry: int, name: str
) -> None:
    arrays = {key: value.copy() for key, value in sums_of(70).to_arrays().items()}
    arrays[name].reshape(-1)[1] = entry
    files.write_arrays(tmp_path / "file", arrays)
    with pytest.raises(FormatError, match=rf"'{name}' passes 2\^52"):
        sums_file.read_sums(tmp_path / "file")


def test_a_file_is_known_by_its_sums(tmp_path: Path) -> None:
    path, sums, other = tmp_path / "file", sums_of(40), fitted(*random_rows(90, 40, 2, seed=1))
    sums_file.write_sums(path, sums)
    assert sums_file.holds(path, sums.digest())
    assert not sums_file.holds(path, other.digest())
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):  # head, words and header alike
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert not sums_file.holds(path, sums.digest()), at
    for changed in (whole[:-1], whole + b" ", b""):
        path.write_bytes(changed)
        assert not sums_file.holds(path, sums.digest())


def test_a_file_of_the_same_sums_that_says_more_is_another(tmp_path: Path) -> None:
    path, sums = tmp_path / "file", sums_of(40)
    safetensors.numpy.save_file(sums.to_arrays(), path, {"name": "somebody"})
    assert sums_file.read_sums(path).digest() == sums.digest()
    assert not sums_file.holds(path, sums.digest())
    more = {**sums.to_arrays(), "more": np.arange(3)}
    files.write_arrays(path, more)
    assert not sums_file.holds(path, sums.digest())
