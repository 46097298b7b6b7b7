"""The API against its own description.

Whatever schemathesis makes of the OpenAPI, replies are as described.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from tests.service.offices import native

from efface.service.office import Office

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    negative_data_rejection,
    positive_data_acceptance,
)

# What is well formed may still be no image, or name nobody, or carry no signature of ours: then these routes
# answer 400, as their protocols say, where schemathesis expects another status. So its check is off there,
# and ours is on: such a 400 must be about the content, never about the form.
CONTENT_DECIDES = {
    "/v1/predict": {"image"},
    "/v2/requests": {"no_match", "claim_not_covered", "callback_url"},
    "/meta/data-deletion": {"malformed"},  # whatever comes is a text, and signed or not
    "/fides/webhook": {"malformed", "callback_url"},  # two-way without the headers that it needs
}
EXAMPLES = settings(
    max_examples=20, suppress_health_check=list(HealthCheck), deadline=None, derandomize=True
)
NUM_OPERATIONS = 19


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_replies_are_as_described(office: Office, client: TestClient, mode: Any) -> None:
    """Status, type, headers and body of every reply; unknown methods; bad keys are refused."""
    headers = {"Authorization": client.headers["Authorization"]}
    client.post("/v1/requests", json=native())
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in operations:
        check(operation, mode, headers)
    assert len(operations) == NUM_OPERATIONS
    office.place.ledger.verify()


def check(operation: Any, mode: Any, headers: dict[str, str]) -> None:
    excluded = [positive_data_acceptance] if operation.path in CONTENT_DECIDES else []

    @EXAMPLES
    @given(case=operation.as_strategy(generation_mode=mode))
    def once(case: Any) -> None:
        wrong = {str(where) for where, how in case.meta.components.items() if how.mode.is_negative}
        ours = [negative_data_rejection] if wrong <= {"header"} else []  # we put the key back
        answer = case.call_and_validate(headers=headers, excluded_checks=[*excluded, *ours])
        if mode.is_positive and answer.status_code == 400:
            reasons.add(answer.json()["error"]["errors"][0]["reason"])

    reasons: set[str] = set()
    with contextlib.suppress(Unsatisfiable):  # nothing can be wrong where nothing is given
        once()
    assert reasons <= CONTENT_DECIDES.get(operation.path, set())
