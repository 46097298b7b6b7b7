"""The glossary: every word once, and the words that the docs rely on are in it."""

from __future__ import annotations

import re

from tests.places import ROOT

TEXT = (ROOT / "docs/words.md").read_text(encoding="utf-8")
WORDS = [
    word.strip() for entry in re.findall(r"\*\*([^*]+)\*\*:", TEXT) for word in entry.split(",")
]
RELIED_ON = (
    *(
        "core",
        "user part",
        "tail",
        "prefix",
        "boundary",
        "ψ",
        "row",
        "record",
        "replay",
        "calibration",
    ),
    *(
        "release",
        "digest",
        "pass",
        "ridge",
        "plan",
        "guarantee",
        "certificate",
        "receipt",
        "audit",
        "trial",
    ),
)


def test_every_word_is_explained_once() -> None:
    assert sorted(WORDS) == sorted(set(WORDS))
    assert len(WORDS) > 40


def test_the_words_that_docs_rely_on_are_explained() -> None:
    explained = {*WORDS, *re.findall(r"\*\*(\w+)\*\*", TEXT)}
    assert [word for word in RELIED_ON if word not in explained] == []
