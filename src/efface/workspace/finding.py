"""Finding a person by a picture: which records of a workspace show it, or a near copy of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efface.data.images import FileImage, decode, digest_of, naming
from efface.data.looks import NEAR, UNKNOWN, both_looks, distances
from efface.errors import GuaranteeError, RecordError, RequestError
from efface.model.core_index import CORE
from efface.progress import Progress, part
from efface.workspace import Workspace

USER = "user"
COMPARED = 10_000  # looks at a time


@dataclass(frozen=True)
class Match:
    """A record that is the picture (``same``: byte for byte) or looks like it, up to ``distance`` bits.

    ``part`` is user, core or calibration; of the latter two the owner is not known by name.
    """

    id: str
    owner: str | None
    label: str
    part: str
    same: bool
    distance: int
    mirrored: bool = False


def find(
    workspace: Workspace,
    image: Path | str,
    near: int = NEAR,
    *,
    progress: Progress | None = None,
) -> list[Match]:
    """All records with this file's content, or whose look is within ``near`` bits; nearest first."""
    path = Path(image)
    if not path.is_file():
        raise RecordError(str(path), "there is no such file.", "check the path.")
    with naming(str(path), "give a picture that can be opened."):
        content = FileImage(path).content()
        looks = both_looks(decode(content))
    digest, data, index = digest_of(content), workspace.data, workspace.core_index
    known = data.looks or (UNKNOWN,) * len(data.records)
    rows: list[tuple[str, str | None, str, str, str, str]] = [
        (r.id, r.owner, r.label, USER, r.digest, look)
        for r, look in zip(data.records, known, strict=True)
    ]
    rows += [(r.id, None, r.label, r.role, r.digest, r.look) for r in index.records]
    if not rows:
        return []
    kept, apart = [row[5] for row in rows], np.zeros((len(rows), 2), dtype=np.int64)
    for start in range(0, len(rows), COMPARED):
        some = slice(start, start + COMPARED)
        apart[some] = np.stack([distances(look, kept[some]) for look in looks], 1)  # (n, 2)
        done = min(start + COMPARED, len(rows))
        part(progress, 0, 1)(done / len(rows), f"records {done}/{len(rows)}")
    found = []
    for row, (plain, mirror) in zip(rows, apart.tolist(), strict=True):
        same, bits = row[4] == digest, min(plain, mirror)
        if same or bits <= near:
            found.append(Match(*row[:4], same, 0 if same else bits, not same and mirror < plain))
    return sorted(found, key=lambda match: (not match.same, match.distance, match.part, match.id))


def request_for(matches: list[Match], *, near: bool) -> dict[str, list[str]]:
    """The request, as keyword arguments of ``forget``, that these matches make: exact copies, or all.

    Near copies without ``near`` are an error where nothing else was found: a person has to look.
    """
    meant = [match for match in matches if match.same or near]
    if not meant and matches:
        shown = ", ".join(f"{m.id!r} ({m.distance} bits)" for m in matches[:5])
        raise RequestError(
            f"no record is this file; {len(matches)} look like it: {shown}.",
            "look at them (`efface find`); --near forgets them, --id some of them.",
        )
    if not meant:
        fix = "check the file; a crop or another photo of the same person is not found by it."
        raise RequestError("no record is this picture or looks like it.", fix)
    ids = [match.id for match in meant if match.part == USER]
    staying = [match.id for match in meant if match.part != USER]
    if not ids:
        role = "core data" if any(m.part == CORE for m in meant) else "calibration images"
        fix = "train again without it."
        raise GuaranteeError(f"this picture is among the {role}, which are not forgotten.", fix)
    return {"ids": ids, "in_core": staying}


def near_copies(workspace: Workspace, ids: Iterable[str], near: int = NEAR) -> list[str]:
    """Ids of the other records that look like some of these, and would stay when these are forgotten.

    Only what is kept is compared, not the images: mirrored copies are found by ``find`` alone.
    """
    data, gone = workspace.data, set(ids)
    known = data.looks or (UNKNOWN,) * len(data.records)
    inside = [look for name, look in zip(data.records.ids, known, strict=True) if name in gone]
    rest = [
        (name, look) for name, look in zip(data.records.ids, known, strict=True) if name not in gone
    ]
    if not rest:
        return []
    names, looks = zip(*rest, strict=True)
    alike = np.zeros(len(names), dtype=bool)
    for look in set(inside) - {UNKNOWN}:
        alike |= distances(look, looks) <= near
    return [names[i] for i in alike.nonzero()[0]]
