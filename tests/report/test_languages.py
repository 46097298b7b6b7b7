"""The page about a request in every language: nothing is missing, no placeholder is lost."""

from __future__ import annotations

from string import Formatter

import pytest

from efface.guarantee import certificates
from efface.report.language import Language, words
from efface.report.limits import limit, patterns
from efface.workspace import signing

OTHERS = [language for language in Language if language is not Language.ENGLISH]
ENGLISH = words(Language.ENGLISH)
SAME = {  # what is called so there, too
    Language.GERMAN: {"sign.organisation"},
    Language.FRENCH: {"sign.heading", "sign.signature"},
    Language.SPANISH: set(),
}


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("language", OTHERS)
def test_every_key_and_every_placeholder(language: Language) -> None:
    texts = words(language).texts
    assert set(texts) == set(ENGLISH.texts)
    for key, text in ENGLISH.texts.items():
        assert placeholders(texts[key]) == placeholders(text), key
        assert texts[key].count("**") == text.count("**"), key
        assert texts[key].strip() == texts[key] != "", key


@pytest.mark.parametrize("language", OTHERS)
def test_nothing_was_left_in_english(language: Language) -> None:
    texts = words(language).texts
    same = {key for key, text in ENGLISH.texts.items() if texts[key] == text}
    assert same == SAME[language]


def test_every_file_is_a_language() -> None:
    from importlib import resources

    folder = resources.files("efface.report") / "languages"
    assert {entry.name for entry in folder.iterdir()} == {f"{name}.toml" for name in Language}


SAID = (
    *certificates.NOT_COVERED,
    *signing.NOT_COVERED,
    certificates.ROUNDING,
    certificates.FURTHER,
    certificates.PARTNERS,
    *certificates.in_core(12),
    *certificates.together(1),
    *certificates.together(12),
)


@pytest.mark.parametrize("language", Language)
def test_what_is_not_covered_is_said_in_the_language(language: Language) -> None:
    say = words(language)
    told = [limit(text, say) for text in SAID]
    assert len(set(told)) == len(SAID) == len(patterns())
    assert not set(told) & set(SAID)
    assert sum("12" in text for text in told) == 2


def test_a_sentence_of_another_version_stays() -> None:
    assert limit("core data and more", words(Language.GERMAN)) == "core data and more"
