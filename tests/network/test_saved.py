"""A saved model is data: whatever its files say, none of it is run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import cases
from tests.shell import efface, write
from tests.workspaces import CORE, people
from torch import nn
from typer.testing import Result

from efface import files
from efface.data.preprocess import Preprocess
from efface.digests import tensors_digest
from efface.errors import BackboneError, EffaceError, FormatError
from efface.model.mixed_linear import MixedLinear
from efface.network.backbone import check_size, load_backbone, trusted_module
from efface.network.core import Core
from efface.network.saved import FAMILIES, plain_config
from efface.network.training import Stage
from efface.workspace import Workspace

CLASSES = ("a", "b", "c")
GRAY = Preprocess(0, 0, 1, (0.5,), (0.5,))
CODE = """
from pathlib import Path
Path({marker!r}).write_text("run")
from tests.cases import named_sequential
def build(): return named_sequential()
"""


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a mark when it is imported; returns the mark's path."""
    marker = tmp_path / "was run"
    (tmp_path / "evil_network.py").write_text(CODE.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "evil_network", raising=False)
    return marker


def resave(folder: Path, **changes: Any) -> None:
    """Change settings of a saved core and give it the digest that fits: a forger would."""
    values = json.loads((folder / "core.json").read_text()) | changes
    tensors = files.read_tensors(folder / "core.safetensors")
    settings = {k: v for k, v in values.items() if k not in ("digest", "statistics_digest")}
    weights = {k: v for k, v in tensors.items() if not k.startswith("statistics.")}
    values["digest"] = tensors_digest(weights, settings)
    (folder / "core.json").write_text(json.dumps(values))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Core("cnn", classes=CLASSES).save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize(
    "spec",
    [
        "torch:evil_network:build",
        "torch:evil_network:nothing",
        "torch:os:abort",
        "torch:",
        "evil_network",
        "timm:hf-hub:someone/network",
        "timm:../x",
        "open_clip:local-dir:x",
        "open_clip:hf-hub:someone/network",
        "open_clip:../x",
        "hf:someone/network",
        "cnn:x",
        "",
        ["cnn"],
        None,
    ],
)
def test_no_backbone_outside_the_list_is_built(saved: Path, evil: Path, spec: Any) -> None:
    resave(saved, backbone=spec)
    with pytest.raises(FormatError):
        Core.load(saved)
    assert not evil.exists()
    assert "evil_network" not in sys.modules


def test_code_runs_only_for_those_who_name_it(tmp_path: Path, evil: Path) -> None:
    net = cases.randomised(cases.named_sequential())
    core = Core(net, classes=CLASSES, preprocess=GRAY, spec="torch:evil_network:build")
    core.save(tmp_path / "saved")
    with pytest.raises(FormatError, match=r"code, 'evil_network:build'.*--trust-module"):
        Core.load(tmp_path / "saved")
    assert not evil.exists()
    again = Core.load(tmp_path / "saved", trusted_module("evil_network:build"))
    assert evil.exists()
    assert again.digest == core.digest


def test_a_module_that_is_not_asked_for_is_refused(saved: Path) -> None:
    with pytest.raises(FormatError, match="built without a module"):
        Core.load(saved, nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))


@pytest.mark.parametrize(
    "changes",
    [
        {"preprocess": {**GRAY.to_dict(), "crop": 10**6}},
        {"preprocess": {**GRAY.to_dict(), "mean": ["x"]}},
        {"preprocess": []},
        {"classes": 7},
        {"classes": [["a"], "b"]},
        {"seed": "x"},
        {"seed": 10**30},
        {"leaky_slope": [1]},
        {"mirror": "yes"},
        {"source": {"config": {}}},
    ],
)
def test_settings_are_checked(saved: Path, changes: dict[str, Any]) -> None:
    resave(saved, **changes)
    with pytest.raises(EffaceError):
        Core.load(saved)


# --- transformers ---------------------------------------------------------------------------------


