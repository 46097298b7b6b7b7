"""Unpacking an archive, with nothing of it landing outside of the folder."""

from __future__ import annotations

import errno
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from efface.containers import DAMAGED
from efface.errors import EffaceError, FormatError
from efface.regular import LARGEST_TABLE

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
OURS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
FIX = "do not use this archive; fetch it again from the data set's page."


def unpack(archive: Path, folder: Path) -> None:
    """Tar and zip archives are unpacked into ``folder``, other files are copied there."""
    try:
        if archive.name.endswith(TAR_ENDINGS):
            _untar(archive, folder)
        elif archive.suffix == ".zip":
            _unzip(archive, folder)
        else:
            shutil.copyfile(archive, folder / archive.name)
    except tarfile.FilterError as problem:
        raise FormatError(f"{archive.name} has an unsafe member ({problem}).", FIX) from problem
    except DAMAGED as problem:
        if isinstance(problem, OSError) and problem.errno in OURS:
            raise
        raise FormatError(f"{archive.name} is damaged ({problem!s:.200}).", FIX) from problem


def _untar(archive: Path, folder: Path) -> None:
    """Files and folders alone: Python's own filter lets links lead out (CVE-2025-4517, before 3.11.13)."""
    if not hasattr(tarfile, "data_filter"):
        raise EffaceError("this Python cannot unpack tar files safely.", "use 3.11.4 or newer.")
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            if not (member.isreg() or member.isdir()) or _leads_out(member.name):
                raise _unsafe(archive, member.name)
        _check_total(archive, sum(member.size for member in members))
        tar.extractall(folder, members, filter="data")


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            _check(archive, member)
        _check_total(archive, sum(member.file_size for member in opened.infolist()))
        opened.extractall(folder)


def _check_total(archive: Path, size: int) -> None:
    if size > LARGEST_TABLE:
        message = f"{archive.name} has {size >> 30} GB unpacked, more than {LARGEST_TABLE >> 30}."
        raise FormatError(message, FIX)


def _check(archive: Path, member: zipfile.ZipInfo) -> None:
    """zipfile would bend such names into harmless ones, but an archive that has them is not to be used."""
    if _leads_out(member.filename) or stat.S_ISLNK(member.external_attr >> 16):
        raise _unsafe(archive, member.filename)


def _leads_out(filename: str) -> bool:
    name = PurePosixPath(filename.replace("\\", "/"))
    drive = any(":" in part for part in name.parts[:1])
    return name.is_absolute() or ".." in name.parts or drive or "\0" in filename


def _unsafe(archive: Path, name: str) -> FormatError:
    return FormatError(f"{archive.name} has an unsafe member ({name!r:.200} leads out of it).", FIX)
