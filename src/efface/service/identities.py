"""Who is meant: identities, raw or hashed, and the owners of the workspace that they stand for.

An owner is known by its own name, and by the identities that the operator lists in a mapping file:

    {"schema": "efface.identities/1",
     "owners": {"u17": [{"identity_type": "email", "identity_value": "ada@example.com"}]}}

A value there may itself be hashed (``"identity_format": "sha256"``), so that the file holds no address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from efface import files
from efface.data.names import tidy
from efface.errors import FormatError
from efface.workspace import Workspace

SCHEMA = "efface.identities/1"
LOWERED = frozenset({"email"})  # hashed by their senders in lower case


class IdentityFormat(StrEnum):
    RAW = "raw"
    SHA1 = "sha1"
    MD5 = "md5"
    SHA256 = "sha256"


HASHED = tuple(f for f in IdentityFormat if f is not IdentityFormat.RAW)


@dataclass(frozen=True)
class SubjectIdentity:
    """A value of some type, e-mail address or customer number, in clear or hashed."""

    type: str
    value: str
    format: IdentityFormat = IdentityFormat.RAW

    def forms(self) -> set[tuple[str, str]]:
        """(format, value) of everything that this identity is the same as."""
        if self.format is not IdentityFormat.RAW:
            return {(str(self.format), self.value.strip().lower())}
        plain = tidy(self.value)
        values = {plain, plain.lower()} if self.type in LOWERED else {plain}
        found = {(str(IdentityFormat.RAW), value) for value in values}
        return found | {(str(f), hashed(value, f)) for value in values for f in HASHED}

    def kept(self) -> set[str]:
        """By what it is recognised later, for keyed hashes: the SHA-256 of a raw value, or the hash given."""
        digest = str(IdentityFormat.SHA256)
        ours = digest if self.format is IdentityFormat.RAW else str(self.format)
        return {self._spelt(how, value) for how, value in self.forms() if how == ours}

    def known(self) -> set[str]:
        """Whatever :meth:`kept` may have said of the same identity, raw or hashed."""
        return {self._spelt(how, value) for how, value in self.forms()}

    def _spelt(self, how: str, value: str) -> str:
        return f"{self.type}\0{how}\0{value}"


def hashed(value: str, how: IdentityFormat) -> str:
    """In hexadecimal digits. The old ones are not ours to choose: senders have them."""
    return hashlib.new(str(how), value.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Meant:
    """The owners with user records that some identities stand for, and those with core records.

    ``names`` are all owners that may be meant, known or not.
    """

    owners: tuple[str, ...]
    in_core: tuple[str, ...]
    names: tuple[str, ...] = ()


class Directory:
    """Identities to owners, for one release of a workspace."""

    def __init__(self, workspace: Workspace, mapping: Path | None = None) -> None:
        self.release = workspace.number
        self._core = workspace.core_index
        self._owners = frozenset(workspace.records.owners)
        self._listed: dict[tuple[str, str, str], set[str]] = {}
        self._named: dict[tuple[str, str], str] = {}
        for owner in self._owners:
            for form in SubjectIdentity("owner", owner).forms():
                self._named[form] = owner
        for owner, identities in read_mapping(mapping).items() if mapping else ():
            for identity in identities:
                for form in identity.forms():
                    self._listed.setdefault((identity.type, *form), set()).add(owner)

    def __len__(self) -> int:
        return len(self._owners)

    def meant(self, identities: Iterable[SubjectIdentity]) -> Meant:
        """Everybody whom one of the identities stands for."""
        asked: set[str] = set()
        for identity in identities:
            if identity.format is IdentityFormat.RAW:
                asked.add(tidy(identity.value))  # a name of core is known only when it is said
            for form in identity.forms():
                if form in self._named:
                    asked.add(self._named[form])
                asked |= self._listed.get((identity.type, *form), set())
        names = tuple(sorted(asked))
        in_core = tuple(self._core.owners_among(names))
        return Meant(tuple(n for n in names if n in self._owners), in_core, names)


def read_mapping(path: Path) -> dict[str, list[SubjectIdentity]]:
    """The mapping file; an error names what is wrong with it."""
    owners = files.read_json(path, SCHEMA).get("owners")
    with files.as_saved(path):
        return {
            owner: [_listed(values) for values in listed]
            for owner, listed in dict(owners).items()  # type: ignore[arg-type]
        }


def _listed(values: dict[str, Any]) -> SubjectIdentity:
    how = IdentityFormat(values.get("identity_format", "raw"))
    return SubjectIdentity(str(values["identity_type"]), str(values["identity_value"]), how)


def prune_mapping(path: Path, staying: Sequence[str]) -> int:
    """Take out of the mapping file whoever has no records any more; returns how many."""
    values = files.read_json(path, SCHEMA)
    owners, known = values.get("owners"), set(staying)
    if not isinstance(owners, dict):
        raise FormatError(f"{path} lists no owners.", "restore it from a copy.")
    gone = [owner for owner in owners if owner not in known]
    if gone:
        kept = {owner: listed for owner, listed in owners.items() if owner in known}
        files.write_json(path, {**values, "owners": kept}, mode=files.PRIVATE)
    return len(gone)
