"""Look whether anything of some records is left in a workspace: every file, byte by byte.

Given the records themselves (images and all), what the workspace would hold of them is computed again and
searched for: boundary activations, ψ rows, target rows, pixels and files. A row is looked for twice: a few
64-byte pieces of it in every file whatever its format, and the whole row, up to rounding, among the rows of
the arrays that are known to hold such rows (a kernel may round differently from one batch size to another).
Names (ids, owners, paths) and content digests are searched for as text. The only place where a digest may
be found is the journal, which keeps it to refuse the record when it comes again.

The scan changes nothing, and needs no lock; run it when no request is running.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from efface.compact.user import CompactUser
from efface.errors import RequestError
from efface.files import read_tensors
from efface.images import FileImage
from efface.model import MixedLinear
from efface.records import Record, Records
from efface.requests import Request
from efface.workspace import Workspace

PIECE = 64  # bytes
PIECES = 3  # of a row
DISTINCT = 12  # byte values in a piece; fewer are too common (zeros) to prove anything
LONG_NAME = 8  # bytes; shorter names occur by chance in binary data, and are searched in text only
RELATIVE = 1e-3  # rows nearer than this are the same row, rounded differently
OFF_BY_ONE = 0.02  # the share of a quantised row's integers that may round to a neighbour
SHORT_ROW = 16  # entries; shorter rows are alike by chance
JOURNAL = "journal.jsonl"


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
    kept: tuple[Finding, ...]  # digests in the journal: kept on purpose
    num_patterns: int
    not_searched: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.findings


@dataclass(frozen=True, eq=False)
class Pattern:
    """One record's row of some kind. ``pieces`` are searched for as bytes, ``row`` among rows."""

    what: str
    pieces: tuple[bytes, ...]
    row: np.ndarray | None = field(default=None, repr=False)


def scan(
    path: Path | str,
    *,
    records: Records | None = None,
    ids: Iterable[str] = (),
    owners: Iterable[str] = (),
    digests: Iterable[str] = (),
    module: nn.Module | None = None,
) -> Scan:
    """Search the workspace at ``path`` for these records and names; see the module.

    ``records`` come with their images; their ids and paths are searched for too, their owners only if
    they are named in ``owners`` (an owner may have other records that stay).
    """
    workspace = Workspace.open(path, recover=False, module=module)
    records = records if records is not None else Records([])
    names = {*ids, *owners, *records.ids, *_paths(records)}
    digests = {*digests, *records.digests}
    if not names and not digests:
        raise RequestError("there is nothing to look for.", "name an id, an owner or a digest.")
    for digest in digests:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            fix = "give the 64 hexadecimal digits of the content's SHA-256."
            raise RequestError(f"{digest!r} is not a content digest.", fix)
    patterns = _patterns(MixedLinear.load(path, module=module), records)
    looked = sorted(file for file in workspace.path.rglob("*") if file.is_file())
    findings = [
        Finding(
            _name(stray, workspace.path), "an unfinished request or an old release", "as a file"
        )
        for stray in workspace.strays()
    ]
    findings += [
        Finding(_name(path, workspace.path), "weights without noise", "as a file")
        for path in workspace.forbidden()
    ]
    findings += _in_core(workspace, owners)
    for file in looked:
        findings += _search(file, _name(file, workspace.path), patterns, names, digests)
    allowed = [f for f in findings if f.file == JOURNAL and f.how == "as a content digest"]
    missing = () if len(records) else ("rows and images: no image was given",)
    return Scan(
        files=tuple(_name(file, workspace.path) for file in looked),
        findings=tuple(f for f in findings if f not in allowed),
        kept=tuple(allowed),
        num_patterns=len(patterns) + len(names) + len(digests),
        not_searched=missing,
    )


def _in_core(workspace: Workspace, owners: Iterable[str]) -> Iterator[Finding]:
    """Core records of these people, known by a keyed hash: not by name, but they are there."""
    index = workspace.core_index
    for owner in sorted(set(owners)):
        number = len(index.matching(Request.of(owner=owner)))
        if number:
            yield Finding("core-records.json", f"{number} images of {owner!r}", "in core")


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()


def _paths(records: Records) -> list[str]:
    return [str(r.source.path) for r in records if isinstance(r.source, FileImage)]


# --- what to look for -----------------------------------------------------------------------------


def _patterns(model: MixedLinear, records: Records) -> list[Pattern]:
    if not len(records):
        return []
    records = Records(records, model.classes)
    activations, floats = model.activations(records), model.core.activations(records)
    shown, plain = (
        some[slice(0, len(records))].reshape(len(records), -1).numpy()
        for some in (activations, floats)
    )
    result = []
    for record, row, numbers in zip(records, shown, plain, strict=True):
        for form in (row, numbers, numbers.astype(np.float16)):
            result.append(_pattern("the boundary activation", record, form))
        result += _content(record)
    if isinstance(model.user, CompactUser) and model.user.projection is not None:
        rows = model.user.rows(activations, model.core.labels(records))
        for record, row, target in zip(records, rows.features, rows.targets, strict=True):
            result.append(_pattern("the ψ row", record, row))
            result.append(_pattern("the target row", record, target))
    return [pattern for pattern in result if pattern.pieces or pattern.row is not None]


