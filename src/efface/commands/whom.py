"""Whom or what a request names: the options of ``efface forget`` and of ``efface partner forget``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Owner = Annotated[str | None, typer.Option(help="All records of this person.")]
Ids = Annotated[str | None, typer.Option(help="Record ids, separated by commas.")]
Id = Annotated[list[str] | None, typer.Option("--id", help="One record id, verbatim; repeatable.")]
Cohort = Annotated[str | None, typer.Option(help="All records of this cohort.")]
Label = Annotated[str | None, typer.Option(help="All records of this class.")]
Everything = Annotated[
    bool, typer.Option("--everything", help="All records of all people; core data stays.")
]


def named_by(
    owner: str | None,
    ids: str | None,
    id_: list[str] | None,
    cohort: str | None,
    label: str | None,
    everything: bool,
) -> dict[str, Any]:
    """What the options name, as ``Request.of`` takes it."""
    listed = [part.strip() for part in (ids or "").split(",") if part.strip()] + (id_ or [])
    given = ids is not None or bool(id_)
    return {
        "ids": listed if given else None,
        "owner": owner,
        "cohort": cohort,
        "label": label,
        "everything": everything,
    }
