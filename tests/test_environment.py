"""What a certificate says of the machine: as the libraries themselves say it, without loading them."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import PIL
import pytest
from PIL import features

from efface import environment
from efface.environment import _installed, _jpeg_version


def test_versions_are_those_that_the_libraries_give() -> None:
    torch = importlib.metadata.version("torch")
    assert _installed("torch") == torch
    assert _jpeg_version() == features.version("jpg")
    assert environment.environment(integer=True) == {
        "decoder": f"pillow {PIL.__version__}, libjpeg {features.version('jpg')}",
        "torch": torch.split("+")[0],
    }


def test_a_pillow_that_keeps_it_elsewhere_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL._imaging", None)  # makes its import fail
    monkeypatch.delattr(PIL, "_imaging", raising=False)
    assert _jpeg_version() == features.version("jpg")


@pytest.mark.parametrize("folders", [[], ["torch-1.0.dist-info", "torch-2.0.dist-info"]])
def test_without_one_folder_of_metadata_the_slow_way_decides(
    folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*folders, "torch", "torch-geometric-3.0.dist-info"):
        (tmp_path / name).mkdir()
    place = ModuleSpec("torch", None, origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(environment, "find_spec", lambda name: place)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"the slow way's {name}")
    assert _installed("torch") == "the slow way's torch"
    for name in folders:
        (tmp_path / name).rmdir()
    (tmp_path / "torch-4.1+cpu.dist-info").mkdir()
    assert _installed("torch") == "4.1+cpu"


def test_it_loads_neither_torch_nor_what_reads_images_and_mail() -> None:
    code = (
        "import sys\n"
        "from efface.environment import environment\n"
        "assert environment(integer=True)['torch']\n"
        "print(sorted({'torch', 'PIL.Image', 'email', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
