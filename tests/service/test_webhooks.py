"""Fides and Meta: their own shapes, the same desk."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from tests.service.offices import CORE_OWNER, EMAIL, SECRET

from efface.service.api.meta import sign
from efface.service.office import Office
from efface.service.worker import Worker

REPLY = {"reply-to": "https://fides.example.com/resume/1", "reply-to-token": "token"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def fides(direction: str = "two_way", **others: Any) -> dict[str, Any]:
    return {
        "privacy_request_id": "pri_1",
        "privacy_request_status": "in_processing",
        "direction": direction,
        "callback_type": "pre_execution",
        "identity": {"email": EMAIL, "phone_number": None},
        "policy_action": "erasure",
        **others,
    }


def test_a_two_way_webhook_halts_until_the_person_is_forgotten(
    office: Office, client: TestClient, worker: Worker
) -> None:
    answer = client.post("/fides/webhook", json=fides(), headers=REPLY)
    assert (answer.status_code, answer.json()["halt"]) == (200, True)
    assert client.post("/fides/webhook", json=fides(), headers=REPLY).json()["halt"] is True
    assert len(office.desk.latest()) == 1
    worker.step()
    told = office.place.ledger.query("SELECT kind, url, token, status FROM service_callbacks")
    assert told == [("fides", REPLY["reply-to"], "token", "resume")]
    assert client.post("/fides/webhook", json=fides(), headers=REPLY).json()["halt"] is False


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (fides(policy_action="access"), "not_erasure"),
        (fides(identity={"email": "nobody@example.com"}), "no_match"),
        (fides("one_way"), ""),
        (fides("one_way", identity={"email": {"label": "E-mail", "value": EMAIL}}), ""),
    ],
)
def test_no_reason_to_halt(client: TestClient, asked: dict[str, Any], reason: str) -> None:
    answer = client.post("/fides/webhook", json=asked, headers=REPLY)
    assert answer.json() == {"halt": False, "reason": reason}


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 400), ({**REPLY, "reply-to": "http://169.254.169.254/latest"}, 400), (REPLY, 200)],
)
def test_where_to_reply(
    office: Office, client: TestClient, headers: dict[str, str], status: int
) -> None:
    before = office.place.ledger.head()
    assert client.post("/fides/webhook", json=fides(), headers=headers).status_code == status
    assert (office.place.ledger.head() == before) == (status == 400)


def test_somebody_of_core_is_not_resumed(client: TestClient) -> None:
    asked = fides(identity={"customer": CORE_OWNER})
    answer = client.post("/fides/webhook", json=asked, headers=REPLY)
    assert answer.json()["error"]["errors"][0]["reason"] == "claim_not_covered"


# --- Meta -----------------------------------------------------------------------------------------


def meta(user: str = "218471", **others: Any) -> str:
    values = {"algorithm": "HMAC-SHA256", "user_id": user, "issued_at": 1291836800, **others}
    return sign(json.dumps(values).encode(), SECRET)


def sent(client: TestClient, signed_request: str) -> Any:
    body = f"signed_request={quote(signed_request)}"
    return client.post("/meta/data-deletion", content=body, headers=FORM)


def test_a_signed_request_needs_no_key(client: TestClient, worker: Worker) -> None:
    del client.headers["Authorization"]
    answer = sent(client, meta())
    assert answer.status_code == 200
    values = answer.json()
    assert set(values) == {"url", "confirmation_code"}
    page = values["url"].removeprefix("https://privacy.example.com")
    assert "waits for others" in client.get(page).text
    worker.step()
    assert "Done." in client.get(page).text
    assert sent(client, meta()).json() == values  # a replay
    assert client.get("/status/000000000000000000000000").status_code == 404


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (sign(b'{"algorithm": "HMAC-SHA256", "user_id": "218471"}', b"another secret"), 401),
        (meta().partition(".")[2], 401),
        ("." + meta().partition(".")[2], 401),
        (meta() + ".", 401),
        ("", 400),
        (sign(b"[]", SECRET), 400),
        (sign(b"no json", SECRET), 400),
        (sign(b'{"algorithm": "none", "user_id": "218471"}', SECRET), 400),
        (sign(b'{"algorithm": "HMAC-SHA256"}', SECRET), 400),
        (meta("4711"), 404),
    ],
)
def test_what_is_refused_changes_nothing(
    office: Office, client: TestClient, text: str, status: int
) -> None:
    before = office.place.ledger.head()
    answer = sent(client, text)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
    assert office.place.ledger.head() == before
