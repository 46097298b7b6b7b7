"""A job reads the images of its shard, and what all shards together refuse is what one reader would."""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.photos import write_photos
from tests.shards.training import OPTIONS, efface, failing, weights

from efface.data.blobs import Blob, LocalBlob
from efface.data.class_list import settled
from efface.data.images import FileImage
from efface.data.opening import absolute
from efface.data.readers import parquet
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, RecordError
from efface.pipeline import sharded
from efface.pipeline.known_core import write_core
from efface.pipeline.sections import DataConfig
from efface.pipeline.sharded import ShardJob, absolute_data
from efface.progress import Progress
from efface.shards import Partial, Shard, combine
from efface.shards.engine import HereEngine, Job

CORE = 0.3


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), 8, 4, 6)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the content of each file was asked for."""
    found: Counter[str] = Counter()
    content = FileImage.content

    def counted(image: FileImage) -> bytes:
        found[image.path.name] += 1
        return content(image)

    monkeypatch.setattr(FileImage, "content", counted)
    return found


def config(data: Path, **options: Any) -> DataConfig:
    return DataConfig(spec=str(data), **{"core_fraction": CORE, "seed": 1, **options})


def jobs(data: DataConfig, base: Path, count: int) -> list[ShardJob]:
    values = data.model_dump(mode="json")
    return [ShardJob(str(base), values, str(shard), "") for shard in Shard.all(count)]


def base_of(folder: Path, records: Records) -> Path:
    core = records.core
    write_core(folder, dict(zip(core.digests, core.ids, strict=True)))
    return folder


@pytest.mark.parametrize("count", [1, 4, 64])
def test_all_jobs_together_look_at_every_user_image_once_and_at_no_other(
    photos: Path, tmp_path: Path, reads: Counter[str], count: int
) -> None:
    data = config(photos, channels="rgb")
    records = settled(data.build())
    base = base_of(tmp_path, records)
    reads.clear()
    found = [job.look(records.classes).records for job in jobs(data, base, count)]
    assert reads == Counter(records.user.ids)
    together = sorted((r for some in found for r in some), key=lambda r: r.id)
    assert together == sorted(records.user, key=lambda r: r.id)


def test_where_channels_must_agree_a_job_reads_one_core_image_more(
    photos: Path, tmp_path: Path, reads: Counter[str]
) -> None:
    records = settled(config(photos).build())
    base = base_of(tmp_path, records)
    reads.clear()
    filled = [bool(len(j.look(records.classes).records)) for j in jobs(config(photos), base, 8)]
    assert sum(reads.values()) == len(records.user) + sum(filled)
    assert sum(reads[name] for name in records.core.ids) == sum(filled)


def test_core_images_that_the_model_does_not_know_are_looked_at(
    photos: Path, tmp_path: Path, reads: Counter[str]
) -> None:
    data = config(photos, channels="rgb")
    records = settled(data.build())
    reads.clear()
    jobs(data, tmp_path, 1)[0].look(records.classes)
    assert reads == Counter(records.user.ids + records.core.ids)


def test_training_reads_each_user_image_for_its_digest_and_for_its_row(
    photos: Path, tmp_path: Path, reads: Counter[str]
) -> None:
    """Never by the one who trains the core, whose own are those of core and test."""
    records = settled(config(photos).build())
    reads.clear()
    words = ("train", photos, *OPTIONS, "--channels", "rgb", "--out")
    efface(*words, tmp_path / "sharded", "--engine", "here", "--shards", 5)
    assert {name: reads[name] for name in records.user.ids} == dict.fromkeys(records.user.ids, 2)
    efface(*words, tmp_path / "plain")
    assert weights(tmp_path / "sharded") == weights(tmp_path / "plain")


def test_rows_by_hand_read_their_own(photos: Path, tmp_path: Path, reads: Counter[str]) -> None:
    model = tmp_path / "w"
    efface("train", photos, *OPTIONS, "--channels", "rgb", "--core-only", "--out", model)
    user = settled(config(photos).build()).user.ids
    assert not set(reads) - set(settled(config(photos).build()).ids)
    reads.clear()
    for i in (1, 2, 3):
        part = tmp_path / f"part{i}"
        efface("rows", photos, "--model", model, "--shard", f"{i}/3", "--out", part)
    assert reads == Counter(user * 2)


def test_the_core_alone_is_trained_without_a_look_at_user_images(
    photos: Path, tmp_path: Path, reads: Counter[str]
) -> None:
    user = set(settled(config(photos).build()).user.ids)
    reads.clear()
    efface("train", photos, *OPTIONS, "--core-only", "--out", tmp_path / "w")
    assert not user & set(reads)


class Elsewhere(HereEngine):
    """Its workers are in another folder, as those of a Ray cluster that was running before."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.values = folder, []

    def run(self, job: Job, values: Sequence[Any], progress: Progress | None = None) -> None:
        self.values += values
        with contextlib.chdir(self.folder):
            super().run(job, values, progress)


