"""A file that a list names: below the list's folder, or anywhere if that was asked for."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from efface.data.images import FileImage
from efface.errors import RecordError


def listed_file(folder: Path, name: str, record_id: str, *, absolute_paths: bool) -> FileImage:
    """The image, if neither ``..`` nor a link leads out of the folder.

    With ``absolute_paths`` a name may be an absolute path, to anywhere; a relative one stays below.
    """
    if absolute_paths and _is_absolute(name) and "\0" not in name:
        return FileImage(Path(name))
    file = folder / PurePosixPath(name)
    if "\0" in name or not file.resolve().is_relative_to(folder.resolve()):
        message = f"file_name {name!r} leads out of the folder."
        raise RecordError(record_id, message, _advice(name))
    return FileImage(file)


def _advice(name: str) -> str:
    fix = "keep the files below the list's folder and name them relative to it"
    if not _is_absolute(name):
        return f"{fix}."
    return f"{fix}; or, if you trust the list, --absolute-paths (in Python: absolute_paths=True)."


def _is_absolute(name: str) -> bool:
    return PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()
