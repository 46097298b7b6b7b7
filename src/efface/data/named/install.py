"""A data set from its archives to its folder: fetch, verify, unpack aside, check, rename.

The folder appears whole or not at all. What was fetched stays in ``.downloads`` until then, so that nothing
is fetched twice.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efface.data.named.catalog import Access, Archive, Dataset
from efface.data.named.download import digest, fetch, verify
from efface.data.named.layouts import Spec, locate
from efface.data.named.unpack import unpack
from efface.errors import EffaceError
from efface.files import locked
from efface.progress import Progress, part

RECEIPT, SCHEMA = "efface-source.json", "efface.source/1"
ROOM = 2.2  # an archive and what is in it, in sizes of the archive


@dataclass(frozen=True)
class Consent:
    """What the user has agreed to."""

    terms: bool = False
    unverified: bool = False


@dataclass(frozen=True)
class Installed:
    """``receipt`` lists the archives with their SHA-256; it is empty if the data was there before."""

    folder: Path
    receipt: tuple[dict[str, Any], ...] = ()


def install(
    dataset: Dataset,
    root: Path,
    *,
    consent: Consent,
    archives: Path | None,
    progress: Progress,
) -> Installed:
    """Put the data set into ``root/<name>``; ``archives`` is a folder with files fetched by hand."""
    if dataset.access is Access.BUILT_IN:
        fix = f"nothing: use {dataset.name!r} as it is."
        raise EffaceError(f"{dataset.name} comes with efface.", fix)
    target = root / dataset.name
    if target.exists():
        return Installed(_complete(dataset, target))
    _check_consent(dataset, consent, archives)
    if archives is None:
        root.mkdir(parents=True, exist_ok=True)
        _check_room(dataset, root)
    downloads = root / ".downloads" / dataset.name
    busy = lambda: progress(0.0, "another process fetches it: waiting")  # noqa: E731
    with locked(downloads / "lock", busy):
        if target.exists():  # by now: it was waited for
            return Installed(_complete(dataset, target))
        if archives is None:
            paths = _fetch_all(dataset.archives, downloads, progress)
        else:
            paths = [_given(archive, archives) for archive in dataset.archives]
        installed = _publish(dataset, paths, target, progress)
        shutil.rmtree(downloads, ignore_errors=True)
    with contextlib.suppress(OSError):
        downloads.parent.rmdir()  # unless another data set is being fetched
    return installed


# What has to be so before anything is fetched.


def _complete(dataset: Dataset, target: Path) -> Path:
    try:
        return locate(Spec(dataset.name, folder=target))[1]
    except EffaceError as problem:
        fix = "remove the folder, or choose another --root."
        raise EffaceError(problem.message, fix) from problem


def _check_consent(dataset: Dataset, consent: Consent, archives: Path | None) -> None:
    if dataset.access is Access.BY_HAND and archives is None:
        raise EffaceError(f"{dataset.name} is not fetched: {dataset.reason}.", by_hand(dataset))
    if dataset.access is Access.ON_ACCEPTANCE and archives is None and not consent.terms:
        message = f"{dataset.name} has terms: {dataset.terms}."
        raise EffaceError(message, f"read {dataset.page}; if you agree, add --accept-terms.")
    unknown = [archive.file for archive in dataset.archives if archive.checksum is None]
    if unknown and not consent.unverified:
        message = f"no official checksum is known for {', '.join(unknown)}: it cannot be verified."
        raise EffaceError(message, "--unverified goes on and records the SHA-256 that it saw.")


def by_hand(dataset: Dataset) -> str:
    """What a person has to do, in one sentence."""
    steps = ", ".join(
        f"{archive.url} ({archive.checksum or 'no checksum known'})" for archive in dataset.archives
    )
    return (
        f"read the terms at {dataset.page}; download into one folder: {steps}; "
        f"then run `efface data get {dataset.name} --from FOLDER`."
    )


def _check_room(dataset: Dataset, root: Path) -> None:
    needed = ROOM * sum(archive.num_bytes or 0 for archive in dataset.archives)
    free = shutil.disk_usage(root).free
    if free < needed:
        message = (
            f"{dataset.name} needs {needed / 1e9:.1f} GB, {root} has {free / 1e9:.1f} GB free."
        )
        raise EffaceError(message, "make room, or choose another --root.")


def _given(archive: Archive, folder: Path) -> Path:
    path = folder / archive.file
    if not path.is_file():
        fix = f"download it from {archive.url}."
        raise EffaceError(f"there is no {archive.file} in {folder}.", fix)
    verify(archive, path)
    return path


# Doing it.


def _fetch_all(archives: Sequence[Archive], folder: Path, progress: Progress) -> list[Path]:
    sizes = [archive.num_bytes or 1_000_000_000 for archive in archives]  # unknown: about a GB
    paths, done = [], 0.0
    for archive, size in zip(archives, sizes, strict=True):
        share = size / sum(sizes)
        paths.append(fetch(archive, folder, part(progress, done, done + share)))
        done += share
    return paths


def _entry(archive: Archive, path: Path) -> dict[str, Any]:
    return {
        "url": archive.url,
        "bytes": path.stat().st_size,
        "sha256": digest(path),
        "verified": archive.checksum is not None,
    }


def _publish(
    dataset: Dataset, paths: Sequence[Path], target: Path, progress: Progress
) -> Installed:
    receipt = [_entry(a, path) for a, path in zip(dataset.archives, paths, strict=True)]
    progress(1.0, "unpacking")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{dataset.name}-") as aside:
        folder = Path(aside) / "unpacked"  # not the folder itself, which only its owner may read
        folder.mkdir()
        for archive, path in zip(dataset.archives, paths, strict=True):
            unpack(path, folder)
            for inner in archive.inner:
                unpack(folder / inner, folder)
                (folder / inner).unlink()
        locate(Spec(dataset.name, folder=folder))
        values = {"schema": SCHEMA, "archives": receipt}
        (folder / RECEIPT).write_text(json.dumps(values, indent=1), encoding="utf-8")
        folder.rename(target)
    return Installed(target, tuple(receipt))
