"""A small study from end to end: its values, its cache, its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.audit.scenes import scene
from tests.report.test_report import Page, is_offline

from efface.audit import study as studies
from efface.audit.study import Settings, Study, contradictions
from efface.report.audit import audit_report

SMALL = Settings(
    seeds=2,
    worlds=8,
    targets=10,
    canaries=40,
    relearn=100,
    methods=("original", "retrain", "exact"),
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def values(cache: Path) -> dict:
    return Study(scene(), SMALL, cache=cache).run()


def test_the_values_are_json_and_name_every_method(values: dict) -> None:
    json.dumps(values, allow_nan=False)
    assert tuple(values["methods"]) == SMALL.methods
    assert values["contradictions"] == []
    assert values["num_forgotten"] == 30  # a tenth of 300
    for method in values["methods"].values():
        assert {"lira", "rmia", "white-box", "difference"} <= set(method["attacks"])
        assert {"white-box", "loss"} <= set(method["canary"])
        assert method["readouts"]["error_test"]["num"] == 2


def test_seeds_give_the_retrained_model_a_spread(values: dict) -> None:
    readouts = values["methods"]["retrain"]["readouts"]
    assert readouts["entropy_attack"]["std"] > 0
    assert values["methods"]["exact"]["readouts"]["error_forgotten"] == readouts["error_forgotten"]


def test_a_finished_study_is_read_and_not_measured_again(
    values: dict, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(studies, "build_worlds", refuse)
    monkeypatch.setattr(studies, "Reader", refuse)
    again = Study(scene(), SMALL, cache=cache).run()
    assert again["methods"] == values["methods"]
    with pytest.raises(AssertionError, match="measured again"):
        Study(scene(), SMALL, cache=cache, identity="another model").run()


def test_a_claim_is_contradicted_only_by_attacks_it_covers() -> None:
    strong = {"refuted_epsilon_bound": 2.0}
    told = {
        "claimed_epsilon": 1.0,
        "canary": {"a": strong | {"covered": True}, "b": strong | {"covered": False}},
        "attacks": {"c": {"refuted_epsilon_bound": 0.5, "covered": True}},
    }
    assert [c["attack"] for c in contradictions({"m": told})] == ["a"]


def test_the_page_is_offline_and_shows_the_numbers(values: dict) -> None:
    page = audit_report(values, "A title", "efface compare digits", "digits").render()
    assert is_offline(page)
    text = " ".join(Page(page).text)
    assert f"{values['methods']['original']['attacks']['lira']['auc']:.3f}" in text
    assert "by any attack here" in text
    lie = {"method": "exact", "game": "canary", "attack": "white-box"}
    numbers = {"claimed_epsilon": 0.0, "refuted_epsilon_bound": 2.0}
    refuted = audit_report(values | {"contradictions": [lie | numbers]}, "t", "c", "s").render()
    assert "by any attack here" not in refuted
