"""What commands are given beside a model: images or data, read the way the model expects them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from efface.errors import EffaceError, FormatError, RecordError, RequestError

if TYPE_CHECKING:
    from efface.data.record import Record
    from efface.data.records import Records
    from efface.data.remarks import Note
    from efface.model.mixed_linear import MixedLinear
    from efface.pipeline.sections import DataConfig

ALL = "all"


def read_labelled(
    model: MixedLinear,
    folder: Path,
    spec: str,
    split: str,
    *,
    note: Note,
    absolute_paths: bool = False,
) -> Records:
    """The records of a split with the model's classes; a label that the model lacks is an error.

    The data may hold fewer classes than the model, so the reader is not given the model's list. If it
    is the data that the model in ``folder`` was trained on, it is read and split as it was then. What looks
    like a slip is said to ``note``.
    """
    from efface.data.records import Records
    from efface.data.remarks import tell

    data = _trained_on(folder)
    if data is not None and data.spec != spec:
        data = None
    anywhere = absolute_paths or (data is not None and data.absolute_paths)
    found = Records.open(spec, channels=_channels(model), absolute_paths=anywhere)
    if data is not None and data.core_fraction is not None:
        found = found.with_core_fraction(data.core_fraction, data.seed)
    records = Records(choose(tell(found, note), split), model.classes)
    if not len(records):
        counts = f"core {len(found.core)}, user {len(found.user)}, test {len(found.test)}"
        raise EffaceError(f"{spec} has no {split} records ({counts}).", "choose another --split.")
    return records


def _trained_on(folder: Path) -> DataConfig | None:
    from efface.pipeline.config import load_config
    from efface.workspace.published import current

    published = current(folder)
    path = (folder if published is None else published.folders(folder)[0]) / "config.toml"
    return load_config(path).data if path.is_file() else None


def split_as_trained(folder: Path, spec: str) -> DataConfig:
    """How to read ``spec``: as the model in ``folder`` did, if it is the data that it was trained on."""
    from efface.pipeline.sections import DataConfig

    data = _trained_on(folder)
    return data if data is not None and data.spec == spec else DataConfig(spec=spec)


def as_added(
    model: MixedLinear, folder: Path, spec: str, *, absolute_paths: bool = False
) -> DataConfig:
    """How :func:`read_labelled` reads ``spec``, for others to read it the same way."""
    how = split_as_trained(folder, spec)
    return how.model_copy(
        update={
            "channels": _channels(model),
            "absolute_paths": absolute_paths or how.absolute_paths,
            "classes": None,
            "core_data": None,
            "skip_bad": False,
        }
    )


def choose(records: Records, split: str) -> Records:
    """The records of one split, or all of them."""
    from efface.data.record import Split

    if split == ALL:
        return records
    if split not in list(Split):
        raise EffaceError(f"unknown split {split!r}.", "use core, user, test or all.")
    return records.where(lambda record: record.split == split)


def read_unlabelled(
    model: MixedLinear, items: Sequence[str], split: str, *, note: Note, skip_bad: bool = False
) -> Records:
    """Image files, folders of images and data specs, in the order given, each record once.

    Labels do not matter here, but a Record has one: they all get the model's first class. With ``skip_bad``
    every image is decoded now, and those that cannot be are in ``.skipped``.
    """
    from efface.data.record import Skipped
    from efface.data.records import Records

    found: dict[str, Record] = {}
    bad: list[Skipped] = []
    for item in items:
        try:
            for record in _records_of(model, item, split, skip_bad, note):
                found.setdefault(record.id, record)
        except RecordError as problem:
            if not skip_bad:
                raise
            bad.append(Skipped(item, problem.message))
    if skip_bad:
        unreadable = {name: why for name, why in map(_problem, found.values()) if why}
        bad += [Skipped(name, why) for name, why in unreadable.items()]
        found = {name: record for name, record in found.items() if name not in unreadable}
    if not found:
        raise EffaceError(f"no images in {', '.join(items)}.", "check the paths.")
    return Records(found.values(), model.classes, skipped=bad)


def _problem(record: Record) -> tuple[str, str]:
    """The record's id, and why its image cannot be had; empty if it can."""
    try:
        record.image()
    except RecordError as problem:
        return record.id, problem.message
    return record.id, ""


