"""``manifest.json``: which release an export is, what its files hold, and what it was checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from efface import files
from efface.errors import GuaranteeError
from efface.export.format import Format, Subject
from efface.version import VERSION
from efface.workspace.disk import file_digest

SCHEMA, NAME = "efface.export/1", "manifest.json"
COPY = (
    "This is a copy of one release, and a copy does not forget. After each release of the model, export "
    "again and delete this copy everywhere it went: whoever keeps an older one still has what was forgotten."
)
FURTHEST = 0.25  # of logits whose bits need not be equal, on targets of 5: more is a mistake


@dataclass(frozen=True)
class Checked:
    """A file run by another program, beside the model itself, on images of nobody."""

    ran_with: str
    num_images: int
    largest_difference: float  # of a logit
    same_classes: int  # images for which both say the same


def check(subject: Subject, form: Format, folder: Path) -> Checked:
    """Run what was written; GuaranteeError if it does not give what the model gives."""
    expected, found = subject.sample.logits, form.logits(subject, folder)
    difference = float(abs(found - expected).max())
    same = int((found.argmax(1) == expected.argmax(1)).sum())
    # A head alone is added up in float64, in whatever order.
    exact = subject.exported.bit_equal and form.name != "numpy-head"
    if not difference <= (0.0 if exact else FURTHEST):
        raise GuaranteeError(
            f"{form.main} run by {form.ran_with} gives logits that differ by {difference:.3g}.",
            "nothing was written; report it, with the network's name, or use another format.",
        )
    return Checked(form.ran_with, len(expected), difference, same)


def manifest_of(
    subject: Subject, folder: Path, release: int | None, checks: Mapping[str, Checked]
) -> dict[str, Any]:
    """All of it; the files are those in ``folder``."""
    model, exported = subject.model, subject.exported
    given = model.user.given
    user, names = model.user, sorted(path.name for path in folder.iterdir())
    return {
        "schema": SCHEMA,
        "efface": VERSION,
        "release": release,
        "copy": COPY,
        "core_digest": model.core.digest,
        "weights_digest": user.weights_digest,
        "user": user.kind,
        "arithmetic": "float32" if given is None else given.arithmetic,
        "classes": list(model.classes),
        "input": {
            "name": "pixels",
            "type": "uint8",
            "shape": ["n" if exported.batched else 1, *exported.image],
            "preprocess": model.core.backbone.preprocess.to_dict(),
        },
        "outputs": list(exported.outputs),
        "bit_equal": exported.bit_equal,
        "rounding": exported.rounding,
        "checked": {name: asdict(checked) for name, checked in checks.items()},
        "files": {
            name: {"sha256": file_digest(folder / name), "bytes": (folder / name).stat().st_size}
            for name in names
        },
    }


def earlier(folder: Path) -> list[str] | None:
    """The files of the export that lies in ``folder``; None if there is none."""
    if not (folder / NAME).is_file():
        return None
    values = files.read_json(folder / NAME, SCHEMA)
    with files.as_saved(folder / NAME):
        names = [str(name) for name in values["files"]]
    # Names, never paths: what an edited manifest says must not reach any other folder.
    return [name for name in (*names, NAME) if Path(name).name == name]
