"""``device=`` of the classifier: where its network is computed, and the same classifier wherever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from tests.devices import every_device, watched
from tests.door.places import (
    CORE,
    IMAGES,
    LABELS,
    OWNERS,
    TEST_IMAGES,
    classifier,
    digests,
    network,
    without_core,
)

from efface import ForgettingClassifier
from efface.arithmetic.integer.graph import IntegerGraph
from efface.arithmetic.integer.self_test import NotExact
from efface.errors import EffaceError
from efface.export.release import export
from efface.network.device import CPU, TWIN, found_devices

STAY = OWNERS != "u1"


def taught(device: Any, keep: Any = slice(None)) -> ForgettingClassifier:
    return without_core(device=device).fit(IMAGES[keep], LABELS[keep], owners=OWNERS[keep])


@every_device
def test_a_classifier_is_the_same_wherever_it_is_computed(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, used = taught("cpu", slice(0, 40)), watched(monkeypatch)
    there = taught(device, slice(0, 40))
    assert digests(there) == digests(here)
    for one in (here, there):
        one.add(IMAGES[40:], LABELS[40:], owners=OWNERS[40:])
        one.forget(owner="u1")
    assert digests(there) == digests(here) == digests(taught("cpu", STAY))
    want = here.decision_function(TEST_IMAGES)
    np.testing.assert_array_equal(there.decision_function(TEST_IMAGES), want)
    assert device in used
    used.clear()
    there.save(tmp_path / "model")
    np.testing.assert_array_equal(there.decision_function(TEST_IMAGES), want)
    assert device in used


@every_device
def test_a_folder_is_computed_where_it_is_asked_for(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where it was trained: another machine may have other devices."""
    want = taught(device).save(tmp_path / "model").decision_function(TEST_IMAGES)
    used = watched(monkeypatch)
    for name in ("cpu", str(device)):
        back = ForgettingClassifier.load(tmp_path / "model", module=network(), device=name)
        assert back.device == name
        assert clone(back).device == name
        used.clear()
        np.testing.assert_array_equal(back.decision_function(TEST_IMAGES), want)
        assert used == {torch.device(name)}
    used.clear()
    back.add(TEST_IMAGES[:3], LABELS[:3], owners=["new"] * 3)
    assert device in used
    assert ForgettingClassifier.load(tmp_path / "model", module=network()).device == "auto"


@every_device
def test_a_copy_predicts_where_it_is_asked_for(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clf = taught("cpu").save(tmp_path / "model")
    export(tmp_path / "model", ["files"], tmp_path / "copy", module=network())
    used = watched(monkeypatch)
    copy = ForgettingClassifier.from_pretrained(
        tmp_path / "copy", module=network(), device=str(device)
    )
    np.testing.assert_array_equal(
        copy.decision_function(TEST_IMAGES), clf.decision_function(TEST_IMAGES)
    )
    assert device in used


@every_device
def test_when_a_class_leaves_the_rest_stays_on_its_device(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    clf = taught(device)
    clf.forget(label="cat")
    clf.predict(TEST_IMAGES)  # the first time it is compared with the CPU
    used = watched(monkeypatch)
    clf.predict(TEST_IMAGES)
    assert list(clf.classes_) == ["ape", "bee"]
    assert used == {device}


@every_device
def test_core_data_and_tangents_are_computed_there(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "mps":
        pytest.skip("the tangent part needs float64")
    used = watched(monkeypatch)

    def made(name: str) -> np.ndarray:
        clf = classifier(user="tangent", mu=0.1, device=name).fit(IMAGES, LABELS, core=CORE)
        return clf.decision_function(TEST_IMAGES)

    there = made(str(device))
    assert device in used
    np.testing.assert_allclose(there, made("cpu"), rtol=1e-3, atol=1e-3)  # floats: but for rounding


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    taught("cpu").save(tmp_path / "model")
    missing = {"cuda", "mps"} - {device.type for device in found_devices()}
    for name in missing:
        for attempt in (
            lambda name=name: taught(name),
            lambda name=name: ForgettingClassifier.load(
                tmp_path / "model", module=network(), device=name
            ),
        ):
            with pytest.raises(EffaceError, match=f"torch finds no {name} here, only") as caught:
                attempt()
            assert 'device="cpu"' in caught.value.fix


class _Rounding(IntegerGraph):
    """Whose single operations are not IEEE's."""

    def _rounded(self, number, op, y):  # type: ignore[no-untyped-def]
        return super()._rounded(number, op, y + 0.5)


def test_a_device_that_is_off_is_refused_at_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught("cpu").save(tmp_path / "model")
    real = IntegerGraph.to

    def off(self: IntegerGraph, device: torch.device) -> IntegerGraph:
        made = real(self, device)
        made.__class__ = _Rounding
        return made

    monkeypatch.setattr(IntegerGraph, "to", off)
    ForgettingClassifier.load(tmp_path / "model", module=network(), device=str(CPU))
    with pytest.raises(NotExact, match="cpu does not compute integers exactly"):
        ForgettingClassifier.load(tmp_path / "model", module=network(), device=str(TWIN))
