"""A release written for other programs: what they compute from it, and what it does not hold."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import workspaces
from tests.shell import efface, values_of

from efface.errors import EffaceError, GuaranteeError
from efface.export import manifest
from efface.export.numpy_head import LOADER
from efface.export.release import export
from efface.export.torch_file import TorchFile
from efface.parts.exported import Exported
from efface.workspace import Workspace
from efface.workspace.disk import file_digest
from efface.workspace.published import load

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

ALL = ("onnx", "torch", "numpy-head", "files")
PEOPLE = workspaces.people()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compact workspace, after a request."""
    folder = tmp_path_factory.mktemp("export") / "model"
    Workspace.create(folder, workspaces.fitted("compact", PEOPLE)).forget(owner=workspaces.OWNER)
    return folder


@pytest.fixture(scope="module")
def exported(model: Path) -> Path:
    export(model, ALL, model.parent / "out")
    return model.parent / "out"


@pytest.fixture(scope="module")
def pixels(model: Path) -> np.ndarray:
    return load(model).core.pixels(workspaces.TEST).numpy()


def test_onnx_runtime_gives_the_same_bits(model: Path, exported: Path, pixels: np.ndarray) -> None:
    """Optimised by the runtime, and as it is; all images at once, and one."""
    expected = load(model).logits(workspaces.TEST).numpy()
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            str(exported / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(["logits"], {"pixels": pixels})[0]
        assert found.tobytes() == expected.tobytes()
        one = session.run(["logits"], {"pixels": pixels[3:4]})[0]
        assert one.tobytes() == expected[3:4].tobytes()


def test_torch_opens_it_without_efface(
    model: Path, exported: Path, pixels: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "pixels.npy", pixels)
    program = (
        "import sys, numpy as np, torch\n"
        "run = torch.export.load(sys.argv[1]).module()\n"
        "found = run(torch.from_numpy(np.load(sys.argv[2])))[0]\n"
        "np.save(sys.argv[3], found.numpy())\n"
        "assert not any(name.split('.')[0] == 'efface' for name in sys.modules)\n"
    )
    words = [exported / "model.pt2", tmp_path / "pixels.npy", tmp_path / "found.npy"]
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, *map(str, words)], check=True)
    expected = load(model).logits(workspaces.TEST).numpy()
    assert np.load(tmp_path / "found.npy").tobytes() == expected.tobytes()