def test_workers_may_be_in_another_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efface.pipeline import train

    (tmp_path / "elsewhere").mkdir()
    engine = Elsewhere(tmp_path / "elsewhere")
    monkeypatch.setattr(train, "engine_named", lambda _, device: engine)
    monkeypatch.chdir(shutil.copytree(photos, tmp_path / "home" / "photos").parent)
    efface("train", "photos", *OPTIONS, "--engine", "ray", "--shards", 3, "--out", "w")
    efface("train", "photos", *OPTIONS, "--out", "plain")
    assert weights(Path("w")) == weights(Path("plain"))
    assert {job.data["spec"] for job in engine.values} == {str(tmp_path / "home" / "photos")}
    assert not list(engine.folder.iterdir())
    assert not Path("w.shards").exists()


def test_specs_are_told_to_workers_by_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EFFACE_DATA", "root")
    for file in ("images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt"):
        (tmp_path / "root" / "cub200" / "images").mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / "cub200" / file).touch()
    assert absolute("photos") == str(tmp_path / "photos")
    assert absolute("cub200") == f"cub200:{tmp_path / 'root' / 'cub200'}"
    for spec in ("digits", "s3://bucket/photos", "memory://photos", f"file://{tmp_path}/photos"):
        assert absolute(spec) == spec
    data = absolute_data(DataConfig(spec="a.csv", core_data="public", absolute_paths=True))
    assert (data.spec, data.core_data) == (str(tmp_path / "a.csv"), str(tmp_path / "public"))
    assert data.absolute_paths


# What one reader refuses or sets aside.


