"""Partners of a model: who may send sums instead of records, and how their images are told apart.

``private/partners.json`` lists whom the model's keeper has admitted: a name, a random *admission* that every
message of the partner must carry, and public keys, if it has given any. Who is admitted again is another
admission: no message from before fits it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efface import files
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError
from efface.parts.compact.guest import ADMISSION, Guest
from efface.workspace.forgotten import tag, tag_key
from efface.workspace.inventory import Inventory
from efface.workspace.paths import PARTNERS

if TYPE_CHECKING:
    from efface.receipts.keys import PublicKeys

SCHEMA = "efface.partners/1"
INVITATION = "efface.invitation/1"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Admitted:
    """A partner that is known. ``keys`` is its ring as a list: then it has to sign."""

    name: str
    admission: str
    keys: list[dict[str, str]] | None = None

    @property
    def ring(self) -> PublicKeys | None:
        if self.keys is None:
            return None
        from efface.receipts.keys import PublicKeys

        return PublicKeys.of(self.keys)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "admission": self.admission, "keys": self.keys}


@dataclass(frozen=True)
class Invitation:
    """What a partner is given: its name and admission, and the key of the tags. It is a secret of the two."""

    name: str
    admission: str
    tag_key: bytes

    def save(self, path: Path) -> None:
        if path.exists():
            raise EffaceError(f"{path} is there already.", "choose another --out, or delete it.")
        values = {"name": self.name, "admission": self.admission, "tag_key": self.tag_key.hex()}
        files.write_json(path, {"schema": INVITATION, **values}, mode=files.PRIVATE)

    @classmethod
    def load(cls, path: Path) -> Invitation:
        return cls.of(path, files.read_json(path, INVITATION))

    @classmethod
    def of(cls, path: Path, values: dict[str, Any]) -> Invitation:
        """FormatError names the file that the values are from."""
        with files.as_saved(path):
            name, admission = _named(values["name"]), values["admission"]
            if not ADMISSION.fullmatch(admission):
                raise ValueError("an admission is none")
            return cls(name, admission, bytes.fromhex(values["tag_key"]))


def partners(inventory: Inventory) -> tuple[Admitted, ...]:
    """All that are admitted, in the order of their names."""
    path = inventory.path / "private" / PARTNERS
    if not path.is_file():
        return ()
    values = files.read_json(path, SCHEMA)
    with files.as_saved(path):
        found = [Admitted(p["name"], p["admission"], p["keys"]) for p in values["partners"]]
        if any(partner.ring is None for partner in found if partner.keys is not None):
            raise ValueError("keys are none")
        return tuple(found)


def partner_named(inventory: Inventory, name: str) -> Admitted:
    found = {partner.name: partner for partner in partners(inventory)}
    if name not in found:
        fix = f"`efface partner admit {inventory.path} --name NAME` admits one."
        raise EffaceError(f"{name!r} is no partner of this model.", fix)
    return found[name]


def admit(inventory: Inventory, name: str, ring: PublicKeys | None = None) -> Invitation:
    """Let somebody send sums. Hold the lock."""
    known = partners(inventory)
    if any(partner.name == _named(name) for partner in known):
        fix = f"`efface partner drop {inventory.path} --name {name}` takes it out first."
        raise EffaceError(f"{name!r} is admitted already.", fix)
    keys = None if ring is None else ring.to_list()
    new = Admitted(name, secrets.token_hex(16), keys)
    _save(inventory, (*known, new))
    return Invitation(name, new.admission, tag_key(inventory.key))


def dismiss(inventory: Inventory, name: str) -> None:
    """From now on none of its messages is taken. Hold the lock."""
    _save(inventory, [partner for partner in partners(inventory) if partner.name != name])


def _save(inventory: Inventory, found: Iterable[Admitted]) -> None:
    listed = [partner.to_dict() for partner in sorted(found, key=lambda partner: partner.name)]
    path = inventory.path / "private" / PARTNERS
    files.write_json(path, {"schema": SCHEMA, "partners": listed}, mode=files.PRIVATE)


def _named(name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        fix = "use up to 64 letters, digits, dots, dashes and underscores."
        raise FormatError(f"{name!r:.80} is no name for a partner.", fix)
    return name


# --- requests -------------------------------------------------------------------------------------


def tags_of(digests: Iterable[str], key: bytes) -> dict[str, str]:
    """Tag to content digest, under the workspace's ``key``."""
    theirs = tag_key(key)
    return {tag(theirs, digest): digest for digest in digests}


def refuse_guests(records: Records, guests: Sequence[Guest], key: bytes) -> None:
    """An image that a partner has put in is not taken in again: it would count twice."""
    here = [guest for guest in guests if guest.num_rows]
    if not here:
        return
    tagged = tags_of(records.digests, key)
    for guest in here:
        both = guest.tags & tagged.keys()
        if both:
            digest = tagged[min(both)]
            record = next(record for record in records if record.digest == digest)
            fix = "take it out of the data, or have the partner forget it first."
            raise RecordError(record.id, f"this image is among those of {guest.name}.", fix)


def elsewhere(guests: Sequence[Guest]) -> tuple[str, ...]:
    """What has to be said to whoever asks to be forgotten here."""
    names = sorted(guest.name for guest in guests if guest.num_rows)
    if not names:
        return ()
    return (
        f"only records that are kept here were looked for: {', '.join(names)} sent sums, and only they can "
        "tell whether this person's images are among theirs",
    )
