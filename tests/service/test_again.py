"""Asking again, under another number, for somebody who was forgotten: told so, and nothing changes."""

from __future__ import annotations

import hashlib
import re

import pytest
from fastapi.testclient import TestClient
from tests.service.offices import EMAIL, dsr, everything, native, spoken
from tests.service.test_native import changed, reason
from tests.workspaces import OWNER

from efface.service.aftermath import scrub
from efface.service.keys import Role
from efface.service.office import Office
from efface.service.worker import Worker
from efface.workspace import Workspace

RECEIPT = re.compile(r"forgotten already, on 20\d\d-\d\d-\d\d: receipt (\d+)\.")


def by(kind: str, value: str, how: str, number: str) -> dict[str, object]:
    identity = {"identity_type": kind, "identity_value": value, "identity_format": how}
    return {"external_id": number, "identities": [identity]}


HASHED = ("email", hashlib.sha256(EMAIL.encode()).hexdigest(), "sha256")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("owner", OWNER, "raw"), ("owner", OWNER, "raw")),
        (("owner", OWNER, "raw"), ("customer", OWNER, "raw")),
        (("email", EMAIL, "raw"), ("email", EMAIL.upper(), "raw")),
        (("email", EMAIL, "raw"), ("owner", OWNER, "raw")),
        (("email", EMAIL, "raw"), HASHED),
        (HASHED, ("email", EMAIL, "raw")),
    ],
)
def test_by_the_same_or_another_identity(
    office: Office,
    client: TestClient,
    worker: Worker,
    first: tuple[str, str, str],
    second: tuple[str, str, str],
) -> None:
    assert client.post("/v1/requests", json=by(*first, "1")).status_code == 201
    worker.step()
    rows = changed(office)
    answer = client.post("/v1/requests", json=by(*second, "2"))
    assert (answer.status_code, reason(answer)) == (404, "already_forgotten")
    found = RECEIPT.search(answer.json()["error"]["message"])
    assert found
    assert found[1] == "2"
    assert changed(office) == rows
    assert scrub(office.place.ledger)
    left = everything(office.path)
    assert OWNER.encode() not in left
    assert EMAIL.encode() not in left


def test_by_opendsr_and_on_the_command_line(
    office: Office, client: TestClient, worker: Worker
) -> None:
    Workspace.open(office.path).forget(owner=OWNER)  # as `efface forget` does
    answer = client.post("/v2/requests", json=dsr())
    assert (answer.status_code, reason(answer)) == (400, "already_forgotten")


def test_a_request_that_was_called_off_is_no_answer(office: Office, client: TestClient) -> None:
    name = client.post("/v1/requests", json=by("email", EMAIL, "raw", "1")).json()["id"]
    client.delete(f"/v1/requests/{name}")
    assert office.place.ledger.query("SELECT * FROM service_named") == []
    answer = client.post("/v1/requests", json=native("mallory", "2"))
    assert (answer.status_code, reason(answer)) == (404, "no_match")


def test_others_are_told_the_day_and_no_more(
    office: Office, client: TestClient, worker: Worker
) -> None:
    name = client.post("/v1/requests", json=native()).json()["id"]
    worker.step()
    another = spoken(office, Role.SUBMIT, "another")
    answer = another.post("/v1/requests", json=native(number="2"))
    assert reason(answer) == "already_forgotten"
    assert name not in answer.text
