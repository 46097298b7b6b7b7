"""Records: labelled images, each with the person it belongs to.

A ``Record`` is one image with its owner, cohort, label and split; its digest is the SHA-256 of its
content, so that a record is known by what it shows and not by where it lies. ``Records`` is an
immutable sequence of them which keeps three promises: ids are unique, every label is one of
``classes``, and no image is in core and user data at once (core data cannot be forgotten).
"""

from __future__ import annotations

import hashlib
import html
import operator
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from efface.errors import EffaceError, RecordError, RequestError
from efface.images import Channels, ImageSource, decode, digest_of, naming

if TYPE_CHECKING:
    from typing import Unpack

    from efface.readers import ReadOptions

    PathLike: TypeAlias = str | os.PathLike[str]

DEFAULT_COHORT = "default"
HTML_ROWS = 30  # classes listed in a notebook's table before it says "and n more"


class Split(StrEnum):
    """Core data is never forgotten, user data can be, test data is never trained on."""

    CORE = "core"
    USER = "user"
    TEST = "test"


@dataclass(frozen=True)
class Record:
    """One labelled image. Two records are equal when all but their place in storage is."""

    id: str
    owner: str
    cohort: str
    label: str
    split: Split
    source: ImageSource = field(compare=False, repr=False)
    digest: str
    channels: Channels | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def image(self) -> np.ndarray:
        """The decoded pixels, uint8 (h, w, channels), or RecordError when they cannot be had.

        The content is checked against ``digest``: whatever is derived from this image is filed
        under its digest, and must not come from a file that was swapped in the meantime.
        """
        with naming(self.id):
            content = self.source.content()
        if digest_of(content) != self.digest:
            raise RecordError(
                self.id, "its content changed after it was read.", "read the records again."
            )
        with naming(self.id):
            return decode(content, self.channels)


@dataclass(frozen=True)
class Skipped:
    """Something found in the data that is no record, and why."""

    id: str
    reason: str


