"""Digests that another machine wrote down: models as files, and what their rows, sums and weights were there.

``test_machines.py`` lets one processor compute as others would. Here two really are compared: ``given/`` has
calibrated models (made by ``test_machines.make``, with random or shortly trained weights), the steps of an
ImageNet ResNet-50's integers, and the files of ``WRITTEN``, each written on the machine that it names:

    python -m tests.arithmetic.integer.test_given covariances.json

Every machine that runs the tests computes rows, sums and weights anew, from the same pixels.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.arithmetic.integer.test_machines import _sha, digests, make
from tests.places import SHARED

from efface.arithmetic.integer.form import IntegerForm
from efface.data.preprocess import Preprocess
from efface.environment import environment
from efface.network.core import Core

GIVEN = Path(__file__).parent / "given"
STEPS = GIVEN / "resnet-50.json"
WRITTEN = {  # which models' digests are in which file
    "digests.json": ("cnn", "resnet", "resnet gradients", "vit"),  # the first two: maps
    "covariances.json": ("resnet covariances",),
}
REAL = "digests.json"  # the real network's are in this one
SIDE = 96


@pytest.mark.parametrize(
    ("file", "name"), [(file, name) for file, names in WRITTEN.items() for name in names]
)
def test_the_bits_are_those_of_the_machine_that_wrote_them_down(file: str, name: str) -> None:
    written = json.loads((GIVEN / file).read_text())
    if name == "vit" and torch.__version__.partition("+")[0] != written["torch"]:
        pytest.skip("sums in float64 are promised for one version of torch")
    assert digests(name, GIVEN / name) == written["digests"][name]


@pytest.mark.skipif(not (SHARED / "weights").is_dir(), reason="no ../shared with the real network")
def test_so_are_those_of_the_real_network() -> None:
    written, form = json.loads((GIVEN / REAL).read_text()), real(json.loads(STEPS.read_text()))
    for _ in range(2):  # in float32, then on bytes where the processor can
        assert _sha(form.boundary_of(pixels()).numpy()) == written["resnet-50"]


def real(steps: dict[str, object] | None = None) -> IntegerForm:
    spec = f"hf:{SHARED / 'weights' / 'resnet50-imagenet'}"
    core = Core(spec, classes=["a", "b"], preprocess=Preprocess(resize=SIDE, crop=SIDE))
    return IntegerForm.find(core, pixels()) if steps is None else IntegerForm.load(core, steps)


def pixels() -> torch.Tensor:
    """Bright and dark squares with noise: numpy's generators give the same integers everywhere."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 200, (3, 3, 6, 6)).repeat(SIDE // 6, 2).repeat(SIDE // 6, 3)
    return torch.from_numpy((coarse + rng.integers(0, 56, coarse.shape)).astype(np.uint8))


def write(file: str) -> None:
    names = WRITTEN[file]
    for name in names:
        shutil.rmtree(GIVEN / name, ignore_errors=True)
        (GIVEN / name).mkdir(parents=True)
        make(name, GIVEN / name)
    found = {name: digests(name, GIVEN / name) for name in names}
    about = {"machine": environment(integer=False), "torch": torch.__version__.partition("+")[0]}
    whole: dict[str, object] = {**about, "digests": found}
    if file == REAL:
        form = real()
        STEPS.write_text(json.dumps(form.settings) + "\n")
        whole["resnet-50"] = _sha(form.boundary_of(pixels()).numpy())
    (GIVEN / file).write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    for file in sys.argv[1:]:
        write(file)
