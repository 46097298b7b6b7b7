"""``--device`` of the commands that compute a network: where it is computed, and the same numbers wherever.

``auto`` takes ``cpu:0`` here, the CPU taken for another device: modules and tensors are moved as to a card.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shell import efface, values_of

from efface.model import mixed_linear
from efface.network.device import CPU, Placement
from efface.workspace import Workspace

TWIN = torch.device("cpu", 0)
COMMANDS = ("evaluate", "predict", "add", "rows")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Devices that commands have placed networks on; ``auto`` is the twin."""
    seen: list[torch.device] = []
    real = Placement.__init__

    def watched(self: Placement, device: torch.device = CPU) -> None:
        seen.append(device)
        real(self, device)

    monkeypatch.setattr(Placement, "__init__", watched)
    named = mixed_linear.device_named
    twin = {"auto": TWIN}
    monkeypatch.setattr(mixed_linear, "device_named", lambda name: twin.get(name) or named(name))
    return seen


def run(command: str, folder: Path, work: Path, *options: str) -> dict[str, Any]:
    """What a command says on a fresh copy of the compact workspace, but for where its files are."""
    model = shutil.copytree(folder / "compact", work / "w")
    words: dict[str, tuple[object, ...]] = {
        "evaluate": (model, folder / "data.npz"),
        "predict": (model, folder / "data.npz", "--split", "test"),
        "add": (model, folder / "new.npz"),
        "rows": (folder / "new.npz", "--model", model, "--out", work / "part"),
    }
    values = values_of(efface(command, *words[command], *options, "--json"))
    found = {
        name: values[name]
        for name in values
        if name not in ("model", "out", "seconds", "seconds_estimate")
    }
    if command == "add":
        certificate = Workspace.open(model).certificate
        found = {"certificate": certificate, "records": values["num_records"]}
    shutil.rmtree(work)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_the_device_is_where_it_is_computed_and_the_numbers_are_the_same(
    command: str, folder: Path, tmp_path: Path, used: list[torch.device]
) -> None:
    plain = run(command, folder, tmp_path / "a")
    assert TWIN not in used
    assert run(command, folder, tmp_path / "b", "--device", "cpu") == plain
    assert TWIN not in used
    assert run(command, folder, tmp_path / "c", "--device", "auto") == plain
    assert TWIN in used


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["cuda", "tpu"])
def test_a_device_that_is_not_there_is_refused(
    command: str, name: str, folder: Path, tmp_path: Path, used: list[torch.device]
) -> None:
    with pytest.raises(AssertionError) as refused:
        run(command, folder, tmp_path / "a", "--device", name)
    said = str(refused.value)
    assert "Fix: use --device cpu." in said or "use one of auto, cuda, mps, cpu." in said
    assert name in said
