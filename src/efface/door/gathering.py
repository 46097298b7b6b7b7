"""From what ``fit`` is given to records: user data, core data, and a class list that is nobody's secret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from efface.data.class_list import settled
from efface.data.found import Found, Row
from efface.data.images import Channels
from efface.data.readers.examples import Examples, examples_of, find_examples, label_name, values_of
from efface.data.record import Record, Split
from efface.data.records import Records
from efface.door.labels import LabelKind
from efface.errors import EffaceError

CORE_FIX = "write core=(images, labels), core=(images, labels, owners) or core=Records…"


@dataclass(frozen=True)
class Gathered:
    """Records for training; ``from_labels``: their class list is that of the user records' labels."""

    records: Records
    kind: LabelKind
    from_labels: bool


def gather(
    data: Any,
    columns: dict[str, Any],
    *,
    core: Any,
    classes: Any,
    channels: Channels | None,
    **options: Any,
) -> Gathered:
    """All records of a training, with one class list.

    The list is ``classes``, or the data's own, or that of the core records' labels: none of these changes
    when somebody is forgotten. Where there is none of them it is read off the labels, and then a class
    leaves with the last of its records (``classes.py``).
    """
    found, kind = found_in(data, **columns)
    if core is not None:
        more, other = _core(core)
        kind.check(other)
        found = _joined(found, more)
    names = None if classes is None else [label_name(name) for name in values_of(classes)]
    records = Records.assembled(found, classes=names, channels=channels, **options)
    if not len(records.user) and not len(records.core):
        raise EffaceError("there are only test records.", 'give records of split "user".')
    from_labels = not records.listed and not len(records.core)
    if not from_labels:
        records = settled(records)
    kind.classes(records.classes)  # an error if they do not belong together
    return Gathered(records, kind, from_labels)


def found_in(data: Any, **columns: Any) -> tuple[Found, LabelKind]:
    """Rows of anything that carries images, and whether their labels are numbers."""
    if isinstance(data, Records):
        if any(values is not None for values in columns.values()):
            raise EffaceError(
                "records have their labels and owners already.", "give the records alone."
            )
        classes = data.classes if data.listed else None
        rows = [_row(record) for record in data]
        return Found(rows, classes, data.skipped, data.remarks), LabelKind()
    if isinstance(data, str):
        fix = f"write fit(Records.open({data!r})), or give a list of paths."
        raise EffaceError("a text is neither images nor records.", fix)
    examples = examples_of(data)
    return find_examples(examples, **columns), LabelKind.of(examples, columns.get("labels"))


def labelled(data: Any, labels: Any) -> tuple[Any, Any]:
    """Images to predict, and their labels in the caller's kind, wherever these are."""
    if labels is not None:
        return data, labels
    if isinstance(data, Records):
        return data, data.column("label")
    examples: Examples = examples_of(data)
    if "label" not in examples.columns:
        raise EffaceError("the images have no labels.", "give them: score(images, labels).")
    values = examples.columns["label"]
    if examples.names is not None:
        values = [examples.names[value] if type(value) is int else value for value in values]
    return data, values


def _core(core: Any) -> tuple[Found, LabelKind]:
    columns: dict[str, Any] = {}
    if isinstance(core, tuple):
        if len(core) not in (2, 3):
            raise EffaceError(f"core has {len(core)} parts.", CORE_FIX)
        core, columns = core[0], dict(zip(("labels", "owners"), core[1:], strict=False))
    found, kind = found_in(core, **columns)
    return replace(found, rows=[replace(row, split=Split.CORE) for row in found.rows]), kind


def _joined(user: Found, core: Found) -> Found:
    """Both, and their classes: those that one of them lists, else whole numbers in their order."""
    listed = next((f for f in (user, core) if f.listed and f.classes), None)
    classes: Sequence[str] | None = None if listed is None else listed.classes
    if listed is None and user.classes and core.classes:
        classes = sorted({*user.classes, *core.classes}, key=int)
    rows = [*user.rows, *core.rows]
    remarks = tuple(dict.fromkeys((*user.remarks, *core.remarks)))
    skipped = (*user.skipped, *core.skipped)
    return Found(rows, classes, skipped, remarks, listed=listed is not None)


def _row(record: Record) -> Row:
    return Row(
        record.id,
        record.label,
        record.source,
        record.split,
        record.owner,
        record.cohort,
        record.extra,
    )