class Records(Sequence[Record]):
    """An immutable sequence of records with one list of classes.

    ``records[3]`` is a Record; ``records[2:5]``, ``records[[4, 1]]`` and ``records[mask]`` are
    Records with the same classes. ``ids``, ``digests``, ``owners`` and ``labels`` have one entry
    a record, in order. ``skipped`` lists what the reader set aside, ``notes`` what it kept though
    it looks odd.
    """

    _listed = True  # whether the class list was given, not read off the records' labels

    def __init__(
        self,
        records: Iterable[Record],
        classes: Sequence[str] | None = None,
        *,
        skipped: Iterable[Skipped] = (),
        remarks: Iterable[str] = (),
        listed: bool | None = None,
    ) -> None:
        self._records = tuple(records)
        self._listed = classes is not None if listed is None else listed
        self._classes = _class_list(self._records, classes)
        self._skipped = tuple(skipped)
        self._remarks = tuple(remarks)
        _check_ids(self._records)
        _check_labels(self._records, self._classes)
        _check_core_and_user_are_disjoint(self._records)

    # constructors

    @classmethod
    def digits(cls, **options: Unpack[ReadOptions]) -> Records:
        """scikit-learn's 1,797 8 × 8 digits, with made-up owners and cohorts."""
        from efface import readers

        return readers.read_digits(**options)

    @classmethod
    def from_folder(cls, path: PathLike, **options: Unpack[ReadOptions]) -> Records:
        """``train/<class>/*.jpg`` with optional ``core/`` and ``test/``, or ``<class>/*.jpg``."""
        from efface import readers

        return readers.read_folder(path, **options)

    @classmethod
    def from_metadata(cls, path: PathLike, **options: Unpack[ReadOptions]) -> Records:
        """A folder with ``metadata.csv`` or ``metadata.jsonl``, or such a file itself."""
        from efface import readers

        return readers.read_metadata(path, **options)

    @classmethod
    def from_npz(cls, path: PathLike, **options: Unpack[ReadOptions]) -> Records:
        """Arrays ``x_train y_train …`` or ``images labels …`` in one ``.npz`` file."""
        from efface import readers

        return readers.read_npz(path, **options)

    @classmethod
    def from_parquet(
        cls,
        path: PathLike,
        *,
        image: str = "image",
        label: str = "label",
        **options: Unpack[ReadOptions],
    ) -> Records:
        """A Parquet file, or a folder of them, in the layout of Hugging Face datasets."""
        from efface import readers

        return readers.read_parquet(path, image=image, label=label, **options)

    @classmethod
    def open(cls, spec: PathLike, **options: Unpack[ReadOptions]) -> Records:
        """Whatever it is: "digits", a data set's name (``cub200``, ``cub200:DIR``), a folder, or a .npz,
        .parquet, .csv or .jsonl file."""
        from efface import readers

        return readers.open_records(spec, **options)

    # a sequence

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(
        self, index: slice | Sequence[int] | Sequence[bool] | np.ndarray
    ) -> Records: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._subset(self._records[index])
        if isinstance(index, Sequence | np.ndarray) and np.ndim(index) == 1:
            positions = positions_of(index, len(self))
            chosen = tuple(self._records[i] for i in positions)
            distinct = len(set(positions)) == len(positions)
            return self._subset(chosen) if distinct else self._with(chosen)
        return self._records[operator.index(index)]

    def __add__(self, other: Records) -> Records:
        """Both, with this side's classes first: indices of known classes do not move."""
        if not isinstance(other, Records):
            return NotImplemented
        classes = dict.fromkeys((*self.classes, *other.classes))
        return Records(
            (*self._records, *other),
            tuple(classes),
            skipped=dict.fromkeys((*self.skipped, *other.skipped)),
            remarks=dict.fromkeys((*self._remarks, *other._remarks)),
            listed=self.listed and other.listed,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Records):
            return NotImplemented
        return self._records == other._records and self._classes == other._classes

    def __hash__(self) -> int:
        return hash((self._records, self._classes))

    def _with(self, records: Iterable[Record]) -> Records:
        kept = {"skipped": self._skipped, "remarks": self._remarks, "listed": self._listed}
        return Records(records, self._classes, **kept)  # type: ignore[arg-type]

    def _subset(self, records: tuple[Record, ...]) -> Records:
        """Some of these records, each once: what holds for all of them holds for those."""
        made = object.__new__(Records)
        made._records, made._classes = records, self._classes
        made._skipped, made._remarks, made._listed = self._skipped, self._remarks, self._listed
        return made

    # columns

    @property
    def listed(self) -> bool:
        """Whether the class list was given, by the caller or the data, and not read off the labels."""
        return self._listed

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        return self._skipped

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Oddities worth a look: the reader's remarks, owners with core and user records, and images that
        occur more than once."""
        copies = _notes_on_copies(self._records)
        return (*self._remarks, *_notes_on_owners(self._records), *copies)

    def column(self, name: str) -> list[Any]:
        """One attribute of every record, in order."""
        return list(map(operator.attrgetter(name), self))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.column("id"))

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(self.column("digest"))

    @property
    def owners(self) -> tuple[str, ...]:
        return tuple(self.column("owner"))

    @property
    def labels(self) -> np.ndarray:
        """Each record's index into ``classes``, int64 (n,)."""
        index = {name: i for i, name in enumerate(self.classes)}
        return np.array([index[record.label] for record in self], dtype=np.int64)

    # subsets

    @cached_property
    def core(self) -> Records:
        return self.where(lambda record: record.split is Split.CORE)

    @cached_property
    def user(self) -> Records:
        return self.where(lambda record: record.split is Split.USER)

    @cached_property
    def test(self) -> Records:
        return self.where(lambda record: record.split is Split.TEST)

    def where(self, predicate: Callable[[Record], bool]) -> Records:
        return self._subset(tuple(record for record in self if predicate(record)))

    def without(self, ids: Iterable[str]) -> Records:
        """All but these. Ids that are not here are no error: a forgotten file may be gone."""
        gone = _names(ids)
        return self.where(lambda record: record.id not in gone)

    def select(
        self,
        *,
        ids: str | Iterable[str] | None = None,
        owner: str | Iterable[str] | None = None,
        cohort: str | Iterable[str] | None = None,
        label: str | Iterable[str] | None = None,
    ) -> Records:
        """The records that match every given criterion, in their order.

        A name that nothing here bears is a RequestError: a misspelt owner must not look like one
        without records.
        """
        chosen = list(self._records)
        for attribute, asked in {
            "id": ids,
            "owner": owner,
            "cohort": cohort,
            "label": label,
        }.items():
            if asked is None:
                continue
            wanted = _names(asked)
            known = set(self.classes) if attribute == "label" else self._values(attribute)
            _check_known(attribute, wanted, known)
            chosen = [record for record in chosen if getattr(record, attribute) in wanted]
        return self._with(chosen)

    def _values(self, attribute: str) -> set[str]:
        return {getattr(record, attribute) for record in self}

    def with_core_fraction(self, fraction: float, seed: int = 0) -> Records:
        """Makes core all that belongs to the owners o with SHA-256(seed/o) < fraction · 2²⁵⁶.

        Owners are drawn whole, and by their names alone: whatever somebody's records are, and whether
        they are there at all, changes nothing about who else is core. So the share is only about
        ``fraction``, of all records and of each class. A record without an owner is its own (its id).
        Core records stay core. A user record whose image somebody else has in core then is set aside
        in ``.skipped``: it could not be forgotten.
        """
        if not 0 <= fraction <= 1:
            raise EffaceError(f"core fraction {fraction} is not a fraction.", "use 0 to 1.")
        moved = [
            replace(r, split=Split.CORE)
            if r.split is Split.USER and is_core_owner(r.owner, fraction, seed)
            else r
            for r in self
        ]
        core = {r.digest: r.id for r in moved if r.split is Split.CORE}
        twice = [r for r in moved if r.split is Split.USER and r.digest in core]
        set_aside = [
            Skipped(r.id, f"the same image is core data, as {core[r.digest]!r}") for r in twice
        ]
        gone = {r.id for r in twice}
        return Records(
            (r for r in moved if r.id not in gone),
            self._classes,
            skipped=(*self._skipped, *set_aside),
            remarks=self._remarks,
            listed=self._listed,
        )

    # display

    def __repr__(self) -> str:
        counts = Counter(record.split for record in self)
        parts = ", ".join(f"{split} {counts[split]}" for split in Split)
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"Records({len(self)} in {len(self.classes)} classes: {parts}{skipped})"

    def _repr_html_(self) -> str:
        counts = Counter((record.label, record.split) for record in self)
        rows = [(name, [counts[name, split] for split in Split]) for name in self.classes]
        totals = [sum(column) for column in zip(*(row for _, row in rows), strict=True)]
        shown = [*rows[:HTML_ROWS], ("all", totals)]
        more = len(rows) - HTML_ROWS
        body = "".join(
            f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{n}</td>' for n in row)}</tr>"
            for name, row in shown
        )
        head = "".join(f"<th>{split}</th>" for split in Split)
        foot = f"<p>and {more} more classes</p>" if more > 0 else ""
        title = f"<p>{html.escape(repr(self))}</p>"
        return f"{title}<table><tr><th>class</th>{head}</tr>{body}</table>{foot}"


