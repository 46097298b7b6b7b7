"""Look whether anything of some records is left in a workspace: every file, byte by byte.

Given the records themselves (images and all), what the workspace would hold of them is computed again and
searched for: boundary activations, ψ rows, target rows, pixels and files. A row is looked for twice: a few
64-byte pieces of it in every file whatever its format, and the whole row, up to rounding, among the rows of
the arrays that are known to hold such rows (a kernel may round differently from one batch size to another).
Names (ids, owners, paths) and content digests are searched for as text, and in the names of files.

Every file that the workspace does not own is a finding, whatever is in it; archives are opened, and pictures
compared by what they show. The one thing that is kept of a forgotten record is an HMAC of its digest, in the
list by which the record is refused when it comes again.

The scan changes nothing, and needs no lock; run it when no request is running.
"""

from __future__ import annotations

import json
import mmap
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import nn

from efface.containers import DAMAGED, LARGEST, TooLarge, inside
from efface.data.images import FileImage, decode
from efface.data.records import Records
from efface.errors import EffaceError, RequestError
from efface.files import read_tensors
from efface.model.request import Request
from efface.progress import Progress, part
from efface.workspace import Workspace
from efface.workspace.forgotten import NAME as FORGOTTEN
from efface.workspace.patterns import Wanted, holds, patterns_of, pictures_of, spellings, thumbnail
from efface.workspace.published import load

