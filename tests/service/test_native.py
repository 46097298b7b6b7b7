"""The API: who may do what, what is refused with which status, and that a refusal changes nothing."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.service.offices import CORE_OWNER, EMAIL, native, picture, spoken, states
from tests.workspaces import CLASSES, OWNER

from efface.commands.service import KeyRole
from efface.receipts.check import load as load_receipt
from efface.receipts.keys import make
from efface.service.keys import ApiKey, Role
from efface.service.office import Office
from efface.service.settings import ServiceSettings
from efface.service.worker import Worker
from efface.workspace.published import load


def changed(office: Office) -> int:
    """How many rows the ledger has."""
    return office.place.ledger.head().seq


def reason(answer: Any) -> str:
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert error["message"]
    return str(error["errors"][0]["reason"])


def test_from_request_to_receipt(office: Office, client: TestClient, worker: Worker) -> None:
    answer = client.post("/v1/requests", json=native())
    assert answer.status_code == 201
    name = answer.json()["id"]
    assert client.get(f"/v1/requests/{name}/receipt").status_code == 409
    worker.step()
    assert states(client, name) == [
        *("received", "verified", "waiting", "running", "published", "hooks", "done")
    ]
    told = client.get(f"/v1/requests/{name}").json()
    assert (told["release"], told["num_records"]) == (2, 6)
    receipt = client.get(f"/v1/requests/{name}/receipt")
    assert receipt.status_code == 200
    assert OWNER not in receipt.text
    assert office.place.ledger.verify().seq == changed(office)


def test_a_signed_receipt_is_that_of_the_request(
    office: Office, client: TestClient, worker: Worker, tmp_path: Path
) -> None:
    """Whatever was published since; it checks, and has the digest of the request's number."""
    assert client.get("/v1/receipt-keys").status_code == 404
    make(tmp_path / "signing.key")
    for part in (office, worker):
        part.settings = part.settings.model_copy(update={"signing_key": tmp_path / "signing.key"})
    names = []
    for person in (OWNER, "person-one"):
        answer = client.post("/v1/requests", json=native(person, person))
        names.append(answer.json()["id"])
        worker.step()
    (tmp_path / "receipts.pub").write_bytes(client.get("/v1/receipt-keys").content)
    for release, name in enumerate(names, 2):
        receipt = client.get(f"/v1/requests/{name}/receipt")
        assert f"efface-receipt-{release}.json" in receipt.headers["content-disposition"]
        (tmp_path / "receipt.json").write_bytes(receipt.content)
        found = load_receipt(tmp_path / "receipt.json", tmp_path / "receipts.pub")
        assert hashlib.sha256(name.encode()).hexdigest() in found.request


def test_twice_is_once(office: Office, client: TestClient) -> None:
    first = client.post("/v1/requests", json=native())
    before = changed(office)
    again = client.post("/v1/requests", json=native())
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert changed(office) == before


def test_after_it_was_done_too(client: TestClient, worker: Worker) -> None:
    """The person is unknown by then; the number is not."""
    name = client.post("/v1/requests", json=native()).json()["id"]
    worker.step()
    again = client.post("/v1/requests", json=native())
    assert (again.status_code, again.json()["id"]) == (200, name)
    assert client.post("/v1/requests", json=native(number="2")).status_code == 404


BAD: list[tuple[str, int, str]] = [
    ("{", 400, "malformed"),
    ("[]", 400, "malformed"),
    (json.dumps(native() | {"more": 1}), 400, "malformed"),
    (json.dumps(native() | {"identities": []}), 400, "malformed"),
    (json.dumps(native() | {"submitted_time": "yesterday"}), 400, "malformed"),
    (json.dumps(native() | {"submitted_time": "2026-99-99T00:00:00Z"}), 400, "malformed"),
    (json.dumps(native("mallory")), 404, "no_match"),
    (json.dumps(native("x" * 600)), 400, "malformed"),
    ("[" * 50_000, 400, "malformed"),
    (" " * 70_000, 413, "too_large"),
]


