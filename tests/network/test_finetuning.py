"""Fine-tuning whole networks: the loop equals a plain one, goes on where it was killed, trusts no file."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cases import blobs, named_sequential, records_of, tiny, tiny_records
from tests.devices import every_device
from tests.reference import plain_fine_tuning
from torch import Tensor

from efface import files
from efface.data.preprocess import Preprocess
from efface.data.records import Records
from efface.digests import tensors_digest
from efface.errors import BackboneError, EffaceError, FormatError, RecordError
from efface.network.backbone import Backbone, load_backbone
from efface.network.device import CPU
from efface.network.finetuning import Diverged, FineTuning, Tuned, at_size, fine_tune, network_of

GRAY = Preprocess(0, 0, 1, (0.5,), (0.5,))
QUICK = FineTuning(epochs=3, batch_size=8, rate=0.02, head_rate=0.1, scale=(0.6, 1.0), flip=False)


def backbone(seed: int = 0) -> Backbone:
    """Convolutions with BatchNorm, six features, random weights."""
    torch.manual_seed(seed)
    return load_backbone(named_sequential(), preprocess=GRAY)


def digest(tuned: Tuned) -> str:
    return tensors_digest(tuned.network.state_dict())


class Killed(Exception):
    pass


def killed_in(epoch: int) -> Callable[[float, str], None]:
    """A progress callback that stops the run in the middle of an epoch, counted from 1."""

    def progress(fraction: float, message: str) -> None:
        if message.startswith(f"epoch {epoch}/"):
            raise Killed

    return progress


def begun(folder: Path, records: Records, settings: FineTuning = QUICK) -> Path:
    """A folder with two finished epochs of a run."""
    with pytest.raises(Killed):
        fine_tune(backbone(), records, settings, folder=folder, progress=killed_in(3))
    return folder


# --- the loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{}, {"momentum": 0.0}, {"schedule": "steps", "warmup": 0.4}, {"frozen_statistics": False}],
    ids=["default", "no momentum", "steps", "statistics of batches"],
)
def test_it_is_the_plain_loop(change: dict[str, object]) -> None:
    records, settings = tiny_records(22), replace(QUICK, **change)  # type: ignore[arg-type]
    tuned = fine_tune(backbone(), records, settings)
    weights, losses = plain_fine_tuning(backbone(), records, settings)
    for name, value in tuned.network.state_dict().items():
        # float32 sums in another order, through 15 steps
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-6)
    assert tuned.losses == pytest.approx(losses, rel=1e-5)


@every_device
def test_on_another_device_it_is_the_same_but_for_rounding_and_comes_back(
    device: torch.device, tmp_path: Path
) -> None:
    records = tiny_records(22)
    with pytest.raises(Killed):
        fine_tune(backbone(), records, QUICK, folder=tmp_path, device=device, progress=killed_in(3))
    with pytest.raises(FormatError, match="device"):
        fine_tune(backbone(), records, QUICK, folder=tmp_path)
    there = fine_tune(backbone(), records, QUICK, folder=tmp_path, device=device)
    here = fine_tune(backbone(), records, QUICK)
    weights = here.network.state_dict()
    steps = [t for step in there.backbone.steps for t in step.module.state_dict().values()]
    assert {t.device for t in (*there.network.state_dict().values(), *steps)} == {CPU}
    for name, value in there.network.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        there.logits(records, QUICK), here.logits(records, QUICK), rtol=1e-3, atol=1e-3
    )


def test_a_tiny_network_learns_and_its_weights_are_its_own() -> None:
    start, train, test = backbone(), tiny_records(60), tiny_records(60, seed=7)
    before = tensors_digest(network_of(start, 3).state_dict())
    tuned = fine_tune(start, train, replace(QUICK, epochs=12))
    assert tuned.losses[0] > 1 > 0.5 > tuned.losses[-1]
    guess = tuned.logits(test, QUICK).argmax(1)
    assert (guess == torch.from_numpy(test.labels)).float().mean() > 0.95  # chance is 1/3
    assert tensors_digest(network_of(start, 3).state_dict()) == before
    assert tensors_digest(network_of(tuned.backbone, 3).state_dict()) != before


def test_bf16_learns_too_and_keeps_float32_weights() -> None:
    tuned = fine_tune(backbone(), tiny_records(60), replace(QUICK, epochs=12, precision="bf16"))
    assert tuned.losses[-1] < 0.5  # 1.1 at the start
    assert {v.dtype for k, v in tuned.network.state_dict().items() if "num" not in k} == {
        torch.float32
    }


def test_statistics_stay_unless_they_are_asked_for() -> None:
    def moved(frozen: bool) -> dict[str, bool]:
        settings = replace(QUICK, frozen_statistics=frozen)
        after = fine_tune(backbone(), tiny_records(), settings).network.state_dict()
        before = network_of(backbone(), 3).state_dict()
        return {name: not torch.equal(after[name], before[name]) for name in before}

    kept = moved(True)
    assert {n for n in kept if not kept[n]} == {n for n in kept if "running" in n or "num" in n}
    assert all(moved(False).values())


def test_a_class_without_records_keeps_a_zero_row() -> None:
    records = tiny_records().where(lambda record: record.label != "b")
    head = fine_tune(backbone(), records, QUICK).network.head
    assert not head.weight[1].any()
    assert head.weight[0].any()


def test_the_rate_is_annealed() -> None:
    cosine, steps = FineTuning(warmup=0), FineTuning(warmup=0, schedule="steps")  # type: ignore[arg-type]
    assert [cosine.annealing(t) for t in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert [steps.annealing(t) for t in (0, 0.49, 0.5, 0.8)] == pytest.approx([1, 1, 0.1, 0.01])
    assert [replace(steps, warmup=0.2).annealing(t) for t in (0, 0.1, 0.2)] == [0, 0.5, 1]


def test_only_a_batch_of_images_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from efface.data.record import Record

    read, seen = [], []
    plain = Record.image
    monkeypatch.setattr(Record, "image", lambda self: read.append(self.id) or plain(self))
    fine_tune(backbone(), tiny_records(24), QUICK, progress=lambda *_: seen.append(len(read)))
    assert seen == list(range(8, 73, 8))  # 3 epochs of 3 batches


def test_progress_says_how_long_it_takes() -> None:
    said: list[tuple[float, str]] = []
    fine_tune(backbone(), tiny_records(), QUICK, progress=lambda *words: said.append(words))
    assert said[-1][0] == 1
    assert [fraction for fraction, _ in said] == sorted(fraction for fraction, _ in said)
    assert said[-1][1].startswith("epoch 3/3, loss ")
    assert said[-1][1].endswith(", 0 s left")


def test_what_cannot_work_says_what_to_do() -> None:
    records = tiny_records()
    with pytest.raises(Diverged, match="lower the rate"):
        fine_tune(backbone(), records, replace(QUICK, epochs=9, rate=1e12, head_rate=1e12))
    with pytest.raises(EffaceError, match="no records"):
        fine_tune(backbone(), records[:0], QUICK)
    larger = records_of(*blobs(3, 1, side=9), name="x")
    with pytest.raises(RecordError, match="name a size"):
        fine_tune(backbone(), records + larger, QUICK)
    fine_tune(backbone(), records + larger, replace(QUICK, size=8, epochs=1))
    for wrong in ({"epochs": 0}, {"scale": (0.5, 0.2)}, {"rate": math.nan}, {"precision": "fp8"}):
        with pytest.raises(EffaceError, match="makes no sense"):
            FineTuning(**wrong)  # type: ignore[arg-type]


def test_a_network_of_one_size_says_so() -> None:
    vit = load_backbone(tiny("vit"), preprocess=Preprocess(8, 8))
    records = tiny_records(6, channels=3)
    with pytest.raises(BackboneError, match=r"12 × 12.*leave out the size"):
        fine_tune(vit, records, replace(QUICK, size=12))
    assert len(fine_tune(vit, records, QUICK).losses) == 3


def test_sizes_keep_the_margin_of_the_preprocessing() -> None:
    assert at_size(Preprocess(256, 224), 112) == Preprocess(128, 112)
    assert at_size(Preprocess(256, 224), 0) == Preprocess(256, 224)
    assert at_size(GRAY, 5) == replace(GRAY, resize=5, crop=5)


# --- killed and gone on with ----------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_killed_run_ends_with_the_same_weights(
    tmp_path: Path, momentum: float, frozen: bool
) -> None:
    settings = replace(QUICK, epochs=4, momentum=momentum, frozen_statistics=frozen)
    records, folder = tiny_records(), tmp_path / "run"
    whole = fine_tune(backbone(), records, settings)
    for epoch in (1, 3, 4):
        with pytest.raises(Killed):
            fine_tune(backbone(), records, settings, folder=folder, progress=killed_in(epoch))
    torch.rand(3)  # no generator of the process matters
    ended = fine_tune(backbone(), records, settings, folder=folder)
    assert digest(ended) == digest(whole)
    assert ended.losses == whole.losses
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["epoch-0004.safetensors", "finetuning.json", "lock"]
    read: list[str] = []  # a finished run is only read
    again = fine_tune(
        backbone(), records, settings, folder=folder, progress=lambda _, m: read.append(m)
    )
    assert digest(again) == digest(whole)
    assert read == []


def test_a_run_killed_while_it_saves_goes_on_from_the_epoch_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, folder = tiny_records(), begun(tmp_path / "run", tiny_records())
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise Killed

        patch.setattr(files, "write_json", fail)
        with pytest.raises(Killed):
            fine_tune(backbone(), records, QUICK, folder=folder)
    assert (folder / "epoch-0003.safetensors").exists()  # written, and not named yet
    ended = fine_tune(backbone(), records, QUICK, folder=folder)
    assert digest(ended) == digest(fine_tune(backbone(), records, QUICK))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"settings": replace(QUICK, rate=0.5)}, r"rate 0.02 \(now 0.5\)"),
        ({"settings": replace(QUICK, seed=1)}, "seed 0"),
        ({"settings": replace(QUICK, epochs=9)}, "epochs 3"),
        ({"settings": replace(QUICK, scale=(0.1, 1.0))}, "scale"),
        ({"records": tiny_records(24, seed=1)}, "other records"),
        ({"records": tiny_records(24)[::-1]}, "other records, labels or order"),
        ({"backbone": backbone(3)}, "another network"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    folder = begun(tmp_path / "run", tiny_records())
    arguments = {"backbone": backbone(), "records": tiny_records(), "settings": QUICK} | change
    with pytest.raises(FormatError, match=rf"{says}.*Fix: .*name another folder"):
        fine_tune(**arguments, folder=folder)  # type: ignore[arg-type]


def test_another_label_is_another_run(tmp_path: Path) -> None:
    images, labels = blobs(24)
    begun(tmp_path / "run", records_of(images, labels))
    with pytest.raises(FormatError, match="labels"):
        fine_tune(backbone(), records_of(images, [*labels[:-1], 0]), QUICK, folder=tmp_path / "run")


# --- files are not trusted ------------------------------------------------------------------------


def rewrite(folder: Path, **changes: object) -> None:
    path = folder / "finetuning.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def touched(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors, and keep the digest they were saved with."""
    path = folder / "epoch-0002.safetensors"
    tensors = files.read_tensors(path)
    change(tensors)
    files.write_tensors(path, tensors)


