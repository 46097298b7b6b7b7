"""The front door: the same model as by parts, and forgetting equals never having been given."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests.door.places import (
    COHORTS,
    CORE,
    CORE_IMAGES,
    CORE_NUMBERS,
    IMAGES,
    LABELS,
    NAMES,
    NUMBERS,
    OWNERS,
    TEST_IMAGES,
    TEST_LABELS,
    TEST_NUMBERS,
    classifier,
    digests,
    fitted,
)
from torch.utils.data import Dataset

from efface import ForgettingClassifier
from efface.data.records import Records
from efface.errors import EffaceError, GuaranteeError, RecordError, RequestError
from efface.guarantee.certificates import ExactCertificate
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core


@pytest.fixture(params=["memory", "folder"])
def settle(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Leaves a classifier in memory, or moves it into a folder."""
    places = iter(range(99))

    def move(clf: ForgettingClassifier) -> ForgettingClassifier:
        if request.param == "folder":
            path = tmp_path / str(next(places))
            clf.save(path)
            return ForgettingClassifier.load(path)
        return clf

    return move


# --- the same as by parts -------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["compact", "tangent"])
def test_it_is_the_model_that_the_parts_make(user: str) -> None:
    records = Records.from_arrays(IMAGES, LABELS, classes=NAMES)
    public = Records.from_arrays(*CORE, split="core", classes=NAMES)
    core = Core("cnn", classes=tuple(NAMES)).fit(public)
    options = {"features": 60} if user == "compact" else {}
    parts = MixedLinear(core, user, **options).fit(records, replay=public)
    clf = classifier(user=user).fit(IMAGES, LABELS, core=CORE)
    np.testing.assert_array_equal(clf.decision_function(TEST_IMAGES), parts.logits(TEST_IMAGES))
    np.testing.assert_array_equal(clf.predict_proba(TEST_IMAGES), parts.predict_proba(TEST_IMAGES))
    assert clf.predict(TEST_IMAGES).tolist() == parts.predict(TEST_IMAGES).tolist()
    named = Records.from_arrays(TEST_IMAGES, TEST_LABELS, classes=NAMES)
    assert clf.score(TEST_IMAGES, TEST_LABELS) == pytest.approx(
        parts.accuracy(named)
    )  # float32 mean
    assert clf.score(named) == clf.score(TEST_IMAGES, TEST_LABELS) > 0.9


class Pairs(Dataset):
    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, i: int) -> tuple[Image.Image, str]:
        return Image.fromarray(IMAGES[i]), str(LABELS[i])


def test_every_way_to_give_the_same_pixels_is_the_same_classifier(tmp_path: Path) -> None:
    want = digests(classifier().fit(IMAGES, LABELS, core=CORE))
    paths = [tmp_path / f"{i}.png" for i in range(len(IMAGES))]
    for path, pixels in zip(paths, IMAGES, strict=True):
        Image.fromarray(pixels).save(path)
    frame = pd.DataFrame({"path": map(str, paths), "label": LABELS, "owner": OWNERS})
    for given in (
        (list(IMAGES), list(LABELS)),
        ([Image.fromarray(pixels) for pixels in IMAGES], pd.Series(LABELS)),
        (torch.from_numpy(IMAGES), LABELS),
        (np.repeat(IMAGES[..., None], 3, 3), LABELS),  # in colour, the network wants gray
        ([*paths[:20], *IMAGES[20:]], LABELS),
        (paths, LABELS),
        (Pairs(),),
        (frame,),
        (Records.from_arrays(IMAGES, LABELS),),
    ):
        assert digests(classifier().fit(*given, core=CORE)) == want
    clf = classifier().fit(frame, core=CORE)
    assert clf.score(frame) == clf.score(Pairs()) == clf.score(IMAGES, LABELS)
    assert set(clf.records_.owners) == set(OWNERS)


def test_what_the_caller_does_to_arrays_later_changes_nothing(tmp_path: Path) -> None:
    images = IMAGES.copy()
    clf = classifier().fit(images, LABELS, core=CORE)
    images[:] = 0
    assert digests(clf) == digests(classifier().fit(IMAGES, LABELS, core=CORE))
    clf.save(tmp_path / "model")  # looks at the images again
    assert clf.verify(retrain=True, images=IMAGES)["ok"]


# --- forgetting -----------------------------------------------------------------------------------

REQUESTS: dict[str, tuple[dict[str, Any], np.ndarray]] = {
    "owner": ({"owner": "u3"}, OWNERS != "u3"),
    "cohort": ({"cohort": "week1"}, COHORTS != "week1"),
    "label": ({"label": "bee"}, LABELS != "bee"),
    "ids": ({"ids": ["p7", "p8"]}, ~np.isin(np.arange(45), [7, 8])),
}
IDS = np.array([f"p{i}" for i in range(45)])