@pytest.mark.parametrize(("body", "status", "why"), BAD)
def test_what_is_refused_changes_nothing(
    office: Office, client: TestClient, body: str, status: int, why: str
) -> None:
    before = changed(office)
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/requests", content=body, headers=headers)
    assert (answer.status_code, reason(answer)) == (status, why)
    assert changed(office) == before
    assert "mallory" not in answer.text


def test_a_body_that_does_not_say_how_long_it_is(office: Office, client: TestClient) -> None:
    parts = (b" " * 1000 for _ in range(100))
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/requests", content=parts, headers=headers)
    assert (answer.status_code, reason(answer)) == (413, "too_large")


def test_the_same_number_for_somebody_else(office: Office, client: TestClient) -> None:
    client.post("/v1/requests", json=native())
    before = changed(office)
    answer = client.post("/v1/requests", json=native("person-one"))
    assert (answer.status_code, reason(answer)) == (409, "conflict")
    assert changed(office) == before


def test_other_types_are_not_read(client: TestClient) -> None:
    answer = client.post("/v1/requests", content="a=1", headers={"content-type": "text/plain"})
    assert (answer.status_code, reason(answer)) == (415, "media_type")


def test_somebody_of_core_is_told_no(client: TestClient) -> None:
    answer = client.post("/v1/requests", json=native(CORE_OWNER))
    assert answer.status_code == 201
    assert (answer.json()["state"], answer.json()["reason"]) == ("refused", "claim_not_covered")


# --- keys -----------------------------------------------------------------------------------------

ALLOWED = {  # route -> the roles that may
    ("GET", "/v1/model"): {"read", "submit", "operate"},
    ("GET", "/v1/requests"): {"read", "operate"},
    ("POST", "/v1/requests"): {"submit", "operate"},
    ("GET", "/metrics"): {"read", "operate"},
    ("POST", "/v2/requests"): {"submit", "operate"},
    ("POST", "/fides/webhook"): {"submit", "operate"},
}


@pytest.mark.parametrize(("method", "path"), ALLOWED)
def test_roles(office: Office, method: str, path: str) -> None:
    for role in Role:
        answer = spoken(office, role).request(method, path, json={})
        assert (answer.status_code == 403) == (role not in ALLOWED[method, path])
    for headers in ({}, {"Authorization": "Bearer efk_wrong"}, {"Authorization": "Basic eDp5"}):
        stranger = spoken(office, Role.READ, f"for-{len(headers)}-{len(str(headers))}")
        del stranger.headers["Authorization"]
        answer = stranger.request(method, path, json={}, headers=headers)
        assert (answer.status_code, reason(answer)) == (401, "unauthorized")


def test_who_submits_sees_only_their_own(office: Office, client: TestClient) -> None:
    one, other = spoken(office, Role.SUBMIT, "one"), spoken(office, Role.SUBMIT, "other")
    name = one.post("/v1/requests", json=native()).json()["id"]
    assert one.get(f"/v1/requests/{name}").status_code == 200
    for method, path in [("GET", ""), ("GET", "/receipt"), ("DELETE", "")]:
        answer = other.request(method, f"/v1/requests/{name}{path}")
        assert (answer.status_code, reason(answer)) == (404, "no_request")
    # The numbers of two askers are two, too.
    assert other.post("/v1/requests", json=native("person-one")).status_code == 201
    assert client.get(f"/v1/requests/{name}").status_code == 200


def test_a_revoked_key_is_refused(office: Office) -> None:
    client = spoken(office, Role.READ, "gone")
    assert client.get("/v1/model").status_code == 200
    office.keys.revoke("gone")
    assert client.get("/v1/model").status_code == 401


def test_keys_are_kept_as_hashes(office: Office) -> None:
    key = office.keys.new("crm", Role.SUBMIT)
    found = office.keys.holder(key)
    assert isinstance(found, ApiKey)
    assert (found.name, found.role) == ("crm", Role.SUBMIT)
    assert key not in str(office.place.ledger.query("SELECT * FROM service_keys"))
    assert office.keys.holder(key[:-1]) is None


