"""The tutorial is followed as it is written: files saved, lines typed, and what they print compared."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest
from benchmarks.transcript import (
    Command,
    Difference,
    Expected,
    Printed,
    Script,
    commands,
    follow,
    steps,
)
from PIL import Image
from tests.docs.surroundings import network
from tests.places import ROOT
from tests.shell import efface

TUTORIAL = ROOT / "docs/tutorial.md"


def typed(command: Command) -> Printed:
    """In this process where it is ours: importing torch anew for each line would take most of the time."""
    program, *words = command.words
    if program == "python":
        runpy.run_path(words[0], run_name="__main__")
        return Printed(0, "")
    if program != "efface":
        done = subprocess.run(command.words, capture_output=True, text=True, check=False)
        return Printed(done.returncode, done.stdout + done.stderr)
    result = efface(*words)
    if command.to is not None:
        Path(command.to).write_text(result.stdout, encoding="utf-8")
    return Printed(result.exit_code, result.stdout + result.stderr)


@pytest.mark.needs("posix")
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    follow(TUTORIAL, typed, lambda script: exec(script.text, names))
    assert Path("for-u07.json").is_file()  # whose check was one of the lines
    assert Path("releases.html").is_file()


@pytest.mark.needs("posix")
def test_the_readme_on_your_own_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command line of the README, in order, on the tutorial's photos and a tiny network."""
    monkeypatch.chdir(tmp_path)
    text = TUTORIAL.read_text(encoding="utf-8")
    exec(next(step.text for step in steps(text) if isinstance(step, Script)), {})
    network("my-resnet50")
    Image.open("photos/u05-0.png").resize((40, 40)).save("holiday.jpg")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [step for step in steps(readme) if isinstance(step, Command)]
    assert len(lines) > 12
    printed = {line.text: typed(line) for line in lines}
    assert {text: came for text, came in printed.items() if came.exit_code} == {}
    checked = [came for text, came in printed.items() if "verify model/receipts/" in text]
    assert ["everything checks" in came.output for came in checked] == [True]


def test_every_step_of_the_way_is_in_it() -> None:
    """Photos, model, request, receipt: and both kinds of failure."""
    found = list(steps(TUTORIAL.read_text(encoding="utf-8")))
    typed_words = [step.words[:2] for step in found if isinstance(step, Command)]
    for verb in ("init", "train", "evaluate", "keys", "forget", "verify", "scan", "evidence"):
        assert ("efface", verb) in typed_words
    assert {step.exit_code for step in found if isinstance(step, Command)} == {0, 2, 3}
    assert [step.name for step in found if isinstance(step, Script)] == ["draw.py", None]
    assert sum(isinstance(step, Expected) for step in found) > 5


def test_a_page_that_is_wrong_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"

    def followed(text: str) -> None:
        page.write_text(text, encoding="utf-8")
        follow(page, lambda command: Printed(3, "  one\n two   3"), lambda script: None)

    followed("```sh\nsay  # exit code 3\n```\n```text\none two\n… 3\n```\n")
    with pytest.raises(Difference, match=r"line 2: say"):
        followed("```sh\nsay\n```\n")
    with pytest.raises(Difference, match="two one"):
        followed("```sh\nsay  # exit code 3\n```\n```text\ntwo one\n```\n")


def test_lines_are_read_as_a_shell_would() -> None:
    (first, second) = commands(
        "efface a 'b c' --json > out.json  # why\n\nefface d  # exit code 2: no\n"
    )
    assert first.words == ("efface", "a", "b c", "--json")
    assert (first.to, first.exit_code) == ("out.json", 0)
    assert (second.words, second.exit_code, second.line) == (("efface", "d"), 2, 3)
