"""Who is meant: names and listed identities, raw or hashed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.places import ROOT
from tests.service.offices import CORE_OWNER, EMAIL
from tests.workspaces import OWNER

from efface.errors import EffaceError
from efface.service.identities import (
    HASHED,
    Directory,
    IdentityFormat,
    SubjectIdentity,
    prune_mapping,
    read_mapping,
)
from efface.service.settings import ServiceSettings
from efface.workspace import Workspace


@pytest.fixture
def directory(folder: Path, settings: ServiceSettings) -> Directory:
    return Directory(Workspace.open(folder, recover=False), settings.identities)


def of(directory: Directory, kind: str, value: str, how: str = "raw") -> tuple[str, ...]:
    return directory.meant([SubjectIdentity(kind, value, IdentityFormat(how))]).owners


@pytest.mark.parametrize("how", HASHED)
@pytest.mark.parametrize(("kind", "value"), [("owner", OWNER), ("email", EMAIL)])
def test_hashes_are_those_of_hashlib(
    directory: Directory, how: IdentityFormat, kind: str, value: str
) -> None:
    digest = hashlib.new(str(how), value.encode()).hexdigest()
    assert of(directory, kind, digest, how) == (OWNER,)
    assert of(directory, kind, digest.upper(), how) == (OWNER,)
    assert of(directory, kind, digest) == ()  # not as a raw value
    changed = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    assert of(directory, kind, changed, how) == ()


def test_addresses_are_the_same_in_any_case_but_names_are_not(directory: Directory) -> None:
    assert of(directory, "email", EMAIL.upper()) == (OWNER,)
    assert of(directory, "owner", OWNER.upper()) == ()


def test_a_listed_value_counts_only_as_what_it_is_listed(directory: Directory) -> None:
    assert of(directory, "phone_number", EMAIL) == ()


def test_several_identities_mean_everybody_they_name(directory: Directory) -> None:
    asked = [
        SubjectIdentity("email", EMAIL),
        SubjectIdentity("x", "person-one"),
        SubjectIdentity("x", "nobody"),
    ]
    assert directory.meant(asked).owners == ("person-one", OWNER)


def test_people_of_core_are_known_when_they_are_named(directory: Directory) -> None:
    meant = directory.meant([SubjectIdentity("owner", CORE_OWNER)])
    assert (meant.owners, meant.in_core) == ((), (CORE_OWNER,))


def test_a_mapping_may_hold_hashes_only(folder: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"ada@example.com").hexdigest()
    entry = {"identity_type": "email", "identity_value": digest, "identity_format": "sha256"}
    path = tmp_path / "hashed.json"
    path.write_text(json.dumps({"schema": "efface.identities/1", "owners": {OWNER: [entry]}}))
    directory = Directory(Workspace.open(folder, recover=False), path)
    assert of(directory, "email", "Ada@Example.com") == (OWNER,)
    assert of(directory, "email", digest, "sha256") == (OWNER,)


def test_whoever_is_gone_is_taken_out_of_the_mapping(settings: ServiceSettings) -> None:
    path = settings.identities
    assert path is not None
    assert prune_mapping(path, [OWNER]) == 0
    assert prune_mapping(path, ["person-one"]) == 1
    assert read_mapping(path) == {}
    assert EMAIL.encode() not in path.read_bytes()


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": "efface.identities/1", "owners": 3}'])
def test_a_damaged_mapping_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(EffaceError):
        read_mapping(tmp_path / "x.json")


def test_the_example_is_one() -> None:
    found = read_mapping(ROOT / "deploy/identities.json")
    assert found["u17"][0] == SubjectIdentity("email", "ada@example.com")
    assert found["u18"][0].format is IdentityFormat.SHA256


def test_the_settings_to_start_from_are_settings() -> None:
    settings = ServiceSettings.read(ROOT / "deploy/service.toml")
    assert len(settings.hooks) == 4
    assert settings.identities == ROOT / "deploy/identities.json"
    assert ServiceSettings.read(ROOT / "deploy/demo.toml").evaluation is not None
