"""The core: trained on core data, frozen, known by its digest, and the same after saving."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import cases
from torch import nn

import efface
from efface.data.preprocess import Preprocess
from efface.data.record import Split
from efface.data.records import Records
from efface.digests import tensors_digest
from efface.errors import BackboneError, EffaceError, FormatError, RecordError
from efface.files import read_tensors, write_tensors
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.training import Stage
from efface.parts.tangent.cg import ConjugateGradient

CLASSES = ["a", "b", "c"]
GRAY = Preprocess(0, 0, 1, (0.5,), (0.5,))
QUICK = [Stage("all", epochs=2, batch_size=8)]


def core_records(n: int = 24, seed: int = 0) -> Records:
    return cases.tiny_records(n, seed, split=Split.CORE)


def build(**options: object) -> Core:
    return Core("cnn", **{"classes": CLASSES, **options})  # type: ignore[arg-type]


def parts(core: Core) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in core.tensors.items()}


def moved(before: dict[str, torch.Tensor], core: Core) -> set[str]:
    return {name for name, value in core.tensors.items() if not torch.equal(value, before[name])}


# --- training -------------------------------------------------------------------------------------


def test_an_untrained_core_says_nothing_about_classes() -> None:
    logits = build().logits(core_records())
    assert logits.shape == (24, 3)
    assert not logits.any()


def test_fitting_learns_the_classes() -> None:
    core = build().fit(core_records(60), [Stage("all", epochs=30, batch_size=16)])
    assert core.accuracy(cases.tiny_records(30, 9)) > 0.9  # chance is 1/3, the classes are easy


@pytest.mark.parametrize("train", ["head", "tail", "all"])
def test_a_stage_moves_what_it_names(train: str) -> None:
    core = build().fit(core_records(), QUICK)
    before = parts(core)
    core.fit(core_records(), [Stage(train, epochs=1, lr=0.01)])
    kinds = {
        "head" if name.startswith("tail.classifier") else name.partition(".")[0]
        for name in moved(before, core)
    }
    assert (
        kinds
        == {"head": {"head"}, "tail": {"head", "tail"}, "all": {"head", "tail", "prefix"}}[train]
    )


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="'head', 'tail' or 'all', not 'body'"):
        Stage("body")


@pytest.mark.parametrize("train", ["head", "tail"])
def test_training_with_a_cache_is_training_without(tmp_path: Path, train: str) -> None:
    stages = [Stage(train, epochs=2)]
    first, second = build(), build()
    first.fit(core_records(), stages)
    second.fit(core_records(), stages, cache=second.cache(tmp_path))
    assert first.digest == second.digest


def test_everything_is_frozen_afterwards() -> None:
    core = build().fit(core_records(), QUICK)
    for module in (core.prefix, core.tail):
        assert not module.training
        assert not any(p.requires_grad for p in module.parameters())


def test_the_same_seed_gives_the_same_core_whatever_ran_before() -> None:
    torch.manual_seed(1)
    first = build(seed=3).fit(core_records(), QUICK)
    torch.manual_seed(2)
    np.random.seed(2)
    torch.rand(5)
    again = build(seed=3).fit(core_records(), QUICK)
    assert again.digest == first.digest
    assert build(seed=4).fit(core_records(), QUICK).digest != first.digest


def test_classes_without_core_data_keep_zeros() -> None:
    records = core_records(30)
    known = records.where(lambda record: record.label != "b")
    core = build().fit(known, [Stage("all", epochs=20, batch_size=8)])
    head = core.tail.head
    assert not head.weight[1].any()
    assert not head.bias[1].any()
    assert head.weight[[0, 2]].any(dim=1).all()
    assert "no core data for: b" in core.report[0]
    # The model still works: the user part learns the class that the core has never seen. (The core's
    # confident logits make ‖g(0)‖ large, so the default tolerance relative to it is too loose here.)
    solver = ConjugateGradient(tolerance=1e-5)
    model = MixedLinear(core, "tangent", solver=solver).fit(cases.tiny_records(60, 5))
    unseen = cases.tiny_records(30, 6).where(lambda record: record.label == "b")
    assert model.accuracy(unseen) > 0.8


def test_batchnorm_statistics_do_not_move() -> None:
    core = Core(cases.named_sequential(), classes=CLASSES, preprocess=GRAY, fold_batchnorm=False)
    buffers = {n: b.clone() for n, b in core.tensors.items() if "running" in n}
    core.fit(core_records(), [Stage("all", epochs=1)])
    assert len(buffers) == 4
    assert all(torch.equal(core.tensors[name], value) for name, value in buffers.items())


def test_core_records_must_be_there_and_match() -> None:
    with pytest.raises(EffaceError, match="no core records to train on"):
        build().fit(core_records()[[]])
    other = Core("cnn", classes=["c", "b", "a"])
    with pytest.raises(EffaceError, match=r"classes differ.*records\.classes"):
        other.fit(core_records())
    with pytest.raises(EffaceError, match="classes differ"):
        other.accuracy(core_records())
    with pytest.raises(EffaceError, match="no records to evaluate"):
        build().accuracy(core_records()[[]])


@pytest.mark.parametrize("classes", [["a"], [], ["a", "a", "b"]])
def test_classes_must_be_two_and_distinct(classes: list[str]) -> None:
    with pytest.raises(EffaceError, match="at least two distinct classes"):
        build(classes=classes)


# --- identity -------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["compact", "tangent"])
def test_fitting_the_user_part_does_not_move_the_core(user: str) -> None:
    core = build().fit(core_records(), QUICK)
    before, digest = parts(core), core.digest
    model = MixedLinear(core, user).fit(cases.tiny_records(12, 1))
    model.predict(cases.tiny_records(6, 2))
    model.user.reset()
    assert core.digest == digest
    assert not moved(before, core)


@pytest.mark.parametrize(
    "options",
    [{"classes": ["c", "b", "a"]}, {"leaky_slope": None}, {"linearize": "head"}, {"seed": 1}],
)
def test_the_digest_covers_settings_and_weights(options: dict[str, object]) -> None:
    assert build(**options).digest != build().digest


def test_one_bit_of_one_weight_changes_the_digest() -> None:
    core, other = build(), build()
    assert core.digest == other.digest
    with torch.no_grad():
        other.tail.head.bias[0] = 1e-30
    assert core.digest != other.digest


def test_digests_tell_names_types_and_shapes_apart() -> None:
    ones = torch.ones(4)
    variants = [{"a": ones}, {"b": ones}, {"a": ones.view(2, 2)}, {"a": ones.view(torch.int32)}, {}]
    found = {tensors_digest(tensors) for tensors in variants} | {tensors_digest({}, {"x": 1})}
    assert len(found) == 6
    assert tensors_digest({"a": ones, "b": ones}) == tensors_digest({"b": ones, "a": ones})
    assert tensors_digest({"a": torch.ones(2, 2).T}) == tensors_digest({"a": torch.ones(2, 2)})


def test_the_network_passed_in_is_not_touched() -> None:
    net = cases.named_sequential()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    core = Core(net, classes=CLASSES, preprocess=GRAY).fit(core_records(), [Stage("all", 1)])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert isinstance(net.stem[1], nn.BatchNorm2d)  # folded in the core's copy only
    assert not any(isinstance(m, nn.BatchNorm2d) for m in core.tail.modules())


def test_folding_changes_rounding_only() -> None:
    net = cases.randomised(cases.named_sequential().eval())
    first, second = (
        Core(net, classes=CLASSES, preprocess=GRAY, fold_batchnorm=fold) for fold in (True, False)
    )
    a, b = (core.features_of(core.activations(core_records())) for core in (first, second))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)  # float32 through two layers


@pytest.mark.parametrize("linearize", ["head", "last-block", "last-stage", "all", "1"])
def test_where_it_is_cut_does_not_change_the_features(linearize: str) -> None:
    core, whole = build(linearize=linearize, leaky_slope=None), build(leaky_slope=None)
    got = core.features_of(core.activations(core_records()))
    want = whole.features_of(whole.activations(core_records()))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # float32, other memory formats


def test_an_in_place_tail_does_not_write_to_the_activations() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Sequential(nn.SiLU(inplace=True), nn.Conv2d(3, 3, 1)), nn.Flatten(2)
    )
    net.append(cases.Permute(0, 2, 1)).append(cases.MeanToken())
    core = Core(net, classes=CLASSES, preprocess=GRAY)
    activations = core.activations(core_records())
    before = activations[0:24].clone()
    core.logits_of(activations)
    core.features_of(activations)
    assert torch.equal(activations[0:24], before)


# --- images ---------------------------------------------------------------------------------------


def test_images_of_two_sizes_name_the_record() -> None:
    small, big = (cases.tiny_records(3, 1, side=side, name=f"{side}-") for side in (8, 9))
    with pytest.raises(RecordError, match=r"record '9-0'.*9 × 9.*8 × 8.*resize and crop"):
        build().images(small + big)


def test_no_records_give_no_activations(tmp_path: Path) -> None:
    core = build()
    nothing = core_records()[[]]
    for cache in (None, core.cache(tmp_path)):
        assert core.logits(nothing, cache).shape == (0, 3)


@pytest.mark.parametrize(("resize", "crop"), [(12, 0), (14, 12)])
def test_a_cache_fits_the_size_that_preprocessing_gives(
    tmp_path: Path, resize: int, crop: int
) -> None:
    core = build(preprocess=Preprocess(resize, crop, 1, (0.5,), (0.5,)))
    got = core.activations(core_records(), core.cache(tmp_path))
    assert tuple(got[0:1].shape[1:]) == core.boundary_shape
    torch.testing.assert_close(got[0:24], core.activations(core_records())[0:24])


def test_a_network_that_does_not_run_says_so() -> None:
    with pytest.raises(BackboneError, match="does not run on images of 8 × 8"):
        Core(nn.Sequential(nn.Conv2d(3, 2, 3)), classes=CLASSES, preprocess=GRAY)
    with pytest.raises(BackboneError, match=r"shape \(1, 2, 6, 6\), not \(n, p\)"):
        Core(nn.Sequential(nn.Conv2d(1, 2, 3)), classes=CLASSES, preprocess=GRAY)


# --- files ----------------------------------------------------------------------------------------


def test_a_saved_core_is_the_same_to_the_bit(tmp_path: Path) -> None:
    core = build(seed=2).fit(core_records(), QUICK)
    core.save(tmp_path)
    again = Core.load(tmp_path)
    assert again.digest == core.digest
    assert again.prefix_digest == core.prefix_digest
    assert torch.equal(again.logits(core_records()), core.logits(core_records()))
    assert again.settings == core.settings


@pytest.mark.parametrize("name", ["resnet-bottleneck", "vit", "swin"])
def test_a_transformers_core_loads_when_its_folder_is_gone(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    side = cases.TINY[name][1]
    cases.tiny(name).save_pretrained(tmp_path / "net")
    prep = Preprocess(resize=side, crop=side)
    core = Core(f"hf:{tmp_path / 'net'}", classes=CLASSES, preprocess=prep)
    records = cases.tiny_records(6, side=side, channels=3, split=Split.CORE)
    core.fit(records, [Stage("tail", epochs=1)])
    core.save(tmp_path / "saved")
    shutil.rmtree(tmp_path / "net")
    again = Core.load(tmp_path / "saved")
    assert again.digest == core.digest
    assert torch.equal(again.logits(records), core.logits(records))
    assert str(tmp_path) not in (tmp_path / "saved" / "core.json").read_text()


def test_the_folders_place_is_no_part_of_the_core(tmp_path: Path) -> None:
    for place in ("here", "there"):
        torch.manual_seed(0)
        cases.tiny("vit").save_pretrained(tmp_path / place)
    here, there = (Core(f"hf:{tmp_path / p}", classes=CLASSES).digest for p in ("here", "there"))
    assert here == there


def test_a_core_of_a_module_needs_the_module_again(tmp_path: Path) -> None:
    net = cases.randomised(cases.named_sequential())
    core = Core(net, classes=CLASSES, preprocess=GRAY).fit(core_records(), [Stage("tail", 1)])
    core.save(tmp_path)
    with pytest.raises(FormatError, match=r"nn\.Module object.*module="):
        Core.load(tmp_path)
    again = Core.load(tmp_path, cases.named_sequential())  # other weights: the saved ones count
    assert again.digest == core.digest
    assert torch.equal(again.logits(core_records()), core.logits(core_records()))


def test_a_traced_core_survives_saving(tmp_path: Path) -> None:
    prep = Preprocess(0, 0, 2, (0.5,) * 2, (0.5,) * 2)
    core = Core(cases.Plain(), classes=CLASSES, linearize="block.a", preprocess=prep)
    core.save(tmp_path)
    assert Core.load(tmp_path, cases.Plain()).digest == core.digest


@pytest.mark.parametrize("user", ["compact", "tangent"])
def test_only_json_and_safetensors_are_written(tmp_path: Path, user: str) -> None:
    core = build().fit(core_records(), QUICK)
    MixedLinear(core, user).fit(cases.tiny_records(12, 1)).save(tmp_path)
    names = {path.name for path in tmp_path.rglob("*")}
    assert names == {"core.json", "core.safetensors", "model.json", "user.safetensors"}


def test_no_module_of_the_package_runs_pickles() -> None:
    """``data/named/pickled_batches.py`` reads CIFAR-10's with stand-ins for every name: see its tests."""
    source = Path(efface.__file__).parent
    forbidden = re.compile(
        r"^\s*(import|from)\s+(pickle|dill|joblib|cloudpickle|shelve)\b|torch\.(load|save)\("
        r"|allow_pickle\s*=\s*True",
        re.MULTILINE,
    )
    found = [p for p in source.rglob("*.py") if forbidden.search(p.read_text(encoding="utf-8"))]
    assert [p.relative_to(source).as_posix() for p in found] == ["data/named/pickled_batches.py"]