# What Records promises, and how it splits.


def _class_list(records: Sequence[Record], given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return tuple(sorted({record.label for record in records}))
    for name, times in Counter(given).items():
        if times > 1:
            raise EffaceError(f"class {name!r} is listed {times} times.", "list each class once.")
    return tuple(given)


def _check_ids(records: Sequence[Record]) -> None:
    if len({record.id for record in records}) == len(records):
        return
    for record_id, times in Counter(record.id for record in records).items():
        if times > 1:
            fix = "give every record an id of its own."
            raise RecordError(record_id, f"{times} records have this id.", fix)


def _check_labels(records: Sequence[Record], classes: Sequence[str]) -> None:
    known = set(classes)
    if {record.label for record in records} <= known:
        return
    for record in records:
        if record.label not in known:
            message = f"label {record.label!r} is not one of the classes ({_few(classes)})."
            raise RecordError(
                record.id, message, "correct the label, or list it among the classes."
            )


def _check_core_and_user_are_disjoint(records: Sequence[Record]) -> None:
    core = {record.digest: record for record in records if record.split is Split.CORE}
    for record in records if core else ():
        if record.split is Split.USER and record.digest in core:
            message = f"the same image is core data, as {core[record.digest].id!r}."
            fix = "core data cannot be forgotten: take the image out of one of the two."
            raise RecordError(record.id, message, fix)


def _check_known(attribute: str, wanted: set[str], known: set[str]) -> None:
    missing = sorted(wanted - known)
    if missing:
        noun = "class" if attribute == "label" else attribute
        fix = "check the spelling and the split you select from."
        raise RequestError(f"no record here has {noun} {_few(missing)}.", fix)


def _notes_on_copies(records: Sequence[Record]) -> Iterator[str]:
    copies: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        copies[record.digest].append(record)
    for group in copies.values():
        names = _few([record.id for record in group])
        if 0 < sum(record.split is Split.TEST for record in group) < len(group):
            yield f"the same image is in training and test data: {names}"
        user = [record for record in group if record.split is Split.USER]
        for attribute in ("label", "owner"):
            if len({getattr(record, attribute) for record in user}) > 1:
                names = _few([record.id for record in user])
                yield (
                    f"the same image is in user data under more than one {attribute}, "
                    f"forgetting one keeps the others: {names}"
                )


def _notes_on_owners(records: Sequence[Record]) -> Iterator[str]:
    core = {record.owner for record in records if record.split is Split.CORE}
    both = sorted({r.owner for r in records if r.split is Split.USER and r.owner in core})
    if both:
        yield (
            f"{len(both)} owners have core and user records, and core is never forgotten: {_few(both)}"
        )


def is_core_owner(owner: str, fraction: float, seed: int = 0) -> bool:
    """SHA-256(seed/owner) < fraction · 2²⁵⁶ (of the first 53 bits): a draw by the name alone."""
    digest = hashlib.sha256(f"{seed}/{owner}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) < fraction * 2.0**53


def positions_of(index: Sequence[Any] | np.ndarray, length: int) -> list[int]:
    """Positions, from such or from a mask."""
    array = np.asarray(index)
    if array.dtype == bool:
        if len(array) != length:
            raise IndexError(f"a mask of {len(array)} for {length} records")
        array = np.flatnonzero(array)
    elif array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"records are indexed by integers or a mask, not by {array.dtype}")
    elif array.size and not -length <= array.min() <= array.max() < length:
        raise IndexError(f"positions {array.min()} to {array.max()} of {length} records")
    positions: list[int] = (array % max(length, 1)).tolist()
    return positions


def _names(given: str | Iterable[str]) -> set[str]:
    return {given} if isinstance(given, str) else set(given)


def _few(names: Sequence[str], limit: int = 5) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + rest