LONG_NAME = 8  # bytes; shorter names occur by chance in binary data, and are searched in text only
PAGE = "a page of ours"  # its style and its times name nobody, whatever a person is called
TIME = r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d[^\s<\"]*)?"
OF_EVERY_PAGE = re.compile(rf"<style>.*?</style>|{TIME}", re.DOTALL)
FOREIGN = "a file that is not the workspace's"
SEARCHING = 0.3  # of the time, about, goes into rows of the images, the rest into files
ALIKE = 6.0  # of 255: pictures that differ by less, 16 × 16 pixels on average, show the same
LARGEST_PICTURE = 1 << 26  # bytes; larger files are not tried as pictures


@dataclass(frozen=True)
class Finding:
    """``what`` was found in ``file``; ``how`` says in which form."""

    file: str
    what: str
    how: str


@dataclass(frozen=True)
class Scan:
    """All files that were looked at, what was found, and what could not be searched for."""

    files: tuple[str, ...]
    findings: tuple[Finding, ...]
    kept: tuple[Finding, ...]  # in the list of what is refused: kept on purpose
    num_patterns: int
    not_searched: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.findings


def scan(
    path: Path | str,
    *,
    records: Records | None = None,
    ids: Iterable[str] = (),
    owners: Iterable[str] = (),
    digests: Iterable[str] = (),
    module: nn.Module | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Search the workspace at ``path`` for these records and names; see the module.

    ``records`` come with their images; their ids and paths are searched for too, their owners only if
    they are named in ``owners`` (an owner may have other records that stay). ``device`` is where what would
    be stored of them is computed.
    """
    workspace = Workspace.open(path, recover=False, module=module)
    records = records if records is not None else Records([])
    names = {*ids, *owners, *records.ids, *_paths(records)}
    digests = {*(digest.lower() for digest in digests), *records.digests}
    if not names and not digests:
        raise RequestError("there is nothing to look for.", "name an id, an owner or a digest.")
    for digest in digests:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            fix = "give the 64 hexadecimal digits of the content's SHA-256."
            raise RequestError(f"{digest!r} is not a content digest.", fix)
    model = load(path, module=module, device=device)
    patterns = patterns_of(model, records, part(progress, 0, SEARCHING))
    wanted = Wanted(patterns, spellings(names), digests, pictures_of(records))
    looked, odd, folders = _walk(workspace.path)
    findings = [
        Finding(
            _name(stray, workspace.path), "an unfinished request or an old release", "as a file"
        )
        for stray in workspace.inventory.strays()
    ]
    findings += [
        Finding(_name(path, workspace.path), "weights without noise", "as a file")
        for path in workspace.store.forbidden()
    ]
    for file in odd:
        findings.append(Finding(_name(file, workspace.path), "a link or a device", "as a file"))
    for file in (*folders, *odd, *looked):
        findings += _in_its_name(_name(file, workspace.path), wanted)
    owned = _owned(workspace)
    findings += _in_core(workspace, owners)
    searching, searched = part(progress, SEARCHING, 1), 0
    sizes = [file.lstat().st_size for file in looked]
    for i, file in enumerate(looked):
        findings += _search_file(file, _name(file, workspace.path), wanted, owned)
        searched += sizes[i]
        searching(searched / (sum(sizes) or 1), f"files {i + 1}/{len(looked)}")
    missing = () if len(records) else ("rows and images: no image was given",)
    return Scan(
        files=tuple(_name(file, workspace.path) for file in looked),
        findings=tuple(dict.fromkeys(findings)),
        kept=tuple(_kept(workspace, digests)),
        num_patterns=len(patterns) + len(names) + len(digests),
        not_searched=missing,
    )


def _in_core(workspace: Workspace, owners: Iterable[str]) -> Iterator[Finding]:
    """Core records of these people, known by a keyed hash: not by name, but they are there."""
    index, file = (
        workspace.core_index,
        _name(workspace.inventory.base / "core-records.json", workspace.path),
    )
    for owner in sorted(set(owners)):
        number = len(index.matching(Request.of(owner=owner)))
        if number:
            yield Finding(file, f"{number} images of {owner!r}", "in core")


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()


def _walk(root: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Files, what is neither file nor folder (links are not followed), and folders."""
    files: list[Path] = []
    odd: list[Path] = []
    folders: list[Path] = []
    for entry in sorted(root.rglob("*")):
        mode = entry.lstat().st_mode
        kind = files if stat.S_ISREG(mode) else folders if stat.S_ISDIR(mode) else odd
        kind.append(entry)
    return files, odd, folders


def _owned(workspace: Workspace) -> set[str]:
    try:
        return workspace.inventory.owned()
    except EffaceError:  # then nothing is known to be its own
        return set()


def _kept(workspace: Workspace, digests: set[str]) -> Iterator[Finding]:
    try:
        forgotten = workspace.inventory.forgotten
    except EffaceError:
        return
    file = f"private/{workspace.number}/{FORGOTTEN}"
    for digest in sorted(digests):
        if digest in forgotten:
            yield Finding(file, digest, "as a keyed digest")


def _in_its_name(name: str, wanted: Wanted) -> Iterator[Finding]:
    spelt = {name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)}
    for text in sorted(wanted.names):
        inner = [part for part in (text, text.replace("/", "_")) if part]
        if any(_mentions(place, part) for place in spelt for part in inner):
            yield Finding(name, repr(text), "in its name")
    for digest in sorted(wanted.digests):
        if digest in name.lower():
            yield Finding(name, digest, "in its name")


def _paths(records: Records) -> list[str]:
    return [str(r.source.path) for r in records if isinstance(r.source, FileImage)]


# --- where to look --------------------------------------------------------------------------------


def _search_file(file: Path, name: str, wanted: Wanted, owned: set[str]) -> Iterator[Finding]:
    """One file; that it cannot be read is a finding, and does not stop the others."""
    foreign = name not in owned
    if foreign:
        yield Finding(name, FOREIGN, "as a file")
    try:
        if file.stat().st_size == 0:
            return
        with (
            file.open("rb") as handle,
            mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            suffix = file.suffix if foreign or file.suffix != ".html" else PAGE
            found = list(_search(suffix, name, data, wanted))
            yield from found
            if foreign:
                yield from _look_inside(name, data, wanted)
        known = {finding.what for finding in found}
        yield from (row for row in _search_rows(file, name, wanted) if row.what not in known)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, EffaceError) as problem:
        yield Finding(name, f"a file that cannot be read ({problem!s:.120})", "as a file")


def _search(suffix: str, name: str, data: mmap.mmap | bytes, wanted: Wanted) -> Iterator[Finding]:
    for pattern in wanted.patterns:
        if any(data.find(piece) >= 0 for piece in pattern.pieces):
            yield Finding(name, pattern.what, "byte for byte")
    text, start = _text(suffix, data)
    for spelt in sorted(wanted.names):
        if _mentions(text, spelt) or _contains(data, start, spelt):
            yield Finding(name, repr(spelt), "by name")
    for digest in sorted(wanted.digests):
        forms = (digest.encode(), digest.upper().encode(), bytes.fromhex(digest))
        if any(data.find(form) >= 0 for form in forms):
            yield Finding(name, digest, "as a content digest")


def _search_rows(file: Path, name: str, wanted: Wanted) -> Iterator[Finding]:
    rows = list(_row_arrays(file)) if any(p.row is not None for p in wanted.patterns) else []
    for pattern in wanted.patterns:
        if any(holds(array, pattern.row) for array in rows):
            yield Finding(name, pattern.what, "up to rounding")


def _look_inside(name: str, data: mmap.mmap, wanted: Wanted) -> Iterator[Finding]:
    """Archives, compressed files and pictures, of files that are not the workspace's."""
    if len(data) > LARGEST:
        yield Finding(name, "a file too large to open", "as a file")
        return
    whole = data[:]
    yield from _look_at(name, whole, wanted)
    try:
        for inner, content in inside(whole):
            place = f"{name}/{inner}"
            yield from _in_its_name(place, wanted)
            yield from _search(PurePosixPath(inner).suffix, place, content, wanted)
            yield from _look_at(place, content, wanted)
    except (TooLarge, *DAMAGED):
        yield Finding(name, "an archive that cannot be opened to its end", "as a file")


def _look_at(name: str, data: bytes, wanted: Wanted) -> Iterator[Finding]:
    if not wanted.pictures or len(data) > LARGEST_PICTURE:
        return
    try:
        small = thumbnail(decode(data))
    except Exception:  # no picture: decoders raise whatever their parser stumbled over
        return
    for what, picture in wanted.pictures.items():
        if float(np.abs(small - picture).mean()) < ALIKE:
            yield Finding(name, what, "as a picture")


def _text(suffix: str, data: mmap.mmap | bytes) -> tuple[str, int]:
    """The file's text, JSON escapes undone, and where binary data begins (safetensors: after the header)."""
    if suffix == ".safetensors":
        start = 8 + int.from_bytes(data[:8], "little")
        return data[8:start].decode(errors="replace"), min(start, len(data))
    try:
        text = data[:].decode()
    except UnicodeDecodeError:
        return "", 0
    if suffix == PAGE:
        return OF_EVERY_PAGE.sub(" ", text), len(data)
    if suffix in (".json", ".jsonl"):
        text += "\n" + "\n".join(_strings(text, suffix == ".jsonl"))
    return text, len(data)


def _strings(text: str, lines: bool) -> Iterator[str]:
    """Every key and string in JSON, as it was before escaping."""
    for document in text.splitlines() if lines else [text]:
        try:
            todo = [json.loads(document)]
        except (ValueError, RecursionError):
            continue
        while todo:
            value = todo.pop()
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                todo += value
            elif isinstance(value, dict):
                todo += [*value, *value.values()]


def _mentions(text: str, name: str) -> bool:
    """Whether a name occurs as a whole word: ``u1`` is not in ``u17``."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _contains(data: mmap.mmap | bytes, start: int, name: str) -> bool:
    """Whether a name long enough not to be there by chance occurs in binary data."""
    forms = [name.encode(errors="surrogateescape"), name.encode("utf-16-le", "surrogatepass")]
    return any(len(form) >= LONG_NAME and data.find(form, start) >= 0 for form in forms)


def _row_arrays(file: Path) -> Iterator[np.ndarray]:
    """The arrays of a file whose rows may be records', (n, …) flattened to (n, k)."""
    if file.suffix == ".safetensors":
        for tensor in read_tensors(file).values():
            if tensor.dim() >= 2 and len(tensor) and tensor.dtype != torch.bfloat16:
                yield tensor.reshape(len(tensor), -1).numpy()
    elif file.name == "rows.bin" and (file.parent / "index.json").is_file():
        size = int(np.prod(json.loads((file.parent / "index.json").read_bytes())["shape"]))
        dtype = np.dtype(file.parent.name.rpartition("-")[2])
        memory = np.memmap(file, dtype=dtype, mode="r")
        yield memory[: len(memory) // size * size].reshape(-1, size)
