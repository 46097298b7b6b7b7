"""Certificates of releases that are no more: what is left of them once another release is published.

A digest of sums, or a residual to sixteen digits, that a forgotten record went into would let whoever has the
record find its label by trying. So the private form goes, and the public one keeps what was promised and
whether it was met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from efface import files
from efface.errors import FormatError
from efface.workspace.disk import remove
from efface.workspace.manifest import bytes_digest

CERTIFICATE_SCHEMA = "efface.certificate/1"
TELLING = ("statistics_digest", "weights_digest", "num_retained", "num_from_partners")


def numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    """The certificates and the numbers of their releases; other files are not ours."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        number, _, form = path.name.partition(".")
        if number.isdigit() and form.removesuffix(".tmp") in ("private.json", "public.json"):
            yield int(number), path


def is_left_over(number: int, path: Path, current: int) -> bool:
    """Whether a finished request would not have left this certificate as it is."""
    older = number < current and path.name.endswith(".private.json")
    return path.suffix == ".tmp" or number > current or older


def redacted(path: Path) -> bytes:
    """The public certificate of a superseded release, as it stays."""
    try:
        values = files.read_json(path, CERTIFICATE_SCHEMA)
    except FormatError:  # damaged: that must not stand in the way of a request
        values = {"schema": CERTIFICATE_SCHEMA}
    kept: dict[str, Any] = {name: value for name, value in values.items() if name not in TELLING}
    return files.encode({**kept, "superseded": True})


def digests(folder: Path, current: int, known: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of what :func:`supersede` leaves of earlier certificates.

    Those that have lost their private form already are as ``known`` has them, and are not read again.
    """
    result = {}
    for number, path in numbered(folder):
        name = f"{folder.name}/{path.name}"
        if number < current and path.name.endswith(".public.json"):
            settled = name in known and not path.with_name(f"{number}.private.json").exists()
            result[name] = known[name] if settled else bytes_digest(redacted(path))
    return result


def supersede(folder: Path, current: int) -> None:
    """Take out of earlier certificates what must not stay; the private form last, as a mark."""
    for number, path in numbered(folder):
        public = path.with_name(f"{number}.public.json")
        if number < current and path.name.endswith(".private.json"):
            if public.is_file():
                files.write_bytes(public, redacted(public), files.PUBLIC)
            remove(path)
        elif is_left_over(number, path, current):
            remove(path)
