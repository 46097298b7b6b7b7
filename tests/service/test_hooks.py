"""Copies elsewhere: the new release comes, the older ones are gone, and what is not ours is left alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.service.offices import picture
from tests.workspaces import OWNER

from efface.service.hooks.command import CommandHook
from efface.service.hooks.hook import HookError, PublicModel
from efface.service.hooks.shelves import FolderShelf, Shelf, ShelfHook, StoreShelf
from efface.service.hooks.table import hooks_of
from efface.service.settings import ServiceSettings
from efface.workspace import Workspace
from efface.workspace.published import load


@pytest.fixture(params=["folder", "file", "memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    if request.param == "folder":
        return FolderShelf(tmp_path / "copy")
    fsspec = pytest.importorskip("fsspec", reason="object stores need fsspec")
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
        return StoreShelf("memory://bucket/model")
    return StoreShelf(f"file://{tmp_path}/copy")


def forgotten(folder: Path) -> PublicModel:
    Workspace.open(folder).forget(owner=OWNER)
    return PublicModel.of(folder)


def test_a_copy_is_replaced(folder: Path, shelf: Shelf) -> None:
    hook = ShelfHook("copy", shelf)
    hook.run(PublicModel.of(folder))
    assert "releases/1/user.safetensors" in shelf.names()
    shelf.put("notes/mine.txt", b"not ours")
    hook.run(forgotten(folder))
    hook.run(PublicModel.of(folder))  # again is no harm
    names = shelf.names()
    assert "releases/2/user.safetensors" in names
    assert not [name for name in names if name.startswith(("releases/1/", "certificates/1."))]
    assert "notes/mine.txt" in names
    assert not [name for name in names if "private" in name or "records" in name]


def test_a_copy_predicts_like_the_original(folder: Path, tmp_path: Path) -> None:
    ShelfHook("copy", FolderShelf(tmp_path / "copy")).run(forgotten(folder))
    images = [picture(0), picture(200)]
    assert (load(tmp_path / "copy").logits(images) == load(folder).logits(images)).all()


class Stubborn(FolderShelf):
    """Says that it deletes."""

    def delete(self, name: str) -> None:
        pass


def test_what_is_still_there_is_an_error(folder: Path, tmp_path: Path) -> None:
    hook = ShelfHook("copy", Stubborn(tmp_path / "copy"))
    hook.run(PublicModel.of(folder))
    with pytest.raises(HookError, match="still there"):
        hook.run(forgotten(folder))


def test_a_command_is_given_model_and_release(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))"
    words = (sys.executable, "-c", code, str(out), "{model}", "{release}", "$(id); `id`")
    CommandHook(words, 60).run(PublicModel.of(folder))
    assert out.read_text() == f"{folder} 1 $(id); `id`"  # no shell


@pytest.mark.parametrize(
    ("words", "seconds", "told"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), 60, "exit code 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), 0.1, "longer than"),
        (("/nowhere/at/all",), 60, "cannot be started"),
    ],
)
def test_a_command_that_fails(
    folder: Path, words: tuple[str, ...], seconds: float, told: str
) -> None:
    with pytest.raises(HookError, match=told):
        CommandHook(words, seconds).run(PublicModel.of(folder))


def test_hooks_of_the_settings_have_names_of_their_own(tmp_path: Path) -> None:
    folder = {"kind": "folder", "path": str(tmp_path)}
    listed = [folder, folder, {"kind": "command", "argv": ["true"]}]
    listed += [{"kind": "mlflow", "tracking_uri": "http://127.0.0.1:1", "model": "m"}]
    made = hooks_of(ServiceSettings.model_validate({"hooks": listed}).hooks)
    assert len({hook.name for hook in made}) == 4
