"""``--device`` of the commands that compute a network: where it is computed, and the same numbers wherever.

Here on every device that torch finds, and on ``cpu:0``, the CPU taken for another one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.devices import every_device, watched
from tests.shell import efface, values_of
from tests.workspaces import OWNER

from efface.network.device import CPU
from efface.workspace import Workspace

COMMANDS = ("evaluate", "predict", "add", "rows", "audit", "verify", "scan", "join")
FAILS = {"audit": 3, "scan": 3}  # the owner is still in the model


LITTLE = ("--worlds", 0, "--canaries", 0)
# Files and times; a partner's words are tagged with a key of its own, their sums are not.
TELLS_WHERE = (
    "model",
    "workspace",
    "out",
    "seconds",
    "message",
    "statement_digest",
)


def _joining(model: Path, work: Path) -> tuple[object, ...]:
    """The other words of `efface partner join`; the partner is admitted."""
    invitation, message = work / "invitation.json", work / "message"
    efface("partner", "admit", model, "--name", "clinic", "--out", invitation)
    where = ("--invitation", invitation, "--out", work / "rows", "--message", message)
    return (*where, "--minimum-people", 1)


def run(command: str, folder: Path, work: Path, *options: str) -> dict[str, Any]:
    """What a command says on a fresh copy of the compact workspace, but for where its files are."""
    model = shutil.copytree(folder / "compact", work / "w")
    words: dict[str, tuple[object, ...]] = {
        "evaluate": (model, folder / "data.npz"),
        "predict": (model, folder / "data.npz", "--split", "test"),
        "add": (model, folder / "new.npz"),
        "rows": (folder / "new.npz", "--model", model, "--out", work / "part"),
        "audit": (model, folder / "data.npz", "--owner", OWNER, *LITTLE, "--out", work / "audit"),
        "verify": (model, "--from-images", folder / "data.npz"),
        "scan": (model, folder / "data.npz", "--owner", OWNER),
        "join": ("join", folder / "new.npz", "--model", model),
    }
    name = "partner" if command == "join" else command
    more = _joining(model, work) if command == "join" else ()
    result = efface(name, *words[command], *more, *options, "--json")
    values = values_of(result, FAILS.get(command, 0))
    found = {name: values[name] for name in values if name not in TELLS_WHERE}
    if command == "audit":
        found = {"served": values["served"]}
    if command == "add":
        certificate = Workspace.open(model).certificate
        found = {"certificate": certificate, "records": values["num_records"]}
    shutil.rmtree(work)
    return found


@every_device
@pytest.mark.parametrize("command", COMMANDS)
def test_the_device_is_where_it_is_computed_and_the_numbers_are_the_same(
    command: str,
    device: torch.device,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = watched(monkeypatch)
    plain = run(command, folder, tmp_path / "a")
    assert run(command, folder, tmp_path / "b", "--device", "cpu") == plain
    assert used == {CPU}
    assert run(command, folder, tmp_path / "c", "--device", str(device)) == plain
    assert device in used


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["cuda", "tpu"])
def test_a_device_that_is_not_there_is_refused(
    command: str, name: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError) as refused:
        run(command, folder, tmp_path / "a", "--device", name)
    said = str(refused.value)
    assert "Fix: use --device cpu" in said or "use auto, cuda, mps or cpu" in said
    assert name in said
