"""WebDataset: tar files in which members that share a name up to the first dot are one sample.

``0001.jpg``, ``0001.cls`` (the label) and ``0001.json`` (columns, as in any list) are a record. Nothing is
unpacked: an image is read from where it lies in the archive when it is asked for. So archives are not
compressed, and images are stored as encoded as they come.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, Any

from efface.containers import DAMAGED
from efface.data.blobs import Blob, BlobPart
from efface.data.columns import check_names
from efface.data.found import Found, Row, make_row, split_of_name, whole_number_classes
from efface.data.readers.folder import IMAGE_SUFFIXES
from efface.data.record import Skipped
from efface.errors import FormatError, RecordError

BLOCK = 512  # a tar's unit
LARGEST_TEXT = 1 << 20  # bytes of a label or of a sample's columns
FETCH = "fetch it again, or write it anew with plain `tar`, not compressed."


@dataclass
class Sample:
    """What an archive has of one key."""

    images: list[BlobPart] = field(default_factory=list)
    label: str | int | None = None
    columns: dict[str, Any] = field(default_factory=dict)


def find_webdataset(shards: Sequence[Blob], pieces: Callable[[str], bool] | None = None) -> Found:
    """Tar files in order. Without a column ``split`` a file called ``test-….tar`` says what it holds.

    Only those whose names are among ``pieces`` are opened: to know what is in one it is read through.
    """
    rows: list[Row] = []
    skipped: list[Skipped] = []
    labels: list[Any] = []
    names: set[str] = set()
    for shard in shards:
        if pieces is not None and not pieces(shard.name):
            continue
        for key, sample in _samples(shard, skipped).items():
            columns = _columns(shard, key, sample)
            labels.append(columns["label"])
            names |= set(columns)
            split, image = split_of_name(shard.stem), sample.images[0]
            name = f"{shard.stem}/{key}"
            rows.append(make_row(columns, image, name, split=split, unit=shard.name))
    check_names(names, used=names, where=shards[0].name if len(shards) == 1 else "")
    return Found(rows, whole_number_classes(labels), skipped=skipped, listed=False)


def _columns(shard: Blob, key: str, sample: Sample) -> dict[str, Any]:
    """The sample's columns with its label; an error where there is not one image and one label."""
    name = f"{shard.stem}/{key}"
    if len(sample.images) != 1:
        have = "no image" if not sample.images else f"{len(sample.images)} images"
        fix = (
            "a sample has one image, and what belongs to it has the same name up to the first dot."
        )
        raise RecordError(name, f"{shard.name} has {have} for the key {key!r}.", fix)
    given = sample.columns.get("label")
    if given is None and sample.label is None:
        message = f"{shard.name} has no label for the key {key!r}."
        raise RecordError(name, message, f"add {key}.cls, or a label to {key}.json.")
    return sample.columns | {"label": sample.label if given is None else given}


def _samples(shard: Blob, skipped: list[Skipped]) -> dict[str, Sample]:
    samples: dict[str, Sample] = {}
    last = "its beginning"
    try:
        with shard.open() as file:
            for member in _members(file, shard.size()):
                _take(shard, file, member, samples, skipped)
                last = repr(member.name)
    except (*DAMAGED, MemoryError) as problem:
        message = f"{shard.name} is damaged after {last} ({problem!s:.200})."
        raise FormatError(message, FETCH) from problem
    if not samples:
        raise FormatError(f"{shard.name} has no samples.", "check that it is a WebDataset shard.")
    return samples


def _members(file: IO[bytes], size: int) -> Iterator[tarfile.TarInfo]:
    """Every member; ValueError for an archive that goes on beyond its end, or has none."""
    end = 0
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # else it keeps all of them
            end = member.offset_data + (-(-member.size // BLOCK) * BLOCK if member.isreg() else 0)
            if end > size:
                raise ValueError(f"{member.size} bytes of {member.name!r:.100} are not all there")
            yield member
        file.seek(end)
        if file.read(BLOCK) != bytes(BLOCK):
            raise ValueError("the mark of its end is missing: it was cut short")


def _take(
    shard: Blob,
    file: IO[bytes],
    member: tarfile.TarInfo,
    samples: dict[str, Sample],
    skipped: list[Skipped],
) -> None:
    if member.isdir():
        return
    reason = _objection(member)
    path = PurePosixPath(member.name)
    if reason is None and path.name.startswith("."):
        return  # what systems leave behind
    key, _, ending = path.name.partition(".")
    kind = f".{ending.lower()}"
    if reason is None and kind not in IMAGE_SUFFIXES and kind not in (".cls", ".json"):
        reason = "no image, .cls or .json"
    if reason is not None:
        skipped.append(Skipped(f"{shard.stem}/{member.name!s:.200}", reason))
        return
    name = (path.parent / key).as_posix()
    sample = samples.setdefault(name, Sample())
    if kind in IMAGE_SUFFIXES:
        sample.images.append(BlobPart(shard, member.offset_data, member.size))
        return
    text = _text(shard, file, member, name)
    if kind == ".cls":
        sample.label = int(text) if text.strip().lstrip("-").isdigit() else text.strip()
    else:
        sample.columns = _object(shard, name, text)


def _objection(member: tarfile.TarInfo) -> str | None:
    path = PurePosixPath(member.name)
    if not member.isreg() or member.issparse():
        return "a link, a device or a file with holes"
    if path.is_absolute() or ".." in path.parts or "\0" in member.name:
        return "its name leads out of the archive"
    return None


def _text(shard: Blob, file: IO[bytes], member: tarfile.TarInfo, key: str) -> str:
    if member.size > LARGEST_TEXT:
        message = f"{member.name!r:.100} in {shard.name} has {member.size:,} bytes."
        fix = f"labels and columns have at most {LARGEST_TEXT:,}."
        raise RecordError(f"{shard.stem}/{key}", message, fix)
    file.seek(member.offset_data)
    try:
        return file.read(member.size).decode()
    except UnicodeDecodeError as problem:
        message = f"{member.name!r:.100} in {shard.name} is not UTF-8."
        raise RecordError(f"{shard.stem}/{key}", message, "write it as UTF-8 text.") from problem


def _object(shard: Blob, key: str, text: str) -> dict[str, Any]:
    try:
        columns = json.loads(text)
    except (ValueError, RecursionError):
        columns = None
    if not isinstance(columns, dict):
        message = f"the .json of {key!r} in {shard.name} is not a JSON object."
        fix = 'write {"label": …, "owner": …} into it.'
        raise RecordError(f"{shard.stem}/{key}", message, fix)
    return columns
