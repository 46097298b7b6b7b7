"""Files of earlier versions are read: what is in a folder does not change with the code that reads it.

``earlier.tar.xz`` holds two workspaces, one per user part, written by the version before the modules were
moved into rooms (commit af52001): five people, of whom one was forgotten.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
from tests.places import ROOT

import efface
from efface.workspace import Workspace
from efface.workspace.verify import all_checks

EARLIER = ROOT / "tests" / "workspace" / "earlier.tar.xz"
FORMATS = {  # of files that users have: a change here needs a way to read what they have
    "efface.certificate/1",
    "efface.core-records/2",
    "efface.core/1",
    "efface.current/2",
    "efface.forgotten/1",
    "efface.guarantee/1",
    "efface.key/1",
    "efface.manifest/2",
    "efface.model/1",
    "efface.pending/1",
    "efface.records/2",
    "efface.rows/1",
    "efface.state/1",
    "efface.workspace/3",
}


@pytest.fixture(params=["compact", "tangent"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(EARLIER) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / request.param


def wrong(path: Path) -> list[str]:
    opened = Workspace.open(path, recover=False)
    return [check.name for check in all_checks(opened, retrain=True) if check.ok is False]


def test_an_earlier_workspace_checks_and_takes_requests(path: Path) -> None:
    assert wrong(path) == []
    workspace = Workspace.open(path)
    assert set(workspace.records.owners) == {
        "person-one",
        "person-three",
        "person-four",
        "person-five",
    }
    assert workspace.forget(owner="person-four").num_records == 6
    assert wrong(path) == []


def test_a_change_in_an_earlier_workspace_is_seen(path: Path) -> None:
    stored = path / "private" / "2" / "records.json"
    stored.write_text(stored.read_text().replace("person-five", "person-nine"))
    assert wrong(path) != []


def test_formats_keep_their_names() -> None:
    """They look like modules, and are none: moving code must not rename them."""
    source = Path(efface.__file__).parent
    texts = [p.read_text(encoding="utf-8") for p in source.rglob("*.py")]
    found = {name for text in texts for name in re.findall(r'"(efface\.[a-z.-]+/\d+)"', text)}
    assert found >= FORMATS