@pytest.mark.parametrize("kind", REQUESTS)
def test_forgetting_equals_never_having_been_given(kind: str, settle: Any) -> None:
    whom, keep = REQUESTS[kind]
    clf = settle(fitted_with_ids(slice(None)))
    receipt = clf.forget(**whom)
    never = fitted_with_ids(keep)
    assert isinstance(receipt, ExactCertificate)
    assert receipt.weights_digest == digests(never)[0]
    assert digests(clf) == digests(never)
    assert receipt.num_forgotten == int((~keep).sum())
    assert clf.records_.ids == never.records_.ids
    np.testing.assert_array_equal(
        clf.decision_function(TEST_IMAGES), never.decision_function(TEST_IMAGES)
    )


def fitted_with_ids(keep: Any) -> ForgettingClassifier:
    columns = {"owners": OWNERS[keep], "cohorts": COHORTS[keep], "ids": IDS[keep]}
    return classifier().fit(IMAGES[keep], LABELS[keep], **columns, core=CORE)


def test_adding_equals_having_been_given_at_once(settle: Any) -> None:
    first, rest = slice(0, 30), slice(30, None)
    clf = settle(fitted(first))
    clf.add(IMAGES[rest], LABELS[rest], owners=OWNERS[rest])
    assert digests(clf) == digests(fitted())
    clf.forget(owner="u8")
    clf.partial_fit(IMAGES[40:], LABELS[40:], owners=OWNERS[40:], **_again(clf))
    assert digests(clf) == digests(fitted())
    assert classifier().partial_fit(IMAGES, LABELS, core=CORE).classes_.tolist() == NAMES.tolist()


def _again(clf: ForgettingClassifier) -> dict[str, Any]:
    """What was forgotten is refused, in memory and in a folder."""
    with pytest.raises(RecordError, match="was forgotten here"):
        clf.add(IMAGES[40:], LABELS[40:])
    return {"allow_reingest": True}


def test_what_cannot_be_added(settle: Any) -> None:
    clf = settle(fitted())
    before = digests(clf)
    new = TEST_IMAGES[:2]
    for images, labels, text in (
        (IMAGES[:1], LABELS[:1], "already"),
        (new, ["dog", "cat"], "label 'dog' is none of"),
        (CORE_IMAGES[:1], LABELS[:1], "already|core data"),
        (new, [0, 1], "these labels are whole numbers, the classes names"),
        (new, ["cat"], "1 labels for 2 images"),
        (Records.from_arrays(new, ["cat", "bee"], split="core"), None, "is a core record"),
    ):
        with pytest.raises(EffaceError, match=text):
            clf.add(images, labels)
    assert digests(clf) == before


def test_a_request_that_cannot_be_says_why(settle: Any) -> None:
    clf = settle(fitted())
    with pytest.raises(RequestError, match="no user record has owner 'nobody'"):
        clf.forget(owner="nobody")
    with pytest.raises(RequestError, match="exactly one"):
        clf.forget()
    with pytest.raises(RequestError, match="exactly one"):
        clf.forget(owner="u1", label="cat")
    assert len(clf.records_) == 45
    clf.forget(everything=True)
    assert len(clf.records_) == 0
    np.testing.assert_array_equal(
        clf.decision_function(TEST_IMAGES), clf._home.model.core_logits(TEST_IMAGES)
    )


def test_names_are_tidy_and_those_alike_are_pointed_out(settle: Any) -> None:
    owners = ["Anna ", "anna", *OWNERS[2:]]
    clf = settle(classifier().fit(IMAGES, LABELS, owners=owners, core=CORE))
    with pytest.warns(UserWarning, match="also an owner 'anna', who is not meant"):
        assert clf.forget(owner=" Anna").num_forgotten == 1
    numbers = settle(classifier().fit(IMAGES, LABELS, owners=range(45), core=CORE))
    assert numbers.forget(owner=17).num_forgotten == 1
    assert numbers.forget(ids=numbers.records_.ids[:3]).num_forgotten == 3


# --- core -----------------------------------------------------------------------------------------


def test_somebody_in_core_is_told_that_core_stays(settle: Any) -> None:
    core = (*CORE, ["u3"] * 2 + ["agency"] * 16)
    clf = settle(classifier().fit(IMAGES, LABELS, owners=OWNERS, core=core))
    with pytest.raises(GuaranteeError, match="2 images of this owner are core data"):
        clf.forget(owner="u3")
    receipt = clf.forget(owner="u3", user_part_only=True)
    assert (receipt.num_forgotten, receipt.num_in_core) == (5, 2)


def test_core_by_a_share_of_the_owners() -> None:
    clf = classifier(core_fraction=0.5, seed=3).fit(IMAGES, LABELS, owners=OWNERS)
    want = Records.from_arrays(IMAGES, LABELS, owners=OWNERS, core_fraction=0.5, seed=3)
    assert 0 < len(want.core) < 45
    assert clf.records_.ids == want.user.ids
    assert clf._home.model.core.records.ids == want.core.ids


