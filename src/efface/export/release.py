"""Write a release for other programs into a folder: files, certificate, receipt, manifest and card."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from efface import files
from efface.errors import EffaceError
from efface.export import card, manifest
from efface.export.format import Subject
from efface.export.table import format_named
from efface.progress import Progress, part
from efface.workspace.inventory import SCHEMA as WORKSPACE
from efface.workspace.paths import BASE_MODEL
from efface.workspace.published import Current, current, load_current

CERTIFICATE, RECEIPT = "certificate.json", "receipt.json"


def export(
    directory: Path | str,
    formats: Sequence[str],
    out: Path | str,
    *,
    module: nn.Module | None = None,
    progress: Progress | None = None,
    license: str = "",
) -> dict[str, Any]:
    """Export what ``directory`` serves, a workspace or a saved model; returns the manifest.

    Each file is run by the program that it is for before anything is put into ``out``, which holds nothing
    else: an earlier export in it is replaced, with all of its files. ``license`` is what the card says, if
    you say it: the identifier of the licence under which you pass the copy on.
    """
    directory, out = Path(directory), Path(out)
    chosen = [format_named(name) for name in dict.fromkeys(formats)]
    if not chosen:
        raise EffaceError(
            "no format to export to.", "choose --onnx, --torch, --numpy-head or --files."
        )
    _require_ours(out)
    published = load_current(directory, module=module)
    subject, release = Subject(published.model), published.current
    provenance = card.Provenance(_base_model(directory, release), license)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as made:
        folder = Path(made)
        checks = {}
        for i, form in enumerate(chosen):
            step = part(progress, i / len(chosen), (i + 1) / len(chosen), form.main)
            step(0.0, "writing")
            form.write(subject, folder)
            step(0.5, "running it")
            checks[form.main] = manifest.check(subject, form, folder)
            step(1.0, "runs")
        certificate = _papers(directory, release, folder)
        number = None if release is None else release.release
        values = manifest.manifest_of(subject, folder, number, checks)
        text = card.card(values, certificate, provenance)
        (folder / card.NAME).write_text(text, encoding="utf-8")
        values = manifest.manifest_of(subject, folder, number, checks)  # the card's digest, too
        files.write_json(folder / manifest.NAME, values)
        if current(directory) != release:
            raise EffaceError("another release was published in the meantime.", "export again.")
        _replace(folder, out)
    return values


def _require_ours(out: Path) -> None:
    """Nothing, an empty folder, or an earlier export."""
    if out.exists() and (
        not out.is_dir() or (any(out.iterdir()) and manifest.earlier(out) is None)
    ):
        raise EffaceError(f"{out} is there, and no export.", "choose another --out.")


def _base_model(directory: Path, release: Current | None) -> str:
    """The name on a hub of the network that the model was made from, if it came from there."""
    if release is None:
        return ""
    path = release.folders(directory)[0] / "model.json"
    return str(files.read_json(path, WORKSPACE).get(BASE_MODEL, ""))


def _papers(directory: Path, release: Current | None, folder: Path) -> dict[str, Any] | None:
    """Certificate and receipt of the release, as far as it has them; returns the certificate."""
    if release is None:
        return None
    receipt = directory / "receipts" / f"{release.release}.json"
    if receipt.is_file():
        shutil.copyfile(receipt, folder / RECEIPT)
    path = directory / "certificates" / f"{release.release}.public.json"
    if not path.is_file():
        return None
    data = path.read_bytes()
    (folder / CERTIFICATE).write_bytes(data)
    found: dict[str, Any] = json.loads(data)
    return found


def _replace(folder: Path, out: Path) -> None:
    """Put the files in their place, the manifest last, and take away what an earlier export had more."""
    out.mkdir(exist_ok=True)
    before = manifest.earlier(out) or []
    names = sorted((path.name for path in folder.iterdir()), key=lambda name: name == manifest.NAME)
    for name in set(before) - set(names):
        (out / name).unlink(missing_ok=True)
    for name in names:
        os.replace(folder / name, out / name)
