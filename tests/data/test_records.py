"""The values: identity, subsets, and the core split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.cases import encoded

from efface.data.images import ArrayImage, BytesImage, FileImage, digest_of
from efface.data.record import Record, Skipped, Split
from efface.data.records import Records
from efface.errors import EffaceError, RecordError, RequestError


def record(name: str, label: str = "a", split: Split = Split.USER, **fields: str) -> Record:
    pixels = np.frombuffer(name.encode().ljust(12, b"\0")[:12], np.uint8).reshape(1, 2, 2, 3)
    values = {"owner": f"owner of {name}", "cohort": "default", "digest": digest_of(pixels[0])}
    return Record(
        id=name, label=label, split=split, source=ArrayImage(pixels, 0), **(values | fields)
    )


def small() -> Records:
    return Records(
        [
            record("r0", "b", Split.CORE),
            record("r1", "a", Split.USER, owner="ann", cohort="may"),
            record("r2", "b", Split.USER, owner="bob"),
            record("r3", "a", Split.USER, owner="ann"),
            record("r4", "c", Split.TEST),
        ]
    )


# one record

RAMP = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5


def test_record_of_a_vanished_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    data = encoded(Image.fromarray(RAMP))
    file.write_bytes(data)
    made = replace(record("x"), source=FileImage(file), digest=digest_of(data))
    np.testing.assert_array_equal(made.image(), RAMP)
    file.unlink()
    with pytest.raises(RecordError, match=r"record 'x'.*x\.png is missing.*Fix"):
        made.image()


def test_record_of_a_swapped_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(encoded(Image.fromarray(RAMP)))
    made = replace(record("x"), source=FileImage(file), digest=digest_of(file.read_bytes()))
    file.write_bytes(encoded(Image.fromarray(RAMP[::-1].copy())))
    with pytest.raises(RecordError, match="changed after it was read"):
        made.image()


def test_record_with_a_truncated_body_is_named() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), "JPEG")[:2000]
    made = replace(record("cut"), source=BytesImage(data), digest=digest_of(data))
    with pytest.raises(RecordError, match=r"record 'cut'.*truncated"):
        made.image()


def test_image_is_the_callers_own_copy() -> None:
    made = record("r")
    made.image()[:] = 0
    assert made.image().any()


def test_records_are_equal_wherever_they_lie() -> None:
    assert record("r") == record("r")
    assert hash(record("r")) == hash(record("r"))
    assert record("r") != record("r", digest="0")
    assert hash(replace(record("r"), extra={"camera": [1]})) == hash(record("r"))


# the sequence


def test_columns_are_in_order() -> None:
    records = small()
    assert records.classes == ("a", "b", "c")
    assert records.labels.tolist() == [1, 0, 1, 0, 2]
    assert records.labels.dtype == np.int64
    assert records.ids == ("r0", "r1", "r2", "r3", "r4")
    assert records.owners[1:4] == ("ann", "bob", "ann")
    assert records.digests == tuple(r.digest for r in records)


def test_splits_keep_the_classes() -> None:
    records = small()
    assert records.core.ids == ("r0",)
    assert records.user.ids == ("r1", "r2", "r3")
    assert records.test.ids == ("r4",)
    assert records.core.labels.tolist() == [1]
    assert records.core.classes == records.test.classes == ("a", "b", "c")


def test_given_classes_set_the_order() -> None:
    records = Records(small(), ["c", "b", "a", "unused"])
    assert records.labels.tolist() == [1, 2, 1, 2, 0]


def test_indexing() -> None:
    records = small()
    assert records[1].id == "r1"
    assert records[np.int64(-1)].id == "r4"
    assert records[1:3].ids == ("r1", "r2")
    assert records[[3, -5]].ids == ("r3", "r0")
    assert records[np.array([2, 1])].ids == ("r2", "r1")
    assert records[records.labels == 0].ids == ("r1", "r3")
    assert records[[]].ids == ()
    assert records[[]].classes == records.classes


def test_wrong_indices() -> None:
    records = small()
    with pytest.raises(IndexError):
        records[5]
    with pytest.raises(IndexError, match="mask of 2"):
        records[[True, False]]
    with pytest.raises(TypeError):
        records[np.array([0.5])]
    with pytest.raises(RecordError, match="2 records have this id"):
        records[[1, 1]]


def test_select_intersects_and_keeps_order() -> None:
    records = small()
    assert records.select(ids=["r3", "r1"]).ids == ("r1", "r3")
    assert records.select(owner="ann").ids == ("r1", "r3")
    assert records.select(owner="ann", cohort="may").ids == ("r1",)
    assert records.select(label=["a", "c"]).ids == ("r1", "r3", "r4")
    assert records.user.select(label="c").ids == ()
    assert records.select() == records


@pytest.mark.parametrize("criterion", ["ids", "owner", "cohort", "label"])
def test_select_refuses_names_nobody_bears(criterion: str) -> None:
    with pytest.raises(RequestError, match="'nobody'"):
        small().select(**{criterion: "nobody"})


def test_where_and_without() -> None:
    records = small()
    assert records.where(lambda r: r.owner == "bob").ids == ("r2",)
    assert records.without(["r0", "r4", "gone"]).ids == ("r1", "r2", "r3")
    assert records.without("r0").ids == ("r1", "r2", "r3", "r4")


def test_sum_keeps_the_left_class_indices() -> None:
    left = Records([record("x", "m")], skipped=[Skipped("s", "why")])
    both = left + Records([record("y", "b"), record("z", "m")])
    assert both.classes == ("m", "b")
    assert both.labels.tolist() == [0, 1, 0]
    assert both.skipped == (Skipped("s", "why"),)
    with pytest.raises(RecordError, match="have this id"):
        left + left


def test_equality_and_hash() -> None:
    assert small() == small()
    assert hash(small()) == hash(small())
    assert small() != small()[:4]
    assert small() != Records(small(), ["c", "b", "a"])


def test_repr_counts() -> None:
    assert repr(small()) == "Records(5 in 3 classes: core 1, user 3, test 1)"
    page = Records([record("x", "<b>")])._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "<th>a</th><td>0</td><td>2</td><td>0</td>" in small()._repr_html_()
    many = Records([record(f"r{i}", f"c{i:02d}") for i in range(33)])
    assert "and 3 more classes" in many._repr_html_()


# what Records promises


def test_duplicate_ids_are_refused() -> None:
    with pytest.raises(RecordError, match="'x': 2 records have this id"):
        Records([record("x"), record("x", "b")])


def test_unknown_labels_are_refused() -> None:
    with pytest.raises(RecordError, match="'x': label 'a' is not one of the classes"):
        Records([record("x", "a")], ["b"])


def test_classes_listed_twice_are_refused() -> None:
    with pytest.raises(EffaceError, match="'a' is listed 2 times"):
        Records([record("x", "a")], ["a", "a"])


def test_an_image_in_core_and_user_is_refused() -> None:
    with pytest.raises(RecordError, match="'y': the same image is core data, as 'x'"):
        Records([record("x", split=Split.CORE, digest="d"), record("y", digest="d")])


def test_copies_between_training_and_test_are_noted() -> None:
    records = Records([record("x", digest="d"), record("y", split=Split.TEST, digest="d")])
    assert records.notes == ("the same image is in training and test data: 'x', 'y'",)
    assert records.user.notes == ()


def test_copies_in_user_data_are_noted_when_label_or_owner_differ() -> None:
    same = [record("x", digest="d", owner="o"), record("y", digest="d", owner="o")]
    assert Records(same).notes == ()
    (note,) = Records([same[0], replace(same[1], owner="p")]).notes
    assert "more than one owner" in note
    assert "'x', 'y'" in note
    (note,) = Records([same[0], replace(same[1], label="b")]).notes
    assert "more than one label" in note


# the core split


def many(num_owners: int, labels: str, copies: bool = False) -> Records:
    made = [record(f"r{i}", label, owner=f"o{i % num_owners}") for i, label in enumerate(labels)]
    if copies:
        made = [replace(r, digest=made[i - i % 2].digest) for i, r in enumerate(made)]
    return Records(made, ["a", "b", "c"])


@given(st.text("abc", min_size=1, max_size=40), st.floats(0, 1), st.integers(1, 8), st.booleans())
def test_owners_stay_together_and_copies_apart_from_core(
    labels: str, fraction: float, num_owners: int, copies: bool
) -> None:
    records = many(num_owners, labels, copies)
    moved = records.with_core_fraction(fraction)
    assert not set(moved.core.owners) & set(moved.user.owners)
    assert not set(moved.core.digests) & set(moved.user.digests)
    assert {*moved.ids, *(s.id for s in moved.skipped)} == set(records.ids)
    assert moved.with_core_fraction(fraction) == moved


def test_core_fraction_is_about_its_target_in_every_class() -> None:
    moved = many(150, "abc" * 200).with_core_fraction(0.3)
    counts = np.bincount(moved.core.labels)
    np.testing.assert_allclose(counts, 60, atol=40)  # of 50 owners a class, four images each


def test_core_fraction_leaves_test_and_core_alone() -> None:
    records = Records(
        [record(f"t{i}", split=Split.TEST) for i in range(10)]
        + [record(f"c{i}", split=Split.CORE) for i in range(3)]
        + [record(f"u{i}", owner=f"o{i}") for i in range(40)]
    )
    assert records.with_core_fraction(0).core.ids == ("c0", "c1", "c2")
    moved = records.with_core_fraction(0.5)
    assert set(moved.core.ids) > {"c0", "c1", "c2"}
    assert moved.test.ids == records.test.ids
    assert not len(records.with_core_fraction(1).user)


def test_core_fraction_depends_on_the_seed_and_on_no_other_record() -> None:
    records = many(100, "abc" * 60)
    core = set(records.with_core_fraction(0.3, seed=1).core.ids)
    assert core != set(records.with_core_fraction(0.3, seed=2).core.ids)
    shuffled = records[np.random.default_rng(0).permutation(len(records))]
    assert set(shuffled.with_core_fraction(0.3, seed=1).core.ids) == core
    fewer = records.without(["r7"]).with_core_fraction(0.3, seed=1)
    assert set(fewer.core.ids) == core - {"r7"}


def test_a_core_fraction_is_a_fraction() -> None:
    with pytest.raises(EffaceError, match="30 is not a fraction"):
        small().with_core_fraction(30)


def test_core_fraction_of_nothing_is_nothing() -> None:
    assert len(small()[[]].with_core_fraction(0.5)) == 0
