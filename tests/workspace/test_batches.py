"""Requests collected in a file and carried out together."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.model.test_core_people import OWNER, half_core
from tests.workspaces import contents, core, fitted, people
from typer.testing import CliRunner, Result

from efface.cli import app
from efface.errors import EffaceError, GuaranteeError, RequestError
from efface.guarantee.certificates import together
from efface.model.mixed_linear import MixedLinear
from efface.pipeline.trial import differences
from efface.workspace import Workspace
from efface.workspace.batches import collect, read_requests

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def efface(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "w"
    Workspace.create(path, fitted("compact", people()))
    return path


@pytest.fixture
def workspace(made: Path, tmp_path: Path) -> Workspace:
    return Workspace.open(shutil.copytree(made, tmp_path / "w"))


def written(folder: Path, *rows: object) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_batch_is_one_release_equal_to_training_without_all_of_them(
    workspace: Workspace, tmp_path: Path
) -> None:
    records = people()
    one = records.select(owner="person-four").ids[0]
    file = written(tmp_path, {"owner": "person-two"}, {"owner": "person-one"}, {"ids": [one]})
    result = efface("forget", workspace.path, "--from", file, "--json")
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    gone = {*records.select(owner=["person-one", "person-two"]).ids, one}
    assert values["num_records"] == len(gone)
    assert values["release"] == 2
    assert values["certificate"]["num_people"] == 3
    never = Workspace.create(tmp_path / "never", fitted("compact", records.without(gone)))
    found = set(differences(workspace.path, never.path))
    assert found == set()


def test_the_certificate_says_in_whose_company_somebody_left(
    workspace: Workspace, tmp_path: Path
) -> None:
    file = written(tmp_path, {"owner": "person-two"}, {"owner": "person-one"})
    shown = efface("forget", workspace.path, "--from", file)
    assert "records of 2 people" in shown.stdout
    assert "delete it" in shown.stderr  # the file still names them
    for form in ("private", "public"):
        stored = json.loads((workspace.path / f"certificates/2.{form}.json").read_text())
        assert stored["num_people"] == 2
        assert together(2)[0] in stored["not_covered"]
        assert any("can tell which images were deleted" in text for text in stored["not_covered"])
    alone = workspace.forget(owner="person-four").certificate
    assert alone is not None
    assert alone.num_people == 1
    assert together(1)[0] in alone.not_covered


def test_a_small_batch_waits_until_the_deadline(workspace: Workspace, tmp_path: Path) -> None:
    before = contents(workspace.path)
    today = datetime.now(UTC)
    rows = [{"owner": "person-two", "received": (today - timedelta(days=3)).isoformat()}]
    file = written(tmp_path, *rows)
    words = ("forget", workspace.path, "--from", file, "--minimum-batch", 2, "--json")
    for extra in ((), ("--deadline", 5)):
        result = efface(*words, *extra)
        assert result.exit_code == 0, result.stderr
        values = json.loads(result.stdout)
        assert values["carried_out"] is False
        assert (values["num_people"], values["minimum_batch"]) == (1, 2)
        assert values["oldest_days"] == pytest.approx(3, abs=0.1)
    assert contents(workspace.path) == before
    assert efface(*words, "--deadline", 2.5).exit_code == 0
    assert "person-two" not in workspace.records.owners


def test_people_count_not_requests(workspace: Workspace, tmp_path: Path) -> None:
    ids = people().select(owner="person-two").ids
    file = written(tmp_path, *({"ids": [name]} for name in ids), {"owner": "person-two"})
    batch = collect(workspace, read_requests(file))
    assert batch.num_requests == len(ids) + 1
    assert batch.num_people == 1
    assert sorted(batch.ids) == sorted(ids)
    assert not batch.is_due(2, None)
    assert batch.is_due(1, None)


def test_the_oldest_request_decides(workspace: Workspace, tmp_path: Path) -> None:
    days = ({"owner": "person-one", "received": "2026-11-10"},)
    file = written(
        tmp_path, *days, {"owner": "person-two", "received": "2026-11-14T12:00:00+02:00"}
    )
    batch = collect(workspace, read_requests(file), now=NOW)
    assert batch.age == timedelta(days=6)
    assert batch.is_due(9, timedelta(days=6))
    assert not batch.is_due(9, timedelta(days=6.01))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("no json", "line 2 is no request"),
        ('{"owner": "x", "color": "red"}', "known keys"),
        ('{"owner": "x", "ids": ["a"]}', "exactly one of"),
        ('{"owner": "x", "received": "last week"}', "line 2 is no request"),
        ("[1]", "line 2 is no request"),
    ],
)
def test_a_bad_line_is_named(line: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(f'{{"owner": "person-one"}}\n{line}\n')
    with pytest.raises(EffaceError, match=says):
        read_requests(file)


def test_a_request_that_cannot_be_carried_out_stops_all_and_is_named(
    workspace: Workspace, tmp_path: Path
) -> None:
    before = contents(workspace.path)
    file = written(tmp_path, {"owner": "person-one"}, {"owner": "nobody"})
    with pytest.raises(RequestError, match="line 2: no user record has owner 'nobody'"):
        collect(workspace, read_requests(file))
    assert efface("forget", workspace.path, "--from", file).exit_code == 2
    timeless = efface("forget", workspace.path, "--from", file, "--deadline", 1)
    assert "line 1 does not say when" in timeless.stderr
    two = efface("forget", workspace.path, "--from", file, "--owner", "person-one")
    assert "two requests" in two.stderr
    assert contents(workspace.path) == before


def test_somebody_in_core_is_refused_or_counted_in_a_batch_too(tmp_path: Path) -> None:
    users, cores = half_core()
    model = MixedLinear(core(), features=60).fit(users, replay=cores)
    workspace = Workspace.create(tmp_path / "w", model)
    file = written(tmp_path, {"owner": "person-two"}, {"owner": OWNER})
    with pytest.raises(GuaranteeError, match="line 2: 3 images"):
        collect(workspace, read_requests(file))
    words = ("forget", workspace.path, "--from", file)
    assert efface(*words).exit_code == 3
    result = efface(*words, "--user-part-only", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["certificate"]["num_in_core"] == 3