def change(folder: Path, edit: Callable[[list[dict[str, str]]], None]) -> Path:
    with (folder / "metadata.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    edit(rows)
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.fixture
def changed(photos: Path, tmp_path: Path) -> Path:
    return shutil.copytree(photos, tmp_path / "photos")


def test_a_copy_of_a_drawn_core_image_is_set_aside(changed: Path, tmp_path: Path) -> None:
    records = settled(config(changed).build())
    shutil.copy(changed / records.core[0].id, changed / records.user[0].id)
    said = {}
    for name, more in (("plain", ()), ("sharded", ("--engine", "here", "--shards", 3))):
        said[name] = efface("train", changed, *OPTIONS, *more, "--out", tmp_path / name)
        assert f"the first {records.user[0].id!r}: the same image is core data" in said[name]
    assert weights(tmp_path / "sharded") == weights(tmp_path / "plain")


def test_a_copy_of_what_the_data_calls_core_is_refused(changed: Path, tmp_path: Path) -> None:
    def edit(rows: list[dict[str, str]]) -> None:
        for row in rows[:12]:
            row["split"] = "core"

    change(changed, edit)
    shutil.copy(changed / "0003.png", changed / "0020.png")
    words = ("train", changed, "--features", 60, "--out", tmp_path / "w")
    for more in ((), ("--engine", "here", "--shards", 3)):
        said = failing(*words, *more)
        assert "record '0020.png': the same image is core data, as '0003.png'" in said


def test_two_records_of_one_id_are_refused(changed: Path, tmp_path: Path) -> None:
    def edit(rows: list[dict[str, str]]) -> None:
        for i, row in enumerate(rows):
            row["id"] = "one" if i in (4, 36) else str(i)

    change(changed, edit)
    for more in ((), ("--engine", "here", "--shards", 3), ("--core-only",)):
        said = failing("train", changed, *OPTIONS, *more, "--out", tmp_path / "w")
        assert "record 'one': 2 records have this id" in said


def test_a_class_that_core_lacks_is_refused_before_an_image_is_read(
    changed: Path, tmp_path: Path, reads: Counter[str]
) -> None:
    user = settled(config(changed).build()).user[3].id

    def edit(rows: list[dict[str, str]]) -> None:
        next(row for row in rows if row["file_name"] == user)["label"] = "rare"

    change(changed, edit)
    reads.clear()
    more = ("--engine", "here", "--shards", 3)
    said = failing("train", changed, *OPTIONS, *more, "--out", tmp_path / "w")
    assert "its class 'rare' has no core record" in said
    assert not reads[user]


def test_bad_images_are_set_aside_by_whoever_reads_them(changed: Path, tmp_path: Path) -> None:
    records = settled(config(changed).build())
    bad = records.user[2].id
    (changed / bad).write_bytes(b"no image")
    words = ("train", changed, *OPTIONS, "--skip-bad")
    efface(*words, "--out", tmp_path / "plain")
    said = efface(*words, "--engine", "here", "--shards", 40, "--out", tmp_path / "sharded")
    assert f"1 files set aside, the first {bad!r}" in said
    assert weights(tmp_path / "sharded") == weights(tmp_path / "plain")
    more = ("--engine", "here", "--shards", 3)
    assert bad in failing("train", changed, *OPTIONS, *more, "--out", tmp_path / "w")


def test_an_image_that_changed_since_its_shard_was_made_is_noticed(
    changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", changed, *OPTIONS, "--out", tmp_path / "w", "--engine", "here", "--shards", 2)
    with monkeypatch.context() as patch:
        patch.setattr(sharded, "checked", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        failing(*words)
    user = settled(config(changed).build()).user
    shutil.copy(changed / user[0].id, changed / user[1].id)
    assert "were made of other images" in failing(*words)


def test_gray_images_among_coloured_ones_are_refused(changed: Path, tmp_path: Path) -> None:
    from PIL import Image

    records = settled(config(changed).build())
    base = base_of(tmp_path, records)
    for record in records.user:
        Image.open(changed / record.id).convert("L").save(changed / record.id)
    with pytest.raises(RecordError, match=r"1 channel.s. where core images have 3"):
        jobs(config(changed), base, 1)[0].look(records.classes)


def test_partials_of_gray_and_of_coloured_images_are_not_put_together(
    photos: Path, tmp_path: Path
) -> None:
    model = tmp_path / "w"
    efface("train", photos, *OPTIONS, "--core-only", "--out", model)
    parts = []
    for i in (1, 2):
        part = tmp_path / f"part{i}"
        efface("rows", photos, "--model", model, "--shard", f"{i}/2", "--out", part)
        parts.append(Partial.load(part))
    assert [part.num_channels for part in parts] == [3, 3]
    with pytest.raises(EffaceError, match=r"partial 1/2 have 1 channel.s., those of 2/2 3"):
        combine([replace(parts[0], num_channels=1), parts[1]])


# Archives and tables, which are read a piece at a time.


def write_tars(folder: Path, photos: Path, count: int) -> Path:
    folder.mkdir()
    records = Records.open(photos).user
    for t in range(count):
        with tarfile.open(folder / f"train-{t:04d}.tar", "w") as tar:
            for record in records[t::count]:
                stem = record.id.removesuffix(".png")
                data = (photos / record.id).read_bytes()
                for name, content in (
                    (f"{stem}.png", data),
                    (f"{stem}.cls", record.label.encode()),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return folder


def test_an_archive_is_opened_by_one_job(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tars(tmp_path / "tars", photos, 6)
    data = config(folder, classes=("checks", "disc", "stripes"), core_fraction=None)
    records = data.build()
    opened: Counter[str] = Counter()
    monkeypatch.setattr(LocalBlob, "open", _counting(LocalBlob.open, opened))
    listed = [len(job.look(records.classes).records) for job in jobs(data, tmp_path, 4)]
    assert sum(listed) == len(records) == 32
    parts = Counter({f"train-{t:04d}.tar": 0 for t in range(6)})
    for t in range(6):
        parts[f"train-{t:04d}.tar"] = 1 + len(Records.open(photos).user[t::6])
    assert opened == parts  # once to know what is in it, and each image once


def test_a_group_of_a_table_is_read_by_one_job(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    records = Records.open(photos).user
    table = pa.table(
        {
            "image": [(photos / r.id).read_bytes() for r in records],
            "label": [r.label for r in records],
            "owner": [r.owner for r in records],
        }
    )
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=4)
    data = config(tmp_path / "train.parquet", classes=tuple(records.classes), core_fraction=None)
    parquet._images.cache_clear()
    seen: Counter[int] = Counter()
    images = parquet._images

    def counted(blob: Blob, column: str, group: int, opening: int) -> Any:
        seen[group] += opening not in openings[group]
        openings[group].add(opening)
        return images(blob, column, group, opening)

    openings: list[set[int]] = [set() for _ in range(8)]
    monkeypatch.setattr(parquet, "_images", counted)
    found = [len(job.look(records.classes).records) for job in jobs(data, tmp_path, 3)]
    assert sum(found) == 32
    assert seen == Counter(range(8))


def _counting(open_blob: Callable[..., Any], opened: Counter[str]) -> Callable[..., Any]:
    def counted(blob: Blob) -> Any:
        opened[blob.name] += 1
        return open_blob(blob)

    return counted


def test_shards_of_archives_have_every_record_once(photos: Path, tmp_path: Path) -> None:
    folder = write_tars(tmp_path / "tars", photos, 5)
    listing = config(folder, core_fraction=None).listing()
    for count in (1, 2, 7):
        held = [sum(shard.holds(row.piece) for shard in Shard.all(count)) for row in listing.user]
        assert held == [1] * 32
    assert {row.piece for row in listing.user} == {f"train-{t:04d}.tar" for t in range(5)}
    assert all(row.split is Split.USER for row in listing.user)
