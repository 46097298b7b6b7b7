"""Serving: every kind of image, every release, every thread."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests import cases
from typer.testing import CliRunner

import efface
from efface import Core, MixedLinear, Records, Serving, Workspace
from efface.cli import app
from efface.errors import RecordError


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return cases.blobs(40, 0, 16, 3)[0]


@pytest.fixture
def workspace(tmp_path: Path, images: np.ndarray) -> Workspace:
    _, labels = cases.blobs(40, 0, 16, 3)
    owners = [f"u{i // 2:02d}" for i in range(40)]
    cases.randomised(cases.tiny("resnet-bottleneck")).save_pretrained(tmp_path / "net")
    data = Records.from_arrays(images, labels, owners=owners, classes=[0, 1, 2])
    core = Core(f"hf:{tmp_path / 'net'}", classes=data.classes)
    model = MixedLinear(core, features=40).fit(data)
    return Workspace.create(tmp_path / "model", model)


def forms(pixels: np.ndarray, folder: Path) -> list[Any]:
    """One image in every form that is taken."""
    path = folder / "one image.png"
    Image.fromarray(pixels).save(path)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return [pixels, Image.fromarray(pixels), str(path), path, buffer.getvalue(), path.as_uri()]


def test_every_form_of_an_image_gets_the_same_prediction(
    workspace: Workspace, images: np.ndarray, tmp_path: Path
) -> None:
    serving = Serving(workspace.path, top=2)
    found = serving.predict(forms(images[0], tmp_path))
    assert len({(p.label, *p.scores.items()) for p in found}) == 1
    model = efface.load(workspace.path)
    assert [p.label for p in found] == [model.predict(images[:1])[0]] * len(found)
    assert len(found[0].scores) == 2
    assert found[0].release == serving.release == 1


@pytest.mark.parametrize("bad", ["https://example.org/x.png", "nowhere.png", b"no image"])
def test_what_cannot_be_read_is_named_or_left_out(
    workspace: Workspace, images: np.ndarray, bad: Any
) -> None:
    serving = Serving(workspace.path)
    with pytest.raises(RecordError):
        serving.predict([images[0], bad])
    good, problem = serving.predict([images[0], bad], skip_bad=True)
    assert good.label is not None
    assert problem.label is None
    assert problem.problem


def test_a_new_release_is_served_without_another_network(
    workspace: Workspace, images: np.ndarray
) -> None:
    serving = Serving(workspace.path)
    serving.predict(images[:1])
    core, form = serving._loaded.model.core, serving._loaded.model.user.form
    workspace.forget(owner="u03")
    (found,) = serving.predict(images[:1])
    assert found.release == serving.release == 2
    assert serving._loaded.model.core is core
    assert serving._loaded.model.user.form is form
    again = efface.load(workspace.path)
    assert torch.equal(serving._loaded.model.logits(images), again.logits(images))
    assert not serving.refresh()


def test_threads_get_predictions_of_one_release_each_while_it_switches(
    workspace: Workspace, images: np.ndarray
) -> None:
    serving = Serving(workspace.path, top=3)
    found: list[Any] = []
    stop = threading.Event()

    def ask(i: int) -> None:
        while not stop.is_set():
            found.append((i, serving.predict(images[i : i + 2])))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    expected = {1: efface.load(workspace.path)}
    for thread in threads:
        thread.start()
    for owner in ("u10", "u11", "u12"):
        workspace.forget(owner=owner)
        expected[workspace.number] = efface.load(workspace.path)
    stop.set()
    for thread in threads:
        thread.join()
    for i, answers in found:
        releases = {answer.release for answer in answers}
        assert len(releases) == 1
        want = expected[releases.pop()].logits(images[i : i + 2]).softmax(1).max(1).values.tolist()
        assert [max(answer.scores.values()) for answer in answers] == want
    assert serving.predict(images[:1])[0].release == 4
    assert {answer.release for _, answers in found for answer in answers} >= {1}


def test_the_command_leaves_bad_images_out(
    workspace: Workspace, images: np.ndarray, tmp_path: Path
) -> None:
    good, bad = tmp_path / "a b.png", tmp_path / "bad.png"
    Image.fromarray(images[0]).save(good)
    bad.write_bytes(good.read_bytes()[:100])
    words = ["predict", str(workspace.path), good.as_uri(), str(bad), str(tmp_path / "no.png")]
    assert CliRunner().invoke(app, words).exit_code == 2
    result = CliRunner().invoke(app, [*words, "--skip-bad"])
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("left out") == 2
    assert CliRunner().invoke(app, [*words[:2], str(bad), "--skip-bad"]).exit_code == 2