@pytest.fixture
def network(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    cases.tiny("vit").save_pretrained(tmp_path / "net")
    return tmp_path / "net"


def test_code_beside_a_network_is_not_run(network: Path, evil: Path) -> None:
    """`auto_map` names code in the folder; transformers would ask on the terminal whether to run it."""
    (network / "evil_network.py").write_text((evil.parent / "evil_network.py").read_text())
    config = json.loads((network / "config.json").read_text())
    names = dict.fromkeys(("AutoConfig", "AutoModelForImageClassification"), "evil_network.build")
    plain = load_backbone(f"hf:{network}")
    (network / "config.json").write_text(json.dumps({**config, "auto_map": names}))
    assert load_backbone(f"hf:{network}").source == plain.source
    (network / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
    with pytest.raises(BackboneError):
        load_backbone(f"hf:{network}")
    assert not evil.exists()


def test_kernels_are_not_fetched(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`_attn_implementation` may name a kernel on the hub; here it never reaches transformers."""
    config = json.loads((network / "config.json").read_text())
    for name in ("_attn_implementation", "attn_implementation", "_attn_implementation_internal"):
        changed = {**config, name: "someone/kernels"}
        (network / "config.json").write_text(json.dumps(changed))
        backbone = load_backbone(f"hf:{network}")
        assert "someone/kernels" not in json.dumps(backbone.source)
        modules = [m for step in backbone.steps for m in step.module.modules()]
        used = {m.config._attn_implementation for m in modules if hasattr(m, "config")}
        assert used <= {"sdpa", "eager"}


@pytest.mark.parametrize(
    "extra",
    [
        {"auto_map": {"AutoConfig": "x.y"}},
        {"_attn_implementation": "someone/kernels"},
        {"quantization_config": {}},
        {"hidden_act": "os.system"},
        {"hidden_size": 10**9},
        {"num_hidden_layers": -1},
        {"image_size": [224, 224, 224]},
        {"model_type": "llama"},
        {"model_type": None},
    ],
)
def test_a_saved_network_has_the_settings_of_its_family(
    network: Path, tmp_path: Path, extra: dict[str, Any]
) -> None:
    core = Core(f"hf:{network}", classes=CLASSES, preprocess=Preprocess(8, 8))
    core.save(tmp_path / "saved")
    assert Core.load(tmp_path / "saved").digest == core.digest
    source = {"config": {**core.backbone.source["config"], **extra}}
    resave(tmp_path / "saved", source=source)
    with pytest.raises(FormatError):
        Core.load(tmp_path / "saved")


def test_a_network_much_larger_than_its_file_is_not_built(network: Path, tmp_path: Path) -> None:
    core = Core(f"hf:{network}", classes=CLASSES, preprocess=Preprocess(8, 8))
    core.save(tmp_path / "saved")
    config = core.backbone.source["config"]
    huge = {**config, "hidden_size": 1 << 16, "intermediate_size": 1 << 16}
    resave(tmp_path / "saved", source={"config": {**huge, "num_hidden_layers": 200}})
    with pytest.raises(FormatError, match="weights, its file"):
        Core.load(tmp_path / "saved")


def test_all_families_can_be_saved(tmp_path: Path) -> None:
    """Nothing that decides the architecture is left out of the list."""
    for name, kind in cases.KINDS.items():
        net = cases.tiny(name)
        plain = plain_config(json.loads(net.config.to_json_string(use_diff=False)))
        assert plain["model_type"] == kind.lower()
        assert set(plain) - {"model_type"} <= FAMILIES[kind.lower()]
        values = {"backbone": "hf:saved", "source": {"config": plain}}
        check_size(values, sum(p.numel() for p in net.parameters()))


def test_the_digest_is_checked_before_anything_is_built(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = json.loads((saved / "core.json").read_text())
    (saved / "core.json").write_text(json.dumps({**values, "seed": 5}))
    monkeypatch.setattr(Core, "_build", lambda *_: pytest.fail("built from changed files"))
    with pytest.raises(FormatError, match="does not have the digest"):
        Core.load(saved)


# --- commands -------------------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    net = cases.randomised(cases.named_sequential())
    core = Core(net, classes=CLASSES, preprocess=GRAY, spec="torch:evil_network:build")
    core.fit(CORE, [Stage("tail", epochs=1, batch_size=4)])
    model = MixedLinear(core, features=60).fit(people(), replay=CORE)
    Workspace.create(tmp_path / "w", model, module=net)
    write(tmp_path / "data.npz", CORE, people())
    return tmp_path / "w"


@pytest.mark.parametrize(
    "words",
    [
        ("verify",),
        ("predict", "{data}"),
        ("evaluate", "{data}", "--split", "user"),
        ("scan", "{data}", "--owner", "person-two"),
    ],
)
def test_commands_run_no_code_of_a_model(
    workspace: Path, evil: Path, words: tuple[str, ...]
) -> None:
    named = [word.format(data=workspace.parent / "data.npz") for word in words]

    def run(*more: str) -> Result:
        return efface(named[0], workspace, *named[1:], *more)

    refused = run()
    assert refused.exit_code == 2
    assert "--trust-module" in refused.stderr
    assert not evil.exists()
    assert run("--trust-module", "evil_network:build").exit_code in (0, 3)  # 3: scan finds him
    assert evil.exists()


def test_forgetting_needs_no_network_and_no_code(workspace: Path, evil: Path) -> None:
    assert efface("forget", workspace, "--owner", "person-two").exit_code == 0
    assert not evil.exists()


def test_code_that_a_config_names_is_not_run_either(tmp_path: Path, evil: Path) -> None:
    write(tmp_path / "data.npz", CORE, people())
    (tmp_path / "run.toml").write_text('[core]\nbackbone = "torch:evil_network:build"\n')
    words = ("train", tmp_path / "data.npz", "--config", tmp_path / "run.toml", "--dry-run")
    refused = efface(*words)
    assert refused.exit_code == 2
    assert "--trust-module" in refused.stderr
    assert not evil.exists()
    efface(*words, "--trust-module", "evil_network:build")
    assert evil.exists()
