"""The class list: what a model's outputs are called, and that no user record has a say in it.

A class that only one person has would leave its name and its output behind when that person is
forgotten. So the list comes from the caller (``--classes``), from the data's own list (named data sets, an
``.npz`` or Parquet file with class names), or from the labels of **core** records: never from user data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from efface.data import promises
from efface.data.promises import Named
from efface.data.record import Skipped, Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError
from efface.regular import LARGEST_LIST, read_regular

FIX = (
    "name the classes yourself: --classes FILE (one a line) or --classes a,b,c (classes= in Python)"
)


def settled(records: Records, others: Sequence[Named] = ()) -> Records:
    """The records with a class list that stays the same whoever is forgotten.

    A user record of a class that is not in it is an error; such test records are set aside. ``others`` are
    user records whose images are looked at elsewhere.
    """
    user = (*records.user, *others)
    if records.listed:
        promises.check_labels(others, records.classes)
        return records
    core = {record.label for record in records if record.split is Split.CORE}
    if not core:
        fix = (
            f"{FIX}; or take a public set's as core: --core-data public/. Of your people's, "
            "--core-fraction 0.3 takes a share, who can then never be forgotten."
        )
        raise EffaceError("no core record says which classes there are.", fix)
    classes = tuple(name for name in records.classes if name in core)
    for record in user:
        if record.label not in core:
            missing = len({r.label for r in user} - core)
            raise RecordError(
                record.id,
                f"its class {record.label!r} has no core record ({missing} such classes): its name would "
                "stay in the model after the last such record is forgotten.",
                f"{FIX}, if the list is yours to choose; or take these records out.",
            )
    strange = [record for record in records if record.label not in core]  # test records
    skipped = [Skipped(r.id, f"no core record has its class {r.label!r}") for r in strange]
    kept = records.where(lambda record: record.label in core)
    return Records(kept, classes, skipped=(*records.skipped, *skipped), remarks=records.remarks)


def class_names(text: str) -> list[str]:
    """From the command line: a file with a name a line, or names separated by commas."""
    found = text.split(",") if not _is_file(text) else _lines(Path(text).expanduser())
    return [name.strip() for name in found if name.strip()]


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except (OSError, RuntimeError):  # too long for the name of a file, or of no home: names
        return False


def _lines(path: Path) -> list[str]:
    try:
        return read_regular(path, LARGEST_LIST).decode("utf-8-sig").splitlines()
    except ValueError as problem:
        fix = "save it as UTF-8 text, a class a line."
        raise FormatError(f"{path.name} is no list of classes: {problem}.", fix) from problem
