"""CONTRIBUTING: its map is the house's, and each of its questions has one answer that is there."""

from __future__ import annotations

import ast
import re

import pytest
from tests.places import ROOT
from tests.test_house import FLOORS

SOURCE = ROOT / "src" / "efface"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"^\| (.+\?) \| (.+) \|$", TEXT, re.MULTILINE)
ANSWER = re.compile(r"`([\w/]+\.py)`: `(\w+)`")


def test_there_are_ten_questions() -> None:
    assert len(QUESTIONS) >= 10
    assert len({question for question, _ in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize(("question", "answer"), QUESTIONS, ids=[q for q, _ in QUESTIONS])
def test_a_question_is_answered_by_one_path(question: str, answer: str) -> None:
    match = ANSWER.fullmatch(answer)
    assert match is not None, f"{question} {answer}"
    path, wanted = match.groups()
    tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
    defined = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    assert wanted in defined


def test_every_room_is_on_the_map() -> None:
    rows = re.findall(r"^\| (.+?) \|", TEXT, re.MULTILINE)
    named = [room for row in rows for room in re.findall(r"`(\w+)/`", row)]
    assert sorted(named) == sorted(room for room in FLOORS if (SOURCE / room).is_dir())
