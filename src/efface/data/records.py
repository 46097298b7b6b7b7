"""Records: labelled images, each with the person it belongs to.

A ``Record`` is one image with its owner, cohort, label and split; its digest is the SHA-256 of its
content, so that a record is known by what it shows and not by where it lies. ``Records`` is an
immutable sequence of them which keeps three promises: ids are unique, every label is one of
``classes``, and no image is in core and user data at once (core data cannot be forgotten).
"""

from __future__ import annotations

import html
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack, overload

import numpy as np

from efface.data import promises, reading
from efface.data.found import GIVEN_COLUMNS, Found, GivenOptions, PathLike, ReadOptions
from efface.data.record import Record, Skipped, Split
from efface.errors import EffaceError

HTML_ROWS = 30  # classes listed in a notebook's table before it says "and n more"


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
        self._classes = promises.class_list(self._records, classes)
        self._skipped = tuple(skipped)
        self._remarks = tuple(remarks)
        # First: such a record may have one id in both, if that is made of its content.
        promises.check_core_and_user_are_disjoint(self._records)
        promises.check_ids(self._records)
        promises.check_labels(self._records, self._classes)

    # constructors

    @classmethod
    def assembled(cls, found: Found, **options: Unpack[ReadOptions]) -> Records:
        """What a reader found, checked and made records; ``assemble`` says what the options mean."""
        fraction, seed = options.get("core_fraction"), options.get("seed", 0)
        made = reading.assemble(found, options)
        result = cls(
            made.records,
            made.classes,
            skipped=made.skipped,
            remarks=made.remarks,
            listed=made.listed,
        )
        return result if fraction is None else result.with_core_fraction(fraction, seed)

    @classmethod
    def digits(cls, **options: Unpack[ReadOptions]) -> Records:
        """scikit-learn's 1,797 8 × 8 digits, with made-up owners and cohorts."""
        return cls.assembled(reading.find_digits(), **options)

    @classmethod
    def from_folder(cls, path: PathLike, **options: Unpack[ReadOptions]) -> Records:
        """``train/<class>/*.jpg`` with optional ``core/`` and ``test/``, or ``<class>/*.jpg``."""
        return cls.assembled(reading.find_folder(path), **options)

    @classmethod
    def from_metadata(cls, path: PathLike, **options: Unpack[ReadOptions]) -> Records:
        """A folder with ``metadata.csv`` or ``metadata.jsonl``, or such a file itself."""
        absolute_paths = options.get("absolute_paths", False)
        return cls.assembled(reading.find_metadata(path, absolute_paths=absolute_paths), **options)

    @classmethod
    def from_npz(cls, path: PathLike, **options: Unpack[ReadOptions]) -> Records:
        """Arrays ``x_train y_train …`` or ``images labels …`` in one ``.npz`` file."""
        return cls.assembled(reading.find_npz(path), **options)

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
        absolute_paths = options.get("absolute_paths", False)
        found = reading.find_parquet(path, image=image, label=label, absolute_paths=absolute_paths)
        return cls.assembled(found, **options)

    @classmethod
    def from_images(cls, images: Any, labels: Any, **options: Unpack[GivenOptions]) -> Records:
        """Images in memory, by value, or paths of files; ``labels`` are names or whole numbers, one each.

        ``images`` is an array (n, h, w) or (n, h, w, channels) of uint8 or uint16, or a list of arrays,
        tensors (channels first), Pillow images, encoded bytes or paths. ``owners``, ``cohorts`` and ``ids``
        are lists as long (default: every image has an owner of its own; a file's id is its path, other
        images are called by their content's digest). ``split`` is "user" (default), "core" or "test", for
        all or one each. Further options as for every reader.
        """
        return cls.assembled_examples(
            reading.Examples(reading.sources_of(images)), labels=labels, **options
        )

    @classmethod
    def from_arrays(cls, images: Any, labels: Any, **options: Unpack[GivenOptions]) -> Records:
        """One array of all images; else as :meth:`from_images`."""
        if isinstance(images, list | tuple):
            images = reading.stacked(images)
        return cls.from_images(images, labels, **options)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        image: str | None = None,
        label: str = "label",
        **options: Unpack[GivenOptions],
    ) -> Records:
        """A torch ``Dataset`` of (image, label) pairs, or a Hugging Face ``datasets.Dataset``.

        Preprocessing is the model's: leave ``transform=`` out, or let it end in uint8. Of a data set that
        lists files (ImageFolder) the files are taken, of Hugging Face's the encoded images.
        """
        found = reading.dataset_examples(dataset, image=image, label=label)
        return cls.assembled_examples(found, **options)

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        *,
        image: str | None = None,
        label: str = "label",
        root: PathLike | None = None,
        **options: Unpack[GivenOptions],
    ) -> Records:
        """A DataFrame with a column of paths (or images) and one of labels.

        ``image`` names the first (default: image, path, file_name, filename or file). Columns ``id owner
        cohort split`` are used where they are, others kept; relative paths begin at ``root``.
        """
        found = reading.examples_of(frame, image=image, label=label, root=root)
        return cls.assembled_examples(found, **options)

    @classmethod
    def assembled_examples(cls, examples: reading.Examples, **options: Any) -> Records:
        """Examples with their columns, checked and made records as those of any reader."""
        columns = {name: options.pop(name, None) for name in GIVEN_COLUMNS}
        if options.get("classes") is not None:
            options["classes"] = [
                reading.label_name(name) for name in reading.values_of(options["classes"])
            ]
        return cls.assembled(reading.find_examples(examples, **columns), **options)

    @classmethod
    def open(cls, spec: PathLike, **options: Unpack[ReadOptions]) -> Records:
        """Whatever it is: "digits", a data set's name (``cub200``, ``cub200:DIR``), a folder, a .npz,
        .parquet, .tar, .csv or .jsonl file, or the URL of one (``s3://…``)."""
        absolute_paths = options.get("absolute_paths", False)
        return cls.assembled(reading.find(spec, absolute_paths=absolute_paths), **options)

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
            positions = promises.positions_of(index, len(self))
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

    @property
    def remarks(self) -> tuple[str, ...]:
        """The reader's own: columns that mean nothing here, owners that look alike."""
        return self._remarks

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Oddities worth a look: the reader's remarks, owners with core and user records, and images that
        occur more than once."""
        copies = promises.notes_on_copies(self._records)
        return (*self._remarks, *promises.notes_on_owners(self._records), *copies)

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
        gone = promises.as_set(ids)
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
            wanted = promises.as_set(asked)
            known = set(self.classes) if attribute == "label" else self._values(attribute)
            promises.check_known(attribute, wanted, known)
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
            r
            if r.split is (split := promises.drawn_split(r, fraction, seed))
            else replace(r, split=split)
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
