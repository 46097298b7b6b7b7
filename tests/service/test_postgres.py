"""The service with its requests in PostgreSQL: a server that the test starts, or skipped with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.offices import native, spoken, states
from tests.workspaces import OWNER

from efface.service.aftermath import scrub
from efface.service.keys import Role
from efface.service.leases import Lease
from efface.service.office import Office
from efface.service.place import Place
from efface.service.settings import ServiceSettings
from efface.service.worker import Worker

pytestmark = pytest.mark.needs("posix")


def test_from_request_to_receipt(folder: Path, settings: ServiceSettings) -> None:
    from tests.ledger.servers import postgres

    with (
        postgres() as url,
        Place.open(folder, settings.model_copy(update={"ledger": url})) as place,
    ):
        office, worker = Office(place), Worker(place)
        client = spoken(office, Role.OPERATE)
        name = client.post("/v1/requests", json=native()).json()["id"]
        assert client.post("/v1/requests", json=native()).status_code == 200
        assert Lease(place.ledger, 60).take()
        assert not Lease(place.ledger, 60).take()
        worker.step()
        assert states(client, name)[-1] == "done"
        assert client.get(f"/v1/requests/{name}/receipt").status_code == 200
        assert 'state="done"} 1' in client.get("/metrics").text
        assert OWNER not in str(place.ledger.query("SELECT * FROM service_tickets"))
        assert scrub(place.ledger)
        place.ledger.verify()