def test_the_built_in_network_needs_core_data() -> None:
    with pytest.raises(EffaceError, match="knows nothing yet") as caught:
        classifier(classes=NAMES).fit(IMAGES, LABELS)
    assert "core=(images, labels)" in caught.value.fix
    with pytest.raises(RecordError, match="has no core record"):
        classifier().fit(IMAGES, LABELS, core=(CORE_IMAGES, ["ape", "bee"] * 9))
    with pytest.raises(RecordError, match="the same image is core data"):
        classifier().fit(IMAGES, LABELS, core=(IMAGES[:9], LABELS[:9]))
    with pytest.raises(EffaceError, match="core has 4 parts"):
        classifier().fit(IMAGES, LABELS, core=(1, 2, 3, 4))


# --- labels ---------------------------------------------------------------------------------------


def test_labels_come_back_as_they_were_given(settle: Any) -> None:
    values = np.array([2, 10, 1])
    core = (CORE_IMAGES, values[CORE_NUMBERS])
    clf = settle(classifier().fit(IMAGES, values[NUMBERS], core=core))
    assert clf.classes_.tolist() == [1, 2, 10]
    assert clf.classes_.dtype == np.int64
    predicted = clf.predict(TEST_IMAGES)
    assert predicted.dtype == np.int64
    assert clf.score(TEST_IMAGES, values[TEST_NUMBERS]) == np.mean(
        predicted == values[TEST_NUMBERS]
    )
    with pytest.raises(EffaceError, match="labels are names, the classes whole numbers"):
        clf.score(TEST_IMAGES, TEST_LABELS)
    clf.forget(label=10)
    assert 10 not in [int(label) for label in clf.records_.column("label")]
    text = classifier().fit(
        IMAGES, values[NUMBERS].astype(str), core=(CORE_IMAGES, core[1].astype(str))
    )
    assert settle(text).classes_.tolist() == ["1", "10", "2"]


def test_the_class_list_has_the_callers_order() -> None:
    clf = classifier(classes=["cat", "dodo", "ape", "bee"]).fit(IMAGES, LABELS, core=CORE)
    assert clf.classes_.tolist() == ["cat", "dodo", "ape", "bee"]
    assert clf.predict_proba(TEST_IMAGES).shape == (30, 4)
    assert clf.score(TEST_IMAGES, TEST_LABELS) > 0.9
    for labels, classes, text in (
        (LABELS, ["ape", "bee"], "label 'cat' is not one of the classes"),
        (
            NUMBERS,
            ["ape", "bee", "0", "1", "2"],
            "labels are whole numbers, and the classes are names",
        ),
    ):
        core = (CORE_IMAGES, np.asarray(labels)[:18])
        with pytest.raises(EffaceError, match=text):
            classifier(classes=classes).fit(IMAGES, labels, core=core)


# --- odd inputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (IMAGES / 255, LABELS, "pixels are float64"),
        (IMAGES, LABELS[:-1], "44 labels for 45 images"),
        (IMAGES, None, "the images have no labels"),
        (IMAGES.reshape(45, 64), LABELS, r"an array of shape \(45, 64\) holds no images"),
        ([], [], "no images were given"),
        ("photos/", None, "Records.open"),
        ([IMAGES[0], b"GIF89a"], ["ape", "bee"], "cannot be read|not an image"),
        ([IMAGES[0], IMAGES[1, :5]], ["ape", "bee"], "after preprocessing, others are"),
        (Records.digits().test[:4], None, "no core record|only test records"),
        (Records.digits(), ["1"], "have their labels and owners already"),
    ],
)
def test_what_is_no_training_data_is_told(images: Any, labels: Any, text: str) -> None:
    clf = classifier()
    with pytest.raises(EffaceError, match=text):
        clf.fit(images, labels, core=None if isinstance(images, Records) else CORE)
    with pytest.raises(EffaceError, match="not fitted"):
        clf.predict(IMAGES)


def test_odd_pictures_to_predict() -> None:
    clf = fitted()
    assert clf.predict([]).shape == (0,)
    assert clf.predict_proba(IMAGES[:0]).shape == (0, 3)
    for images in (IMAGES[:2] / 255, [np.full((8, 8), np.nan)]):
        with pytest.raises(RecordError, match="pixels are float64"):
            clf.predict(images)
    with pytest.raises(EffaceError, match="3 labels for 2 images"):
        clf.score(IMAGES[:2], LABELS[:3])
    with pytest.raises(EffaceError, match="no images to score on"):
        clf.score([], [])
    with pytest.raises(EffaceError, match="the images have no labels"):
        clf.score(IMAGES)
    buffer = io.BytesIO()
    Image.fromarray(IMAGES[0]).convert("P").save(buffer, "PNG")
    want = clf.decision_function(IMAGES[:1])
    np.testing.assert_array_equal(clf.decision_function([buffer.getvalue()]), want)


def test_bad_images_can_be_set_aside() -> None:
    broken = [*IMAGES, b"no image"]
    clf = classifier(skip_bad=True).fit(broken, [*LABELS, "cat"], core=CORE)
    assert digests(clf) == digests(classifier().fit(IMAGES, LABELS, core=CORE))