def read_meant(
    model: MixedLinear,
    folder: Path,
    data: str | None,
    owners: Sequence[str],
    ids: Sequence[str],
    digests: Sequence[str],
    images: Sequence[Path],
    *,
    note: Note,
    absolute_paths: bool = False,
) -> Records:
    """The records that are meant, with their images, as far as these are at hand."""
    from efface.data.record import Split
    from efface.data.records import Records

    found = Records([], model.classes)
    if images:
        found = read_unlabelled(model, [str(path) for path in images], "all", note=note)
    if data is not None:
        how = {"note": note, "absolute_paths": absolute_paths}
        known = read_labelled(model, folder, data, "all", **how)  # type: ignore[arg-type]
        for name in (*owners, *ids):
            if name not in {*known.owners, *known.ids}:
                fix = "check the spelling: what is not known cannot be looked for."
                raise RequestError(f"no record of {data} has owner or id {name!r}.", fix)
        # Core records are there for good: the scan says so of their owners, without their images.
        user = known.where(lambda r: r.split is Split.USER)
        meant = user.where(lambda r: r.owner in owners or r.id in ids or r.digest in digests)
        found = found + meant
    return found


def _records_of(
    model: MixedLinear, item: str, split: str, skip_bad: bool, note: Note
) -> list[Record]:
    from dataclasses import replace

    from efface.data.named.layouts import recognise
    from efface.data.readers.metadata import METADATA_NAMES
    from efface.data.records import Records
    from efface.regular import objection

    path, label = _path(item), model.classes[0]
    if _is_image(path) or (path.is_file() and not _is_data(path)):
        return [_record(path, label)]
    listed = path.is_dir() and any((path / name).is_file() for name in METADATA_NAMES)
    plain = path.is_dir() and not listed and not any(path.glob("*.parquet"))
    if plain and recognise(path) is None:
        found = (file for file in path.rglob("*") if file.is_file() and _is_image(file))
        files = sorted(file for file in found if objection(path, file) is None)
        return [_record(file, label) for file in files]
    opened = Records.open(item, channels=_channels(model), skip_bad=skip_bad)
    for text in opened.remarks:
        note(text)
    records = choose(opened, split)
    return [replace(record, label=label) for record in records]


def _path(item: str) -> Path:
    """A path, or the one that a ``file:`` URL names."""
    from efface.data.images import FileImage
    from efface.data.readers.memory import source_of

    if "://" not in item:
        return Path(item).expanduser()
    source = source_of(item, item)
    assert isinstance(source, FileImage)
    return source.path


def _is_image(path: Path) -> bool:
    from efface.data.readers.folder import IMAGE_SUFFIXES

    return path.suffix.lower() in IMAGE_SUFFIXES


def _is_data(path: Path) -> bool:
    return path.suffix.lower() in (".npz", ".parquet", ".csv", ".jsonl")


def _record(path: Path, label: str) -> Record:
    from efface.data.images import FileImage, digest_of, naming
    from efface.data.record import DEFAULT_COHORT, Record, Split

    name = str(path)
    if not path.is_file():
        raise RecordError(name, "there is no such file.", "check the path.")
    source = FileImage(path)
    with naming(name):
        digest = digest_of(source.content())
    return Record(name, name, DEFAULT_COHORT, label, Split.TEST, source, digest)


def _channels(model: MixedLinear) -> str | None:
    return model.core.backbone.preprocess.reads


def load_model(
    path: Path, trust_module: str | None = None, device: str | None = None
) -> MixedLinear:
    """The model that is published there; ``device`` is where its network is computed."""
    from efface.network.backbone import trusted_module
    from efface.workspace.published import load

    if not path.is_dir():
        what = f"{path} is not a model folder." if path.exists() else f"there is no {path}."
        raise FormatError(what, "give a folder written by efface train.")
    return load(path, module=trusted_module(trust_module), device=device)
