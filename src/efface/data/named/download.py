"""Fetching one archive: it is resumed where it stopped, and believed only if its checksum agrees."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from efface.data.named.catalog import Archive
from efface.errors import EffaceError, FormatError
from efface.progress import Progress
from efface.version import VERSION

CHUNK = 1 << 20  # bytes
TIMEOUT = 60.0  # seconds without a byte
RESUME = "run the command again; it goes on where it stopped."


def fetch(archive: Archive, folder: Path, progress: Progress) -> Path:
    """The verified archive in ``folder``; what has been fetched before is not fetched again.

    Without a checksum nothing would notice if two halves did not fit: such an archive is not resumed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / archive.file
    if not target.is_file():
        part = folder / f"{archive.file}.part"
        if archive.checksum is None:
            part.unlink(missing_ok=True)
        _download(archive, part, progress)
        part.replace(target)
    verify(archive, target, delete=True)
    return target


def _download(archive: Archive, part: Path, progress: Progress) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if archive.num_bytes is not None and have == archive.num_bytes:
        return
    try:
        with _open(archive.url, have) as response:
            have, total = _agreed(archive, response, have)
            with part.open("ab" if have else "wb") as file:
                _copy(archive, response, file.write, have, total, progress)
    except urllib.error.HTTPError as problem:
        if problem.headers.get("Content-Range") == f"bytes */{have}":
            return  # all of it was there already
        if problem.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)  # longer than the archive: it is another one by now
            raise EffaceError(f"{archive.file} changed while it was fetched.", RESUME) from problem
        message = f"{archive.url} answers {problem.code} {problem.reason}."
        raise EffaceError(message, "look at the data set's page (`efface data list`).") from problem
    except (OSError, http.client.HTTPException) as problem:
        raise EffaceError(f"{archive.url} cannot be fetched ({problem}).", RESUME) from problem


def _open(url: str, start: int) -> Any:
    if urlsplit(url).scheme not in ("http", "https"):
        raise EffaceError(f"{url} is not a web address.", "use http or https.")
    headers = {"User-Agent": f"efface/{VERSION}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)


def _agreed(archive: Archive, response: Any, have: int) -> tuple[int, int | None]:
    """Where the answer begins (a server may ignore the range) and how long the archive is."""
    begin = f"bytes {have}-"
    resumed = response.status == http.client.PARTIAL_CONTENT
    if resumed and not str(response.headers.get("Content-Range", "")).startswith(begin):
        raise EffaceError(f"{archive.url} sends another part than was asked for.", RESUME)
    start = have if resumed else 0
    length = response.headers.get("Content-Length")
    total = None if length is None else start + int(length)
    if None not in (total, archive.num_bytes) and total != archive.num_bytes:
        message = f"{archive.url} is {total} bytes long, {archive.num_bytes} are expected."
        raise FormatError(message, "the archive has changed: look at the data set's page.")
    return start, total if total is not None else archive.num_bytes


def _copy(
    archive: Archive,
    response: Any,
    write: Callable[[bytes], object],
    have: int,
    total: int | None,
    progress: Progress,
) -> None:
    while chunk := response.read(CHUNK):
        have += len(chunk)
        if total is not None and have > total:
            raise FormatError(f"{archive.url} sends more than {total} bytes.", "do not trust it.")
        write(chunk)
        progress(have / total if total else 0.0, f"{archive.file} {have / 1e6:,.0f} MB")
    if total is not None and have < total:
        raise EffaceError(f"the connection ended after {have} of {total} bytes.", RESUME)


# Checking.


def verify(archive: Archive, path: Path, *, delete: bool = False) -> None:
    """Size and checksum; a file that fails is deleted if it is ours."""
    problem = _difference(archive, path)
    if problem is None:
        return
    if delete:
        path.unlink()
    fix = "fetch it again; if this stays, the archive has changed: look at the data set's page."
    raise FormatError(f"{path.name} {problem}; it was not unpacked.", fix)


def _difference(archive: Archive, path: Path) -> str | None:
    size = path.stat().st_size
    if archive.num_bytes is not None and size != archive.num_bytes:
        return f"has {size} bytes, not {archive.num_bytes}"
    if archive.checksum is None:
        return None
    algorithm, _, expected = archive.checksum.partition(":")
    seen = digest(path, algorithm)
    return None if seen == expected else f"has the {algorithm} {seen}, not {expected}"


def digest(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(algorithm, usedforsecurity=False)
        ).hexdigest()
