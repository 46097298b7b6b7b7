"""Image folders: one folder a class, below one folder a split or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from efface.data.found import SPLITS, Found, PathLike, Row
from efface.data.images import FileImage
from efface.data.record import Skipped, Split
from efface.errors import FormatError, RecordError
from efface.regular import objection

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm"}
    | {".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
OUTSIDE = "outside any class folder"
SYSTEM_FILES = frozenset({"Thumbs.db", "desktop.ini", "__MACOSX"})


def find_folder(path: PathLike) -> Found:
    """``<split>/<class>/**/image`` or ``<class>/**/image`` (then all is user data).

    Splits are the folders named in ``SPLITS``; a record's id is its path below ``path``, and each
    image is its own owner. System files are ignored, anything else is listed in ``.skipped``.
    """
    root = _folder(path)
    skipped: list[Skipped] = []
    rows: list[Row] = []
    for split, folder in _split_folders(root, skipped):
        for class_folder in _class_folders(root, folder, skipped):
            rows += _class_rows(root, class_folder, split, skipped)
    return Found(rows, skipped=skipped)


def _folder(path: PathLike) -> Path:
    root = Path(path).expanduser().absolute()
    if not root.is_dir():
        raise FormatError(f"{str(path)!r} is not a folder.", "check the path.")
    return root


def _visible(folder: Path) -> list[Path]:
    entries = (entry for entry in folder.iterdir() if entry.name not in SYSTEM_FILES)
    return sorted(entry for entry in entries if not entry.name.startswith("."))


def _subfolders(root: Path, folder: Path) -> list[Path]:
    folders = [entry for entry in _visible(folder) if entry.is_dir()]
    return [entry for entry in folders if objection(root, entry) is None]


def _split_folders(root: Path, skipped: list[Skipped]) -> list[tuple[Split, Path]]:
    """A folder called "train" is a split only if it has class folders: it may be a class."""
    folders = _subfolders(root, root)
    named = [entry for entry in folders if entry.name.lower() in SPLITS]
    splits = [entry for entry in named if _subfolders(root, entry)]
    if not splits and named == folders:
        fix = "sort the images into <class>/ or train/<class>/, or list them in metadata.csv."
        raise FormatError(f"no class folders below {str(root)!r}.", fix)
    if not splits:
        return [(Split.USER, root)]
    for entry in _visible(root):
        if entry not in splits:
            skipped.append(Skipped(id_below(root, entry), "not a split folder with class folders"))
    return [(SPLITS[entry.name.lower()], entry) for entry in splits]


def _class_folders(root: Path, folder: Path, skipped: list[Skipped]) -> list[Path]:
    kept = _subfolders(root, folder)
    for entry in _visible(folder):
        if entry not in kept:
            reason = (objection(root, entry) if entry.is_dir() else None) or OUTSIDE
            skipped.append(Skipped(id_below(root, entry), reason))
    return kept


def _class_rows(root: Path, folder: Path, split: Split, skipped: list[Skipped]) -> list[Row]:
    files = []
    for file in files_below(folder):
        reason = objection(root, file)
        if reason is None:
            files.append(file)
        else:
            skipped.append(Skipped(id_below(root, file), reason))
    images = [file for file in files if is_image(file)]
    skipped += [Skipped(id_below(root, f), "not an image file") for f in files if not is_image(f)]
    if not images:
        fix = "add images to the folder or remove it."
        raise RecordError(id_below(root, folder), "this class folder has no images.", fix)
    ids = [id_below(root, image) for image in images]
    return [
        Row(record_id, folder.name, FileImage(image), split, owner=record_id)
        for record_id, image in zip(ids, images, strict=True)
    ]


def files_below(folder: Path) -> Iterator[Path]:
    for entry in _visible(folder):
        if entry.is_dir() and not entry.is_symlink():  # a linked folder may lead back up here
            yield from files_below(entry)
        else:
            yield entry


def is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def id_below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()
