"""The page for the papers: of every request that has ended, in the language that was asked for."""

from __future__ import annotations

import hashlib
import html
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.service.offices import CORE_OWNER, native, spoken
from tests.workspaces import OWNER

from efface.receipts.keys import make
from efface.report.language import Language, words
from efface.service.keys import Role
from efface.service.office import Office
from efface.service.settings import ServiceSettings
from efface.service.worker import Worker


def asked(client: TestClient, value: str = OWNER, number: str = "1") -> str:
    return str(client.post("/v1/requests", json=native(value, number)).json()["id"])


@pytest.mark.parametrize("is_signed", [True, False])
def test_of_a_request_that_is_done(
    office: Office, client: TestClient, worker: Worker, tmp_path: Path, is_signed: bool
) -> None:
    if is_signed:
        make(tmp_path / "signing.key")
        for part in (office, worker):
            part.settings = part.settings.model_copy(
                update={"signing_key": tmp_path / "signing.key"}
            )
    name = asked(client)
    assert client.get(f"/v1/requests/{name}/page").status_code == 409
    worker.step()
    answer = client.get(f"/v1/requests/{name}/page")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment;")
    page = html.unescape(answer.text)
    assert "images that the request named: 6" in page
    assert name in page
    assert OWNER not in page
    reference = hashlib.sha256(name.encode()).hexdigest()
    assert (reference in page) == is_signed
    assert ("This request has no signed receipt" in page) != is_signed


@pytest.mark.parametrize("language", Language)
def test_in_every_language(client: TestClient, worker: Worker, language: Language) -> None:
    name = asked(client)
    worker.step()
    page = client.get(f"/v1/requests/{name}/page", params={"language": language}).text
    assert words(language)("title.forget") in html.unescape(page)
    assert f'<html lang="{language}">' in page


def test_of_one_that_was_refused_and_one_that_was_called_off(client: TestClient) -> None:
    refused = html.unescape(client.get(f"/v1/requests/{asked(client, CORE_OWNER)}/page").text)
    say = words(Language.ENGLISH)
    assert say("title.refused") in refused
    assert say("reason.claim_not_covered") in refused
    assert CORE_OWNER not in refused
    name = asked(client, number="2")
    client.delete(f"/v1/requests/{name}")
    cancelled = html.unescape(client.get(f"/v1/requests/{name}/page").text)
    assert say("title.cancelled") in cancelled
    assert say("reason.claim_not_covered") not in cancelled


def test_the_language_of_the_settings(office: Office, client: TestClient, worker: Worker) -> None:
    settings = ServiceSettings.model_validate({"language": "fr"})
    office.settings = office.settings.model_copy(update={"language": settings.language})
    name = asked(client)
    worker.step()
    assert '<html lang="fr">' in client.get(f"/v1/requests/{name}/page").text
    answer = client.get(f"/v1/requests/{name}/page", params={"language": "tlh"})
    assert answer.status_code == 400


def test_for_those_who_may_see_the_request(office: Office, client: TestClient) -> None:
    name = asked(client, CORE_OWNER)
    stranger = spoken(office, Role.SUBMIT, "another")
    assert stranger.get(f"/v1/requests/{name}/page").status_code == 404
    assert client.get(f"/v1/requests/{name}/page", headers={"Authorization": ""}).status_code == 401