@pytest.mark.parametrize("schema", ["efface.core/2", "efface.core/0", None, 1])
def test_other_schema_versions_are_refused(tmp_path: Path, schema: object) -> None:
    build().save(tmp_path)
    edit(tmp_path / "core.json", schema=schema)
    with pytest.raises(FormatError, match=r"reads 'efface\.core/1'"):
        Core.load(tmp_path)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_changed_weight_is_noticed(tmp_path: Path) -> None:
    build().save(tmp_path)
    path = tmp_path / "core.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the last bit of the last weight
    path.write_bytes(data)
    with pytest.raises(FormatError, match="does not have the digest it was saved with"):
        Core.load(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"classes": ["a", "b", "x"]}, {"leaky_slope": 0.2}, {"digest": "0" * 64}]
)
def test_a_changed_setting_is_noticed(tmp_path: Path, changes: dict[str, object]) -> None:
    build().save(tmp_path)
    edit(tmp_path / "core.json", **changes)
    with pytest.raises(FormatError, match="does not have the digest"):
        Core.load(tmp_path)


def test_broken_files_are_format_errors(tmp_path: Path) -> None:
    build().save(tmp_path)
    weights, settings = tmp_path / "core.safetensors", tmp_path / "core.json"
    good = weights.read_bytes()
    weights.write_bytes(good[: len(good) // 2])
    with pytest.raises(FormatError, match="not a safetensors file"):
        Core.load(tmp_path)
    weights.unlink()
    with pytest.raises(FormatError, match=r"no core\.safetensors"):
        Core.load(tmp_path)
    weights.write_bytes(good)
    tensors = read_tensors(weights)
    write_tensors(weights, {k: v for k, v in tensors.items() if "classifier" not in k})
    with pytest.raises(FormatError, match="does not have the digest"):
        Core.load(tmp_path)
    with pytest.raises(FormatError, match="do not fit the network"):
        build().load_tensors(read_tensors(weights))
    values = json.loads(settings.read_text())
    del values["preprocess"]
    settings.write_text(json.dumps(values))
    with pytest.raises(FormatError, match=r"core\.json.*not as it was saved.*preprocess"):
        Core.load(tmp_path)
    settings.write_text("{")
    with pytest.raises(FormatError, match="is not JSON"):
        Core.load(tmp_path)
    settings.unlink()
    with pytest.raises(FormatError, match=r"no core\.json"):
        Core.load(tmp_path)


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    linear = nn.Linear(64, 64)
    net = nn.Sequential(nn.Flatten(), linear, nn.Tanh(), linear)
    net.append(nn.Linear(64, 3))
    core = Core(net, classes=CLASSES, linearize="all", preprocess=GRAY)
    core.save(tmp_path)
    assert Core.load(tmp_path, net).digest == core.digest