def shortened(folder: Path) -> None:
    path = folder / "epoch-0002.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def pickled(folder: Path) -> None:
    (folder / "epoch-0002.safetensors").write_bytes(pickle.dumps({"weights": [1.0]}))


DAMAGE = {
    "no tensors": lambda f: (f / "epoch-0002.safetensors").unlink(),
    "shortened": shortened,
    "a pickle": pickled,
    "another weight": lambda f: touched(f, lambda t: t["weights.classifier.bias"].add_(1)),
    "another shape": lambda f: touched(
        f, lambda t: t.update({"momentum.stem.0.bias": torch.ones(9)})
    ),
    "another type": lambda f: touched(
        f, lambda t: t.update({"weights.stem.0.bias": torch.ones(4, dtype=torch.float64)})
    ),
    "a tensor too many": lambda f: touched(f, lambda t: t.update(more=torch.ones(1))),
    "a tensor too few": lambda f: touched(f, lambda t: t.pop("momentum.stem.0.bias")),
    "no JSON": lambda f: (f / "finetuning.json").write_text("{"),
    "another schema": lambda f: rewrite(f, schema="efface.core/1"),
    "losses that are none": lambda f: rewrite(f, losses=["a", "b"]),
    "a loss that is no number": lambda f: rewrite(f, losses=[1.0, math.nan]),
    "more losses than epochs": lambda f: rewrite(f, losses=[1.0] * 4),
    "no losses": lambda f: rewrite(f, losses=[]),
    "settings that are none": lambda f: rewrite(f, settings=3),
    "another digest": lambda f: rewrite(f, digest="0" * 64),
    "no digest": lambda f: rewrite(f, digest=None),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = begun(tmp_path / "run", tiny_records())
    DAMAGE[name](folder)
    with pytest.raises(FormatError, match="Fix: "):
        fine_tune(backbone(), tiny_records(), QUICK, folder=folder)


def test_views_depend_on_no_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record's view of an epoch is the same whichever records come with it in the batch."""
    from efface.network import finetuning

    seen: dict[int, dict[str, np.ndarray]] = {}
    plain = finetuning._stacked

    def stacked(records: Records, arrays: list[np.ndarray]) -> Tensor:
        batch = dict(zip(records.ids, arrays, strict=True))
        seen.setdefault(size, {}).update({f"{k}/{v.sum()}": v for k, v in batch.items()})
        return plain(records, arrays)

    monkeypatch.setattr(finetuning, "_stacked", stacked)
    for size in (1, 5, 24):
        settings = replace(QUICK, batch_size=size, scale=(0.1, 0.9), epochs=2)
        fine_tune(backbone(), tiny_records(side=24), settings)
    assert seen[1].keys() == seen[5].keys() == seen[24].keys()
    assert len(seen[1]) == 2 * 24  # another view in every epoch
    for key, view in seen[1].items():
        np.testing.assert_array_equal(view, seen[24][key])
