"""OpenDSR 2.0, field by field as the specification has them, and signatures that a controller can check."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.service.offices import CORE_OWNER, EMAIL, PUBLIC, certified, dsr, spoken
from tests.workspaces import OWNER

from efface.errors import EffaceError
from efface.service.keys import Role
from efface.service.office import Office
from efface.service.signing import DOMAIN, SIGNATURE, ReplySigner, is_signed
from efface.service.times import seconds_of
from efface.service.worker import Worker

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def checked(answer: Any, status: int) -> dict[str, Any]:
    """The body of a reply whose signature a controller would accept."""
    assert answer.status_code == status
    assert answer.headers[DOMAIN] == "privacy.example.com"
    assert is_signed(answer.content, answer.headers[SIGNATURE], certified()[1])
    values: dict[str, Any] = answer.json()
    return values


def test_discovery_needs_no_key(office: Office, client: TestClient) -> None:
    del client.headers["Authorization"]
    values = checked(client.get("/v2/discovery"), 200)
    assert set(values) == {
        "api_version",
        "supported_identities",
        "supported_subject_request_types",
        "processor_certificate",
    }
    assert values["api_version"] == "2.0"
    assert values["supported_subject_request_types"] == ["erasure"]
    pairs = {(i["identity_type"], i["identity_format"]) for i in values["supported_identities"]}
    formats = ("raw", "sha1", "md5", "sha256")
    assert pairs >= {("email", f) for f in formats} | {("controller_customer_id", "raw")}
    url = values["processor_certificate"]
    assert url.startswith(f"{PUBLIC}/")
    assert client.get(url.removeprefix(PUBLIC)).content == certified()[1]


def test_the_life_of_a_request(client: TestClient, worker: Worker) -> None:
    asked = dsr()
    number = asked["subject_request_id"]
    body = json.dumps(asked, indent=2).encode()
    headers = {"content-type": "application/json"}
    taken = checked(client.post("/v2/requests", content=body, headers=headers), 201)
    assert set(taken) == {
        "controller_id",
        "expected_completion_time",
        "received_time",
        "encoded_request",
        "subject_request_id",
    }
    assert taken["controller_id"] == "acme"
    assert taken["subject_request_id"] == number
    assert base64.b64decode(taken["encoded_request"]) == body
    assert RFC3339.fullmatch(taken["received_time"])
    days = seconds_of(taken["expected_completion_time"]) - seconds_of(asked["submitted_time"])
    assert days == 30 * 86400

    pending = checked(client.get(f"/v2/requests/{number}"), 200)
    assert set(pending) == {
        "controller_id",
        "expected_completion_time",
        "subject_request_id",
        "request_status",
        "api_version",
    }
    assert pending["request_status"] == "pending"
    worker.step()
    done = checked(client.get(f"/v2/requests/{number}"), 200)
    assert done["request_status"] == "completed"
    assert done["results_count"] == 6
    receipt = client.get(done["results_url"].removeprefix(PUBLIC))
    assert receipt.status_code == 200
    assert checked(client.delete(f"/v2/requests/{number}"), 409)["error"]["code"] == 409


def test_cancelled_while_pending(client: TestClient, worker: Worker) -> None:
    asked = dsr()
    path = f"/v2/requests/{asked['subject_request_id']}"
    client.post("/v2/requests", json=asked)
    answer = checked(client.delete(path), 202)
    assert set(answer) == {"controller_id", "received_time", "subject_request_id", "api_version"}
    worker.step()
    assert checked(client.get(path), 200)["request_status"] == "cancelled"


@pytest.mark.parametrize("how", ["sha1", "md5", "sha256"])
def test_hashed_identities(client: TestClient, how: str) -> None:
    digest = hashlib.new(how, EMAIL.encode()).hexdigest()
    identity = {"identity_type": "email", "identity_value": digest, "identity_format": how}
    checked(client.post("/v2/requests", json=dsr(subject_identities=[identity])), 201)


def test_a_replay_is_answered_as_before(office: Office, client: TestClient) -> None:
    asked = dsr()
    first = checked(client.post("/v2/requests", json=asked), 201)
    rows = office.place.ledger.head()
    assert checked(client.post("/v2/requests", json=asked), 201) == first
    assert office.place.ledger.head() == rows
    other = asked | {"regulation": "ccpa"}
    assert checked(client.post("/v2/requests", json=other), 409)["error"]["errors"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"subject_request_id": "1"}, "subject_request_id"),
    ({"subject_request_id": "A7551968-D5D6-44B2-9831-815AC9017798"}, "subject_request_id"),
    ({"subject_request_id": "a7551968-d5d6-14b2-9831-815ac9017798"}, "subject_request_id"),
    ({"subject_request_type": "access"}, "subject_request_type"),
    ({"regulation": "lgpd"}, "regulation"),
    ({"submitted_time": "2018-10-02 15:00"}, "submitted_time"),
    ({"submitted_time": None}, "submitted_time"),
    ({"subject_identities": []}, "subject_identities"),
    ({"api_version": "1.0"}, "api_version"),
    ({"status_callback_urls": ["http://example.com/"]}, "callback"),
    ({"status_callback_urls": ["https://10.0.0.1/"]}, "callback"),
    ({"status_callback_urls": ["file:///etc/passwd"]}, "callback"),
    ({"status_callback_urls": "https://example.com/"}, "status_callback_urls"),
]


@pytest.mark.parametrize(("change", "named"), BAD)
def test_errors_are_signed_and_name_the_field(
    office: Office, client: TestClient, change: dict[str, Any], named: str
) -> None:
    rows = office.place.ledger.head()
    error = checked(client.post("/v2/requests", json=dsr() | change), 400)["error"]
    assert set(error) == {"code", "message", "errors"}
    assert set(error["errors"][0]) == {"domain", "reason", "message"}
    assert named in error["message"]
    assert office.place.ledger.head() == rows


def test_unknown_people_and_those_of_core(office: Office, client: TestClient) -> None:
    unknown = checked(client.post("/v2/requests", json=dsr("mallory")), 400)
    assert unknown["error"]["errors"][0]["reason"] == "no_match"
    in_core = checked(client.post("/v2/requests", json=dsr(CORE_OWNER)), 400)
    assert in_core["error"]["errors"][0]["reason"] == "claim_not_covered"
    for body in (unknown, in_core):
        assert "mallory" not in str(body)
        assert CORE_OWNER not in str(body)


def test_numbers_of_others(office: Office, client: TestClient) -> None:
    asked = dsr()
    client.post("/v2/requests", json=asked)
    path = f"/v2/requests/{asked['subject_request_id']}"
    other = spoken(office, Role.SUBMIT, "other")
    checked(other.get(path), 404)
    checked(other.delete(path), 404)
    checked(other.post("/v2/requests", json=asked), 404)
    assert client.get(f"/v2/requests/{dsr()['subject_request_id']}").status_code == 404
    assert client.get("/v2/requests/1").status_code == 400


@pytest.mark.parametrize("kind", ["ec", "rsa"])
def test_both_kinds_of_key_sign(tmp_path: Path, kind: str) -> None:
    key, certificate = certified(kind)
    (tmp_path / "k").write_bytes(key)
    (tmp_path / "c").write_bytes(certificate)
    signer = ReplySigner(tmp_path / "k", tmp_path / "c", "example.com")
    assert is_signed(b"body", signer.sign(b"body"), certificate)
    assert not is_signed(b"Body", signer.sign(b"body"), certificate)


def test_a_key_and_a_certificate_that_are_no_pair(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(certified("ec")[0])
    (tmp_path / "c").write_bytes(certified("rsa")[1])
    with pytest.raises(EffaceError, match="not the certificate"):
        ReplySigner(tmp_path / "k", tmp_path / "c", "example.com")


def test_nobody_is_named_in_the_end(office: Office, client: TestClient, worker: Worker) -> None:
    client.post("/v2/requests", json=dsr())
    worker.step()
    rows = office.place.ledger.query("SELECT * FROM service_tickets")
    assert OWNER not in str(rows)
