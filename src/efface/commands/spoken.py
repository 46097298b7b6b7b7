"""``--language``: of the pages about requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from efface.errors import EffaceError

if TYPE_CHECKING:
    from efface.report.language import Language

Spoken = Annotated[str, typer.Option(help="The language of the page: en, de, fr or es.")]


def spoken(name: str) -> Language:
    """The language of that name."""
    from efface.report.language import Language

    try:
        return Language(name)
    except ValueError:
        known = ", ".join(Language)
        raise EffaceError(f"there is no page in {name!r}.", f"choose one of {known}.") from None
