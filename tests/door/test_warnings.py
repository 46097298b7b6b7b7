"""What the command line says as a note is a warning in Python, at the caller's own line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.door.places import (
    CORE,
    CORE_IMAGES,
    CORE_NUMBERS,
    IMAGES,
    LABELS,
    NAMES,
    OWNERS,
    TEST_IMAGES,
    TEST_LABELS,
    classifier,
    fitted,
)

from efface import EffaceWarning, Records

pd = pytest.importorskip("pandas")

COLUMN = "the column 'fotograf' means nothing to efface"


def frame(images: np.ndarray, labels: np.ndarray, **columns: Any) -> Any:
    return pd.DataFrame({"image": list(images), "label": labels, **columns})


def said(act: Any) -> list[str]:
    """The warnings of ours, each of which must point here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    ours = [one for one in caught if issubclass(one.category, EffaceWarning)]
    assert all(Path(one.filename) == Path(__file__) for one in ours)
    return [str(one.message) for one in ours]


def test_nothing_is_said_where_nothing_is_odd() -> None:
    assert said(lambda: classifier().fit(IMAGES, LABELS, owners=OWNERS, core=CORE)) == []


def test_fit_names_a_column_that_means_nothing() -> None:
    """Passed over in silence, each image would be its own owner, and a request reach one of many."""
    given = frame(IMAGES, LABELS, fotograf=OWNERS)
    (text,) = said(lambda: classifier().fit(given, core=CORE))
    assert text.startswith(COLUMN)


def test_fit_says_what_the_reader_of_records_said() -> None:
    records = Records.from_dataframe(frame(IMAGES, LABELS, fotograf=OWNERS))
    (text,) = said(lambda: classifier().fit(records, core=CORE))
    assert text.startswith(COLUMN)
    remark = Records(records, records.classes, remarks=["the array 'licence' was not used"])
    assert said(lambda: classifier().fit(remark, core=CORE))[0] == remark.remarks[0]


def test_fit_names_a_column_of_core_data() -> None:
    core = Records.from_dataframe(frame(CORE_IMAGES, NAMES[CORE_NUMBERS], fotograf=["x"] * 18))
    (text,) = said(lambda: classifier().fit(IMAGES, LABELS, owners=OWNERS, core=core))
    assert text.startswith(COLUMN)


def test_fit_names_owners_that_look_alike() -> None:
    owners = ["Bob", "bob", *OWNERS[2:]]
    (text,) = said(lambda: classifier().fit(IMAGES, LABELS, owners=owners, core=CORE))
    assert "look alike, and are different people here: 'Bob', 'bob'" in text


def test_fit_names_what_it_set_aside() -> None:
    images = [*IMAGES, b"no image"]
    (text,) = said(
        lambda: classifier(skip_bad=True).fit(images, [*LABELS, "cat"], core=CORE, owners=None)
    )
    assert text.startswith("1 files set aside, the first ")


def test_of_many_notes_some_are_said_and_the_column_is_among_them() -> None:
    owners = [name for i in range(10) for name in (f"P{i}", f"p{i}")]
    given = frame(IMAGES[:20], LABELS[:20], owner=owners, fotograf=["x"] * 20)
    texts = said(lambda: classifier().fit(given, core=CORE))
    assert texts[0].startswith(COLUMN)
    assert len(texts) == 6
    assert texts[-1] == "and 6 more notes like these"


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_add_names_them_too(where: str, tmp_path: Path) -> None:
    clf = fitted()
    if where == "folder":
        clf.save(tmp_path / "model")
    given = frame(TEST_IMAGES[:3], TEST_LABELS[:3], fotograf=OWNERS[:3])
    (text,) = said(lambda: clf.add(given))
    assert text.startswith(COLUMN)
    alike = frame(TEST_IMAGES[3:6], TEST_LABELS[3:6], owner=["U1", "new", "u2"])
    assert said(lambda: clf.partial_fit(alike)) == [
        "the new owner 'U1' looks like 'u1', and is another person here"
    ]


def test_questions_name_the_columns_of_data_that_they_read(tmp_path: Path) -> None:
    clf = fitted().save(tmp_path / "model")
    arrays = {"images": IMAGES, "labels": LABELS, "owners": OWNERS, "fotograf": OWNERS}
    np.savez(tmp_path / "data.npz", **arrays)
    (text,) = said(lambda: clf.verify(images=str(tmp_path / "data.npz")))
    assert text.startswith(COLUMN)