def test_too_often(office: Office) -> None:
    few = {"per_minute": 3, "strangers_per_minute": 2}
    limits = office.settings.limits.model_copy(update=few)
    office.settings = office.settings.model_copy(update={"limits": limits})
    client = spoken(office, Role.READ)
    answers = [client.get("/v1/model").status_code for _ in range(5)]
    assert answers == [200, 200, 200, 429, 429]
    del client.headers["Authorization"]
    assert [client.get("/v1/model").status_code for _ in range(3)] == [401, 401, 429]
    assert int(client.get("/v1/model").headers["retry-after"]) > 0
    assert client.get("/health").status_code == 200


# --- the rest -------------------------------------------------------------------------------------


def test_cancelled_before_anybody_works_on_it(client: TestClient, worker: Worker) -> None:
    name = client.post("/v1/requests", json=native()).json()["id"]
    assert client.delete(f"/v1/requests/{name}").status_code == 202
    worker.step()
    assert states(client, name)[-1] == "cancelled"
    assert client.get("/v1/model").json()["release"] == 1
    done = client.post("/v1/requests", json=native(number="2")).json()["id"]
    worker.step()
    answer = client.delete(f"/v1/requests/{done}")
    assert (answer.status_code, reason(answer)) == (409, "conflict")


def test_predictions_are_those_of_the_served_release(
    office: Office, client: TestClient, worker: Worker
) -> None:
    headers = {"content-type": "image/png"}
    answer = client.post("/v1/predict", content=picture(), headers=headers).json()
    expected = load(office.path).predict([picture()])[0]
    assert answer["label"] == expected
    assert answer["release"] == 1
    assert {score["label"] for score in answer["scores"]} == set(CLASSES)
    client.post("/v1/requests", json=native())
    worker.step()
    assert client.get("/ready").status_code == 503  # published, not loaded yet
    assert office.served.refresh()
    assert client.get("/ready").status_code == 200
    assert client.post("/v1/predict", content=picture(), headers=headers).json()["release"] == 2


@pytest.mark.parametrize("body", [b"", b"no image", picture()[:40]])
def test_what_is_no_image(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/predict", content=body, headers={"content-type": "image/png"})
    assert (answer.status_code, reason(answer)) == (400, "image")


def test_numbers(client: TestClient) -> None:
    client.post("/v1/requests", json=native())
    text = client.get("/metrics").text
    assert 'efface_requests{state="waiting"} 1' in text
    assert "efface_release 1" in text
    assert 'route="/v1/requests",status="201"' in text


def test_logs_and_numbers_name_nobody(
    office: Office, client: TestClient, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    identity = {"identity_type": "email", "identity_value": EMAIL}
    client.post("/v1/requests", json=native() | {"identities": [identity]})
    client.get(f"/v1/requests?who={EMAIL}")
    client.get(f"/v1/requests/{EMAIL}")
    client.get(f"/{EMAIL}")
    worker.step()
    ours = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith("httpx"))
    told = ours + client.get("/metrics").text
    assert "POST /v1/requests 201" in told
    assert EMAIL not in told
    assert OWNER not in told


def test_headers_on_every_reply(client: TestClient) -> None:
    for path in ("/health", "/nothing", "/v1/requests", "/login"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_settings_are_read_from_toml(tmp_path: Any) -> None:
    path = tmp_path / "service.toml"
    path.write_text('[batch]\nminimum = 3\n[[hooks]]\nkind = "folder"\npath = "copy"\n')
    found = ServiceSettings.read(path)
    assert found.batch.minimum == 3
    assert found.hooks[0].path == tmp_path / "copy"  # type: ignore[union-attr]
    path.write_text("[batch]\nminumum = 3\n")
    with pytest.raises(Exception, match=r"batch\.minumum"):
        ServiceSettings.read(path)


def test_the_command_line_knows_the_same_roles() -> None:
    assert [str(role) for role in KeyRole] == [str(role) for role in Role]
