"""One digest on every machine: rows, sums and weights, from images, in child processes that compute as other
processors would, on one thread or two, in other batches, orders and places in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import cases
from tests.places import SHARED

from efface.data.preprocess import Preprocess
from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.training import Stage

SETTINGS: list[dict[str, str]] = [
    {"ATEN_CPU_CAPABILITY": "default"},
    {"ATEN_CPU_CAPABILITY": "avx2", "BATCH": "7"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41", "UNALIGNED": "1"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "2"},
    {"MKL_CBWR": "COMPATIBLE", "ORDER": "1"},
    {"MKL_CBWR": "AVX2,STRICT", "BATCH": "1"},
    {"MKL_CBWR": "AUTO,STRICT", "OMP_NUM_THREADS": "2", "ORDER": "2"},
    {"OMP_NUM_THREADS": "2", "BATCH": "5", "UNALIGNED": "1", "ORDER": "3"},
]
NETWORKS = (
    "cnn",
    "resnet",
    "vit",
    "resnet first",
    "resnet gradients",
    "vit ¾",
    "vit covariances",
)
# Beside the default: what else a row may be made of.
OPTIONS: dict[str, dict[str, Any]] = {
    "resnet first": {"layer_features": "gradients", "power": 1.0},  # as the first versions
    "resnet gradients": {"layer_features": "gradients", "power": 0.25},
    "vit ¾": {"power": 0.75},
    "vit covariances": {"layer_features": "covariances"},  # in exact sums of float64
}


def records_of(name: str) -> Records:
    """Some records; those of the real network are photos."""
    if name == "cnn":
        return Records.digits()[:60]
    if name == "resnet-50":
        photos = Records.open(str(SHARED / "data" / "cub40"))
        return photos[np.arange(0, 1200, 200)]
    return cases.tiny_records(20, 1)


def make(name: str, folder: Path) -> None:
    """A calibrated model in ``folder``: this is what is given, and never computed again."""
    records = records_of(name)
    if name == "cnn":
        core = Core("cnn", classes=records.classes).fit(records[:40], [Stage("all", epochs=2)])
    elif name == "resnet-50":
        spec = f"hf:{SHARED / 'weights' / 'resnet50-imagenet'}"
        core = Core(spec, classes=records.classes)
        core.records = records
    else:
        options = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2]}
        options = options if _kind(name) == "ResNet" else cases.TINY["vit"][0]
        net = cases.randomised(cases.hf_model(_kind(name), **options))
        side = 32 if _kind(name) == "ResNet" else 8
        core = Core(net, classes=records.classes, preprocess=Preprocess(resize=side, crop=side))
        core.records = cases.tiny_records(12, 5)
    features = 3000 if name == "resnet-50" else 200
    model = MixedLinear(core, "compact", features=features, **OPTIONS.get(name, {}))
    model.calibrate()
    assert model.user.form.arithmetic == "integer"
    model.save(folder)
    if core.backbone.spec == "module":
        (folder / "config.json").write_text(net.config.to_json_string(use_diff=False))


def _kind(name: str) -> str:
    return {"resnet": "ResNet", "vit": "ViT"}[name.split()[0]]


def load(name: str, folder: Path) -> MixedLinear:
    if not (folder / "config.json").is_file():
        return MixedLinear.load(folder)
    import transformers

    kind = _kind(name)
    config = getattr(transformers, f"{kind}Config").from_json_file(folder / "config.json")
    net = getattr(transformers, f"{kind}ForImageClassification")(config)
    return MixedLinear.load(folder, module=net)


def digests(name: str, folder: Path) -> dict[str, Any]:
    """Of rows, sums, weights and predictions; after forgetting, and trained without the same records."""
    model, records = load(name, folder), records_of(name)
    seed = os.environ.get("ORDER")
    order = np.arange(len(records))
    if seed is not None:
        order = np.random.default_rng(int(seed)).permutation(len(records))
    batch = int(os.environ.get("BATCH", "32"))
    shown = records[order]
    activations = model.user.form.activations(shown, batch_size=batch)
    if "UNALIGNED" in os.environ:
        activations = unaligned(activations)
    rows = model.user.rows(activations, model.core.labels(shown))
    logits_before = model.user.form.logits(activations)
    back = np.argsort(order)
    rows = rows.select(back)
    found: dict[str, Any] = {
        "rows": _sha(rows.features) + _sha(rows.targets),
        "core logits": _sha(logits_before.numpy()[back] + 0.0),
    }
    gone, user = np.arange(0, len(records), 4), model.user
    user.core_weight = 1.0
    user.reset()
    user.add_rows(rows)
    found["all"] = [user.statistics_digest, user.weights_digest, user.weights_proved]
    found["predictions"] = _sha(user.logits(activations).numpy()[back] + 0.0)
    user.remove_rows(rows.select(gone))
    found["forgotten"] = [user.statistics_digest, user.weights_digest, user.weights_proved]
    user.reset()
    kept = records[np.setdiff1d(np.arange(len(records)), gone)]
    again = user.form.activations(kept, batch_size=batch)
    user.add_rows(user.rows(again, model.core.labels(kept)))
    found["retrained"] = [user.statistics_digest, user.weights_digest, user.weights_proved]
    return found


def unaligned(x: torch.Tensor) -> torch.Tensor:
    memory = torch.empty(x.numel() + 1, dtype=x.dtype)
    memory[1:] = x.reshape(-1)
    return memory[1:].view(x.shape)


def _sha(array: np.ndarray) -> str:
    import hashlib

    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def child(setting: dict[str, str], folder: Path, names: tuple[str, ...]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **setting}
    command = [sys.executable, "-m", "tests.arithmetic.integer.test_machines", str(folder), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("models")
    for name in NETWORKS:
        (where / name).mkdir()
        make(name, where / name)
    return where


@pytest.fixture(scope="module")
def here(folder: Path) -> dict[str, Any]:
    return {name: digests(name, folder / name) for name in NETWORKS}


def test_forgetting_is_retraining(here: dict[str, Any]) -> None:
    for found in here.values():
        assert found["forgotten"] == found["retrained"]
        assert found["all"][:2] != found["forgotten"][:2]
        assert found["all"][2] is True
        assert found["forgotten"][2] is True


@pytest.mark.parametrize(
    "setting", SETTINGS, ids=lambda s: " ".join(f"{k}={v}" for k, v in s.items())
)
def test_one_digest_on_every_machine(
    setting: dict[str, str], folder: Path, here: dict[str, Any]
) -> None:
    assert child(setting, folder, NETWORKS) == here


@pytest.mark.skipif(not (SHARED / "weights").is_dir(), reason="no ../shared with the real network")
def test_one_digest_of_the_real_network(tmp_path: Path) -> None:
    (tmp_path / "resnet-50").mkdir()
    make("resnet-50", tmp_path / "resnet-50")
    here = digests("resnet-50", tmp_path / "resnet-50")
    assert here["forgotten"] == here["retrained"]
    for setting in (SETTINGS[2], SETTINGS[6]):
        assert child(setting, tmp_path, ("resnet-50",)) == {"resnet-50": here}


if __name__ == "__main__":
    where, names = Path(sys.argv[1]), sys.argv[2:]
    print(json.dumps({name: digests(name, where / name) for name in names}))