def test_the_head_predicts_from_rows_with_numpy_alone(
    model: Path, exported: Path, pixels: np.ndarray, tmp_path: Path
) -> None:
    loaded = load(model)
    rows = torch.export.load(exported / "model.pt2").module()(torch.from_numpy(pixels))[1].numpy()
    assert rows.dtype == np.int8
    activations = loaded.activations(workspaces.TEST)
    kept = loaded.user.rows(activations, torch.zeros(len(rows), dtype=torch.int64))
    assert np.array_equal(rows, kept.features)

    np.save(tmp_path / "rows.npy", rows)
    words = [exported / LOADER, exported / "head.npz", tmp_path / "rows.npy"]
    done = subprocess.run(
        [sys.executable, "-I", *map(str, words)], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == loaded.predict(workspaces.TEST).tolist()

    with np.load(exported / "head.npz", allow_pickle=False) as head:
        real = rows.astype(np.float64) * head["scale"]
        found, size = real @ head["theta"], np.abs(real) @ np.abs(head["theta"])
        described = json.loads(str(head["description"]))
    # What the loader says of its rounding, and float32's own.
    allowed = rows.shape[1] * 2.0**-53 * size + 2.0**-24 * np.abs(found)
    assert (np.abs(found - loaded.logits(workspaces.TEST).numpy()) <= allowed).all()
    assert described["core_digest"] == loaded.core.digest


def test_its_own_files_are_a_model_again(model: Path, exported: Path) -> None:
    expected = load(model).logits(workspaces.TEST)
    assert torch.equal(load(exported).logits(workspaces.TEST), expected)


def test_the_manifest_has_the_digests_of_all_files(model: Path, exported: Path) -> None:
    values = json.loads((exported / "manifest.json").read_text())
    assert {path.name for path in exported.iterdir()} == {*values["files"], "manifest.json"}
    for name, found in values["files"].items():
        assert found["sha256"] == file_digest(exported / name)
    assert values["release"] == 2
    assert values["bit_equal"] is True
    public = (model / "certificates/2.public.json").read_bytes()
    assert (exported / "certificate.json").read_bytes() == public
    assert values["weights_digest"] == json.loads(public)["weights_digest"]
    for name, checked in values["checked"].items():
        # The head alone is added up in another order.
        assert checked["largest_difference"] <= (1e-6 if name == "head.npz" else 0.0)


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All files, and what is in those that are archives."""
    for path in folder.iterdir():
        data = path.read_bytes()
        yield path.name, data
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from ((f"{path.name}/{n}", archive.read(n)) for n in archive.namelist())


def test_nobody_is_in_it_and_nothing_of_this_machine(model: Path, exported: Path) -> None:
    wanted = {*PEOPLE.owners, *PEOPLE.ids, *PEOPLE.column("cohort"), *PEOPLE.digests}
    wanted |= {"dir/", str(model), str(Path.home()), str(Path(__file__).parents[2]), "efface/src"}
    assert len(wanted) > 50
    for name, data in contents(exported):
        for text in wanted:
            assert text.encode() not in data, (name, text)


def test_an_export_is_replaced_by_that_of_the_next_release(
    model: Path, exported: Path, tmp_path: Path
) -> None:
    here, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(model, here)
    shutil.copytree(exported, out)
    old = {name: data for name, data in contents(out) if name == "user.safetensors"}
    Workspace.open(here).forget(owner="person-one")
    values = export(here, ["torch"], out)
    assert values["release"] == 3
    assert {path.name for path in out.iterdir()} == {*values["files"], "manifest.json"}
    assert not {"model.onnx", "user.safetensors", "head.npz"} & set(values["files"])
    assert old["user.safetensors"] not in [data for _, data in contents(out)]


def test_other_folders_are_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    with pytest.raises(EffaceError, match="is there, and no export"):
        export(model, ["torch"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_an_edited_manifest_deletes_nothing_elsewhere(
    model: Path, exported: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(exported, out)
    (tmp_path / "mine").write_text("mine")
    values = json.loads((out / "manifest.json").read_text())
    values["files"]["../mine"] = {}
    (out / "manifest.json").write_text(json.dumps(values))
    export(model, ["torch"], out)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_file_that_computes_something_else_is_not_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(self: TorchFile, subject: object, folder: Path) -> np.ndarray:
        found = TorchFile.right(self, subject, folder).copy()  # type: ignore[attr-defined]
        found[0, 0] = np.nextafter(found[0, 0], np.inf)
        return found

    monkeypatch.setattr(TorchFile, "right", TorchFile.logits, raising=False)
    monkeypatch.setattr(TorchFile, "logits", off)
    with pytest.raises(GuaranteeError, match="differ"):
        export(model, ["torch"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_release_published_meanwhile_is_noticed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "model"
    shutil.copytree(model, here)

    def slow(*given: object) -> manifest.Checked:
        Workspace.open(here).forget(owner="person-two")
        return check(*given)  # type: ignore[arg-type]

    check = manifest.check
    monkeypatch.setattr(manifest, "check", slow)
    with pytest.raises(EffaceError, match="published in the meantime"):
        export(here, ["files"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_has_forgotten_everything_is_its_core(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "model", workspaces.fitted("compact", PEOPLE))
    workspace.forget(everything=True)
    export(tmp_path / "model", ["torch", "numpy-head"], tmp_path / "out")
    loaded = load(tmp_path / "model")
    shown = torch.from_numpy(loaded.core.pixels(workspaces.TEST).numpy())
    found = torch.export.load(tmp_path / "out/model.pt2").module()(shown)[0]
    assert torch.equal(found, loaded.logits(workspaces.TEST))
    with np.load(tmp_path / "out/head.npz", allow_pickle=False) as head:
        assert head["theta"].shape[0] == 0


def test_the_tangent_part_is_exported_within_rounding(tmp_path: Path) -> None:
    Workspace.create(tmp_path / "model", workspaces.fitted("tangent", PEOPLE))
    values = export(tmp_path / "model", ["onnx", "torch"], tmp_path / "out")
    assert values["bit_equal"] is False
    assert values["input"]["shape"][0] == 1
    for found in values["checked"].values():
        assert found["largest_difference"] < 1e-4
        assert found["same_classes"] == found["num_images"]
    with pytest.raises(EffaceError, match="no head that works on rows"):
        export(tmp_path / "model", ["numpy-head"], tmp_path / "head")


def test_the_command_says_what_a_copy_is(model: Path, tmp_path: Path) -> None:
    values = values_of(efface("export", model, "--torch", "--out", tmp_path / "out", "--json"))
    assert values["files"]["model.pt2"]["bytes"] > 0
    shown = efface("export", model, "--numpy-head", "--out", tmp_path / "out").stdout
    assert "a copy does not forget" in " ".join(shown.split())
    nothing = efface("export", model, "--out", tmp_path / "other")
    assert nothing.exit_code == 2
    assert "no format" in nothing.stderr


def test_exported_is_a_value(model: Path) -> None:
    found = load(model).user.exported()
    assert isinstance(found, Exported)
    assert found.batched
    assert found.outputs[0] == "logits"
