"""The languages of the page about a request: one file of texts each, for one template.

``languages/en.toml`` and the others have the same keys and the same ``{placeholders}``. Another language is
another file, and a line in :class:`Language`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "languages"


class Language(StrEnum):
    ENGLISH = "en"
    GERMAN = "de"
    FRENCH = "fr"
    SPANISH = "es"


@dataclass(frozen=True)
class Words:
    """The texts of a language, by ``section.key``."""

    language: Language
    texts: Mapping[str, str]

    def __call__(self, key: str, **values: object) -> str:
        """The text, with its placeholders filled in."""
        return self.texts[key].format(**values)

    @property
    def name(self) -> str:
        """What those who speak it call the language."""
        return self.texts["name"]


@cache
def words(language: Language) -> Words:
    text = (FOLDER / f"{language}.toml").read_text(encoding="utf-8")
    return Words(language, _flat(tomllib.loads(text)))


def _flat(values: Mapping[str, object], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = str(value)
    return found
