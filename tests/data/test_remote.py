"""By URL, in tar shards and in Delta tables: the records of the same files in a folder, and the same care."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.written import pixels, png, write

from efface.data import blobs
from efface.data.blobs import checked_url
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError

fsspec = pytest.importorskip("fsspec")

Put = Callable[[dict[str, bytes]], str]


@pytest.fixture
def put() -> Iterator[Put]:
    """Files in a store in memory; returns the URL of their folder."""
    store = fsspec.filesystem("memory")

    def write(files: dict[str, bytes]) -> str:
        for name, data in files.items():
            store.pipe_file(f"/bucket/{name}", data)
        return "memory://bucket"

    yield write
    store.rm("/bucket", recursive=True)


def tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def sample(key: str, seed: int, owner: str, label: str = "cat") -> dict[str, bytes]:
    columns = json.dumps({"label": label, "owner": owner}).encode()
    return {f"{key}.png": png(seed), f"{key}.json": columns}


SHARD = tar({**sample("a", 0, "ann"), **sample("b", 1, "bob", "dog"), **sample("c", 2, "ann")})


# --- URLs -----------------------------------------------------------------------------------------


def test_a_folder_of_classes_has_the_records_of_a_local_one(put: Put, tmp_path: Path) -> None:
    files = {f"train/{c}/{i}.png": png(i) for c, i in (("cat", 0), ("cat", 1), ("dog", 2))}
    files |= {"test/dog/3.png": png(3), "train/cat/notes.txt": b"x", "stray.png": png(4)}
    near, far = Records.open(write(tmp_path, files)), Records.open(put(files))
    assert list(far) == list(near)
    assert far.classes == near.classes
    assert {s.id for s in far.skipped} == {"train/cat/notes.txt", "stray.png"}
    np.testing.assert_array_equal(far[0].image(), near[0].image())


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_a_list_has_the_records_of_a_local_one(put: Put, tmp_path: Path, name: str) -> None:
    lines = [
        {"file_name": f"images/{i}.png", "label": "ab"[i % 2], "owner": "ann"} for i in range(3)
    ]
    if name.endswith(".jsonl"):
        text = "\n".join(map(json.dumps, lines))
    else:
        text = "\n".join(["file_name,label,owner", *(",".join(line.values()) for line in lines)])
    files = {name: text.encode()} | {f"images/{i}.png": png(i) for i in range(3)}
    near, url = Records.open(write(tmp_path, files)), put(files)
    assert list(Records.open(url)) == list(Records.open(f"{url}/{name}")) == list(near)


@pytest.mark.parametrize(
    "name", ["../0.png", "/0.png", "s3://other/0.png", "C:\\0.png", "a/../../0.png", "file::/0.png"]
)
def test_a_list_leads_nowhere_else(put: Put, name: str) -> None:
    line = json.dumps({"file_name": name, "label": "a", "id": "the-one"}).encode()
    with pytest.raises(RecordError, match=r"'the-one'.*leads out of the folder"):
        Records.open(put({"metadata.jsonl": line}), absolute_paths=True)


def test_an_object_that_is_missing_or_too_large_names_its_record(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put({"metadata.csv": b"file_name,label\n0.png,a\n1.png,a\n", "0.png": png(0)})
    with pytest.raises(RecordError, match=r"'1\.png'.*memory://bucket/1\.png is missing"):
        Records.open(url)
    assert Records.open(url, skip_bad=True).ids == ("0.png",)
    put({"1.png": png(1)})
    monkeypatch.setattr(blobs.Blob.read, "__defaults__", (40,))
    with pytest.raises(RecordError, match=r"'0\.png'.*more than 0 MB"):
        Records.open(url)


def test_an_object_that_changed_is_noticed(put: Put) -> None:
    records = Records.open(put({"cat/0.png": png(0), "dog/1.png": png(1)}))
    put({"cat/0.png": png(9)})
    with pytest.raises(RecordError, match=r"cat/0\.png.*content changed"):
        records[0].image()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://host/data", "ftp:// is not read"),
        ("simplecache::s3://bucket/data", "is not read"),
        ("s3://bucket/../other", "no plain address"),
        ("memory://bucket::s3://x", "no plain address"),
        ("s3://", "no plain address"),
    ],
)
def test_other_addresses_are_refused(url: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        checked_url(url)
    assert caught.value.fix
    with pytest.raises(FormatError, match=problem):
        Records.open(url)


def test_a_store_whose_package_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str) -> None:
        raise ImportError("Install gcsfs to access GCS")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(EffaceError, match=r"efface\[remote\].* gcsfs"):
        Records.open("gs://bucket/photos")


def test_nothing_there_is_said(put: Put) -> None:
    put({"x.txt": b""})
    with pytest.raises(FormatError, match="no images below"):
        Records.open("memory://bucket")
    with pytest.raises(FormatError, match="cannot be read"):
        Records.open("memory://bucket/other.csv")


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    folder = write(tmp_path / "photos", {"cat/0.png": png(0), "dog/1.png": png(1)})
    assert list(Records.open(folder.as_uri())) == list(Records.open(folder))


# --- tar shards -----------------------------------------------------------------------------------


def test_samples_of_a_shard(put: Put, tmp_path: Path) -> None:
    shards = {"train-0.tar": SHARD, "test-0.tar": tar({"x/d.jpg": png(3), "x/d.cls": b"dog\n"})}
    near, far = Records.open(write(tmp_path, shards)), Records.open(put(shards))
    assert list(near) == list(far)
    assert near.user.ids == ("train-0/a", "train-0/b", "train-0/c")
    assert near.user.owners == ("ann", "bob", "ann")
    assert near.test.ids == ("test-0/x/d",)
    assert near.classes == ("cat", "dog")
    np.testing.assert_array_equal(near.select(owner="bob")[0].image(), pixels(1))
    alone = Records.open(tmp_path / "train-0.tar", classes=("cat", "dog"))
    assert list(alone) == list(near.user)


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    members = {
        f"{i}.{kind}": data for i in (2, 10) for kind, data in (("png", png(i)), ("cls", b"%d" % i))
    }
    records = Records.open(write(tmp_path, {"s.tar": tar(members)}) / "s.tar")
    assert records.classes == ("2", "10")


def opened(tmp_path: Path, data: bytes) -> Records:
    return Records.open(write(tmp_path, {"s.tar": data}) / "s.tar")


@pytest.mark.parametrize(
    ("members", "record", "problem"),
    [
        ({"a.png": png(0)}, "s/a", "no label for the key 'a'"),
        ({"a.cls": b"1"}, "s/a", "no image for the key 'a'"),
        ({"a.png": png(0), "a.jpg": png(1), "a.cls": b"1"}, "s/a", "2 images for the key 'a'"),
        ({"a.png": png(0), "a.json": b"[1]"}, "s/a", "not a JSON object"),
        ({"a.png": png(0), "a.json": b"\xff"}, "s/a", "not UTF-8"),
        ({"a.png": png(0), "a.cls": bytes(2 << 20)}, "s/a", "2,097,152 bytes"),
        ({"a.png": b"no image", "a.cls": b"1"}, "s/a", "not an image"),
    ],
)
def test_a_sample_that_is_not_whole_is_named(
    tmp_path: Path, members: dict[str, bytes], record: str, problem: str
) -> None:
    with pytest.raises(RecordError, match=problem) as caught:
        opened(tmp_path, tar(members))
    assert caught.value.record == record
    assert caught.value.fix


def test_a_misspelt_column_is_refused(tmp_path: Path) -> None:
    members = {"a.png": png(0), "a.json": b'{"label": "x", "ownr": "ann"}'}
    with pytest.raises(FormatError, match="'ownr' looks like 'owner'"):
        opened(tmp_path, tar(members))


def test_a_member_larger_than_an_image_may_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "LARGEST_IMAGE", 60)
    with pytest.raises(RecordError, match=r"'s/a'.*more than 0"):
        opened(tmp_path, SHARD)


@pytest.mark.parametrize("left", [100, 700, 1024, 1600, 5 * 512, len(SHARD) // 2])
def test_a_shard_that_was_cut_short_is_refused(tmp_path: Path, left: int) -> None:
    """Even between two members, where a tar looks like one that ends."""
    whole = 512 * 12  # six members of a header and a block each
    assert SHARD[whole : whole + 512] == bytes(512)
    for size in {left, whole}:
        with pytest.raises(FormatError, match=r"s\.tar is damaged") as caught:
            opened(tmp_path, SHARD[:size])
        assert "fetch it again" in caught.value.fix


def test_what_is_no_tar_or_a_compressed_one_is_refused(tmp_path: Path) -> None:
    import gzip

    for data in (b"nothing", gzip.compress(SHARD), tar({})):
        with pytest.raises(FormatError, match=r"s\.tar"):
            opened(tmp_path, data)


def test_links_and_names_that_lead_out_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(7))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, to in (
            ("l.png", tarfile.SYMTYPE, str(tmp_path / "secret.png")),
            ("h.png", tarfile.LNKTYPE, "a.png"),
            ("../o.png", tarfile.REGTYPE, ""),
            ("d.png", tarfile.CHRTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, to
            archive.addfile(member)
        for name, data in sample("a", 0, "ann").items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    records = opened(tmp_path, buffer.getvalue())
    assert records.ids == ("s/a",)
    assert [s.id for s in records.skipped] == ["s/l.png", "s/h.png", "s/../o.png", "s/d.png"]


@pytest.mark.needs("posix")
def test_a_shard_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.tar").write_bytes(SHARD)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "s.tar").symlink_to(tmp_path / "elsewhere.tar")
    with pytest.raises(FormatError, match="leads out of the folder"):
        Records.open(tmp_path / "data")


# --- Parquet and Delta ----------------------------------------------------------------------------


def parquet(columns: dict[str, list[Any]], group: int = 2) -> bytes:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=group)
    return buffer.getvalue()


def people(*numbers: int) -> dict[str, list[Any]]:
    return {
        "image": [{"bytes": png(i), "path": ""} for i in numbers],
        "label": ["cat" if i % 2 else "dog" for i in numbers],
        "owner": [f"person-{i}" for i in numbers],
    }


def test_parquet_is_read_a_row_group_at_a_time(put: Put, tmp_path: Path) -> None:
    files = {
        "train-0.parquet": parquet(people(0, 1, 2, 3, 4)),
        "test-0.parquet": parquet(people(5)),
    }
    near, far = Records.open(write(tmp_path, files)), Records.open(put(files))
    assert list(near) == list(far)
    assert [record.image().tobytes() for record in near.user] == [
        pixels(i).tobytes() for i in range(5)
    ]
    assert far.test.owners == ("person-5",)
    assert list(Records.open("memory://bucket/train-0.parquet")) == list(near.user)


def test_a_parquet_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "d.parquet"
    for first in (0, 1):
        file.write_bytes(parquet(people(first, first + 1)))
        np.testing.assert_array_equal(Records.open(file)[0].image(), pixels(first))


def delta(*commits: list[dict[str, Any]]) -> dict[str, bytes]:
    """A log; the first commit states the protocol."""
    first: dict[str, Any] = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    return {
        f"_delta_log/{i:020d}.json": "\n".join(
            map(json.dumps, [*([first] if not i else []), *actions])
        ).encode()
        for i, actions in enumerate(commits)
    }


def add(path: str, **partition: str) -> dict[str, Any]:
    return {"add": {"path": path, "partitionValues": partition, "dataChange": True}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path}}


PARTS = {"0.parquet": parquet(people(0, 1)), "split=test/1.parquet": parquet(people(2, 3))}


def test_a_delta_table_is_what_its_log_says(put: Put, tmp_path: Path) -> None:
    log = delta(
        [add("0.parquet"), add("old.parquet")],
        [remove("old.parquet"), add("split%3Dtest/1.parquet", split="test")],
    )
    files = PARTS | {"old.parquet": parquet(people(7, 8))} | log
    near, far = Records.open(write(tmp_path, files)), Records.open(put(files))
    assert list(near) == list(far)
    assert near.user.owners == ("person-0", "person-1")
    assert near.test.owners == ("person-2", "person-3")
    assert {record.split for record in near} == {Split.USER, Split.TEST}


def test_a_checkpoint_stands_for_the_commits_before_it(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    commits = delta(
        [add("x.parquet")],
        [remove("x.parquet"), add("0.parquet")],
        [add("split=test/1.parquet", split="test")],
    )
    folder = write(
        tmp_path, PARTS | {name: data for name, data in commits.items() if "0002" in name}
    )
    kind = pa.struct(
        [("path", pa.string()), ("partitionValues", pa.map_(pa.string(), pa.string()))]
    )
    rows = pa.array([{"path": "0.parquet", "partitionValues": []}], kind)
    pq.write_table(pa.table({"add": rows}), folder / "_delta_log" / f"{1:020d}.checkpoint.parquet")
    assert len(Records.open(folder)) == 4


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([[add("../0.parquet")]], "outside of its folder"),
        ([[add("s3://other/0.parquet")]], "outside of its folder"),
        ([[add("/0.parquet")]], "outside of its folder"),
        ([[{"protocol": {"minReaderVersion": 3}}]], "needs version 3"),
        ([[]], "empty Delta table"),
    ],
)
def test_a_delta_table_that_is_not_read_is_refused(
    tmp_path: Path, log: list[list[dict[str, Any]]], problem: str
) -> None:
    with pytest.raises(FormatError, match=problem):
        Records.open(write(tmp_path, PARTS | delta(*log)))


def test_a_log_with_gaps_or_without_sense_is_refused(tmp_path: Path) -> None:
    log = delta([add("0.parquet")], [], [remove("0.parquet")])
    folder = write(tmp_path, PARTS | log)
    (folder / f"_delta_log/{1:020d}.json").unlink()
    with pytest.raises(FormatError, match="has gaps"):
        Records.open(folder)
    (folder / f"_delta_log/{1:020d}.json").write_text("nonsense")
    with pytest.raises(FormatError, match="cannot be read"):
        Records.open(folder)
