"""The demo, run once: its numbers, its files, and that the page agrees with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.report.test_report import Page, is_offline

from efface.data.records import Records
from efface.pipeline import demo
from efface.pipeline.config import load_config
from efface.workspace.published import load


@dataclass(frozen=True)
class Story:
    out: Path
    values: dict
    progress: list[tuple[float, str]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    out = tmp_path_factory.mktemp("demo")
    seen: list[tuple[float, str]] = []
    values = demo.run(out, lambda fraction, message: seen.append((fraction, message)))
    return Story(out, values, seen)


def test_the_values_have_the_promised_shape(story: Story) -> None:
    promised = {"core", "last_layer", "user", "after", "retrained"}
    assert promised <= set(story.values["accuracy"])
    assert {"kind", "seconds", "passes", "certificate"} <= set(story.values["requests"][0])
    assert Path(story.values["report"]) == story.out / "report.html"
    json.dumps(story.values, allow_nan=False)


def test_forgetting_ends_in_the_digest_of_a_model_never_given_the_images(story: Story) -> None:
    digests = story.values["digests"]
    assert digests["forgotten"] == digests["retrained"]
    assert digests["forgotten_weights"] == digests["retrained_weights"]
    assert story.values["accuracy"]["after"] == story.values["accuracy"]["retrained"]


def test_the_page_says_what_two_releases_show(story: Story) -> None:
    shown = story.values["differencing"]
    assert shown["deleted"] == len(Records.digits().user.select(owner=story.values["owner"]))
    assert shown["found"] > shown["deleted"] / 2  # by chance 0.25 of 15 among 899
    page = (story.out / "report.html").read_text()
    assert f"{shown['found']} of the {shown['deleted']} deleted images" in page


def test_every_certificate_that_was_printed_passed(story: Story) -> None:
    kept = [r["certificate"] for r in story.values["requests"] if r["certificate"] is not None]
    assert [c["kind"] for c in kept] == ["exact", "a-posteriori", "exact", "exact"]
    assert all(c["passed"] for c in kept)
    missed = [r for r in story.values["requests"] if r["certificate"] is None]
    assert all("nothing released" in r["verdict"] and r["num_forgotten"] == 0 for r in missed)


def test_the_user_part_learns_more_than_the_last_layer(story: Story) -> None:
    accuracy = story.values["accuracy"]
    assert 0.8 < accuracy["core"] < accuracy["last_layer"] < accuracy["user"]
    assert story.values["solution"]["status"] == "converged"


def test_the_saved_model_has_the_accuracy_that_is_shown(story: Story) -> None:
    model = load(story.out / "model")
    accuracy = model.accuracy(Records.digits().test)
    # other threads may round otherwise: at most one of 359 images may change sides
    assert abs(accuracy - story.values["accuracy"]["user"]) < 1.5 / 359
    text = " ".join(Page((story.out / "report.html").read_text(encoding="utf-8")).text)
    assert f"{100 * story.values['accuracy']['user']:.1f} %" in text
    assert story.values["core_digest"] == model.core.digest
    assert model.core.digest in text


def test_the_command_prints_what_was_measured(story: Story, capsys: pytest.CaptureFixture) -> None:
    from rich.console import Console

    from efface.commands.demo import _render

    _render(Console(width=160), story.values)
    text = capsys.readouterr().out
    for accuracy in story.values["accuracy"].values():
        assert f"{100 * accuracy:.1f} %" in text
    assert text.count(story.values["digests"]["forgotten"]) == 2  # equal, one under the other
    assert "nothing released" in text


def test_the_report_is_one_offline_file(story: Story) -> None:
    assert is_offline((story.out / "report.html").read_text(encoding="utf-8"))


def test_the_files_beside_it_say_the_same(story: Story) -> None:
    kept = json.loads((story.out / "demo.json").read_text())
    assert kept == {"schema": demo.SCHEMA, **json.loads(json.dumps(story.values))}
    assert load_config(story.out / "config.toml") == demo.CONFIG


def test_progress_only_goes_forward_to_the_end(story: Story) -> None:
    fractions = [fraction for fraction, _ in story.progress]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