def _pattern(what: str, record: Record, row: np.ndarray) -> Pattern:
    telling = len(row) >= SHORT_ROW and row.any()  # a row of zeros is what purging leaves behind
    name = f"{what} of {record.id!r}"
    return Pattern(name, pieces_of(row.tobytes()), row if telling else None)


def _content(record: Record) -> Iterator[Pattern]:
    yield Pattern(f"the pixels of {record.id!r}", pieces_of(record.image().tobytes()))
    content = record.source.content()
    if isinstance(content, bytes):
        yield Pattern(f"the image file of {record.id!r}", pieces_of(content))


def pieces_of(data: bytes) -> tuple[bytes, ...]:
    """The most varied piece of each third of ``data``; none where all are too monotonous.

    Data shorter than a piece is searched for whole, if it is varied enough.
    """
    if len(data) <= PIECE:
        return (data,) if len(set(data)) >= DISTINCT else ()
    chosen = []
    for third in np.array_split(np.arange(0, len(data) - PIECE + 1, 8), PIECES):
        candidates = [data[i : i + PIECE] for i in third[:4096]]
        best = max(candidates, key=lambda piece: len(set(piece)), default=b"")
        if len(set(best)) >= DISTINCT:
            chosen.append(best)
    return tuple(dict.fromkeys(chosen))


# --- where to look --------------------------------------------------------------------------------


def _search(
    file: Path, name: str, patterns: Sequence[Pattern], names: set[str], digests: set[str]
) -> list[Finding]:
    if file.stat().st_size == 0:
        return []
    findings = []
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for pattern in patterns:
            if any(data.find(piece) >= 0 for piece in pattern.pieces):
                findings.append(Finding(name, pattern.what, "byte for byte"))
        text, start = _text(file, data)
        for wanted in sorted(names):
            if _mentions(text, wanted) or _contains(data, start, wanted):
                findings.append(Finding(name, repr(wanted), "by name"))
        for digest in sorted(digests):
            if data.find(digest.encode()) >= 0 or data.find(bytes.fromhex(digest)) >= 0:
                findings.append(Finding(name, digest, "as a content digest"))
    for pattern in patterns:
        if any(holds(rows, pattern.row) for rows in _row_arrays(file)):
            found = Finding(name, pattern.what, "byte for byte")
            if found not in findings:
                findings.append(Finding(name, pattern.what, "up to rounding"))
    return list(dict.fromkeys(findings))


def _text(file: Path, data: mmap.mmap) -> tuple[str, int]:
    """The file's text, JSON escapes undone, and where binary data begins (safetensors: after the header)."""
    if file.suffix == ".safetensors":
        start = 8 + int.from_bytes(data[:8], "little")
        return data[8:start].decode(errors="replace"), min(start, len(data))
    try:
        text = data[:].decode()
    except UnicodeDecodeError:
        return "", 0
    if file.suffix in (".json", ".jsonl"):
        text += "\n" + "\n".join(_strings(text, file.suffix == ".jsonl"))
    return text, len(data)


def _strings(text: str, lines: bool) -> Iterator[str]:
    """Every key and string in JSON, as it was before escaping."""
    for document in text.splitlines() if lines else [text]:
        try:
            todo = [json.loads(document)]
        except json.JSONDecodeError:
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


def _contains(data: mmap.mmap, start: int, name: str) -> bool:
    """Whether a name long enough not to be there by chance occurs in binary data."""
    return len(name.encode()) >= LONG_NAME and data.find(name.encode(), start) >= 0


def _row_arrays(file: Path) -> Iterator[np.ndarray]:
    """The arrays of a file whose rows may be records', (n, …) flattened to (n, k)."""
    if file.suffix == ".safetensors":
        for tensor in read_tensors(file).values():
            if tensor.dim() >= 2 and len(tensor) and tensor.dtype != torch.bfloat16:
                yield tensor.reshape(len(tensor), -1).numpy()
    elif file.name == "rows.bin" and (file.parent / "index.json").is_file():
        size = int(np.prod(json.loads((file.parent / "index.json").read_text())["shape"]))
        dtype = np.dtype(file.parent.name.rpartition("-")[2])
        memory = np.memmap(file, dtype=dtype, mode="r")
        yield memory[: len(memory) // size * size].reshape(-1, size)


def holds(rows: np.ndarray, row: np.ndarray | None, block: int = 1024) -> bool:
    """Whether some row of ``rows`` is ``row`` up to rounding.

    Floats: ‖difference‖ ≤ RELATIVE · ‖row‖. Integers: no entry differs by more than 1, and at most the
    share OFF_BY_ONE of them at all.
    """
    if row is None or rows.shape[1] != len(row) or rows.dtype != row.dtype:
        return False
    wanted = row.astype(np.float64)
    near = RELATIVE * float(np.linalg.norm(wanted))
    for start in range(0, len(rows), block):
        difference = np.abs(rows[start : start + block].astype(np.float64) - wanted)  # (block, k)
        if row.dtype.kind == "i":
            same = (difference.max(1) <= 1) & (difference.sum(1) <= OFF_BY_ONE * len(row))
        else:
            same = np.linalg.norm(difference, axis=1) <= near
        if same.any():
            return True
    return False
