"""Files of all kinds, changed at random: an error in plain words or a result, never a traceback, never much
memory, never a file outside.

EFFACE_FUZZ multiplies the number of examples (1: about half a minute).
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import resource
import shutil
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests import cases
from tests.network.test_saved import resave
from tests.workspaces import (  # noqa: F401
    OWNER,
    TEST,
    as_in_other_processes,
    contents,
    fitted,
    people,
)

from efface import containers
from efface.data.class_list import class_names
from efface.data.named.idx import read_idx
from efface.data.named.pickled_batches import read_batch
from efface.data.named.unpack import unpack
from efface.data.records import Records
from efface.errors import EffaceError
from efface.model.request import Request
from efface.network.backbone import load_backbone
from efface.pipeline.config import load_config
from efface.workspace import Workspace
from efface.workspace.batches import read_requests
from efface.workspace.published import load
from efface.workspace.steps import Action, Intent
from efface.workspace.verify import all_checks

TIMES = float(os.environ.get("EFFACE_FUZZ", "1"))
MEMORY = 3 << 30  # bytes beyond what the process has already


def examples(number: int) -> Any:
    return settings(
        max_examples=max(1, round(number * TIMES)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """More than this and a MemoryError ends the test."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder in a folder in which nothing else may appear."""
    with tempfile.TemporaryDirectory() as above:
        inner = Path(above) / "inner"
        inner.mkdir()
        yield inner
        assert [path.name for path in Path(above).iterdir()] == ["inner"]


# --- changes --------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63, 10**30, -(10**30), 1e308, float("nan")])
WORDS = st.sampled_from(
    ["", "x", "../../x", "/etc/passwd", "\x00", "\x1b[31m", "torch:os:abort", "é"]
)
VALUES = st.one_of(
    st.none(), st.booleans(), NUMBERS, WORDS, st.just([]), st.just({}), st.just([[[]]])
)


@st.composite
def changed_bytes(draw: Any, data: bytes) -> bytes:
    """Some bytes flipped, some cut out, some put in."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(result)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "end", "number"]))
        if kind == "flip" and at < len(result):
            result[at] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del result[at : at + draw(st.integers(1, 64))]
        elif kind == "insert":
            result[at:at] = draw(st.binary(max_size=16))
        elif kind == "number":  # sizes are often eight bytes
            result[at : at + 8] = draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little")
        else:
            del result[at:]
    return bytes(result)


@st.composite
def changed_json(draw: Any, text: bytes) -> bytes:
    """One value, anywhere in there, replaced, or left out, or called otherwise."""
    values = json.loads(text)
    places = list(_places(values))
    where = draw(st.sampled_from(places)) if places else ()
    inner = values
    for key in where[:-1]:
        inner = inner[key]
    if not where:
        return json.dumps(draw(VALUES)).encode()
    if draw(st.booleans()) and isinstance(inner, dict):
        kept = inner.pop(where[-1])
        if draw(st.booleans()):
            inner[draw(WORDS)] = kept
    else:
        inner[where[-1]] = draw(VALUES)
    return json.dumps(values).encode()


def _places(values: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*above, key))


def changed(name: str, data: bytes) -> st.SearchStrategy[bytes]:
    if name.endswith((".json", "CURRENT", ".head")):
        return st.one_of(changed_json(data), changed_bytes(data))
    return changed_bytes(data)


# --- a workspace ----------------------------------------------------------------------------------


@cache
def workspace(kind: str) -> tuple[tempfile.TemporaryDirectory[str], Path, dict[str, bytes]]:
    """A workspace after two requests, with one in flight; kept as long as the tests run."""
    keep = tempfile.TemporaryDirectory()
    path = Path(keep.name) / "w"
    opened = Workspace.create(path, fitted(kind, people(12)), config='[data]\nspec = "x"\n')
    opened.forget(ids="image-1-1")
    return keep, path, contents(path)


def look(path: Path) -> None:
    """All that only reads, by all the ways in."""
    for read in (
        lambda: load(path).logits(TEST[:1]),
        lambda: list(all_checks(Workspace.open(path, recover=False))),
        lambda: Workspace.open(path, recover=False).preview(owner=OWNER),
        lambda: Workspace.open(path, recover=False).inventory.owned(),
        lambda: Workspace.open(path, recover=False).inventory.settled(),
    ):
        with suppress(EffaceError):
            read()


@pytest.mark.parametrize("kind", ["compact", "tangent"])
@examples(150)
@given(data=st.data())
def test_any_file_of_a_workspace(kind: str, data: Any) -> None:
    _, path, files = workspace(kind)
    name = data.draw(st.sampled_from(sorted(files)))
    (path / name).write_bytes(data.draw(changed(name, files[name])))
    try:
        look(path)
        assert sorted(contents(path)) == sorted(files)  # and nothing was written
        assert [p.name for p in path.parent.iterdir()] == ["w"]
    finally:
        (path / name).write_bytes(files[name])


@examples(100)
@given(data=st.data())
def test_a_request_in_flight_that_was_changed(data: Any) -> None:
    text = Intent(3, Action.FORGET, ("ab" * 32,), Request.of(owner=OWNER)).to_text().encode()
    with suppress(EffaceError):
        Intent.from_text(data.draw(changed("pending.json", text)).decode(errors="surrogateescape"))


@pytest.mark.parametrize("name", ["core.json", "model.json"])
@examples(100)
@given(data=st.data())
def test_settings_that_a_forger_has_signed(name: str, data: Any) -> None:
    """With the digest that fits, so that all of it is looked at."""
    with folder() as path:
        saved = _saved()
        shutil.copytree(saved, path / "m")
        file = path / "m" / name
        file.write_bytes(data.draw(changed_json(file.read_bytes())))
        try:
            if name == "core.json":
                resave(path / "m")
            else:
                _resave_user(path / "m")
        except (KeyError, TypeError, AttributeError):
            return
        with suppress(EffaceError):
            load(path / "m").logits(TEST[:1])


@cache
def _saved() -> Path:
    path = Path(tempfile.mkdtemp())
    fitted("compact", people(12)).save(path)
    return path


def _resave_user(path: Path) -> None:
    from efface.digests import tensors_digest
    from efface.files import read_tensors

    values = json.loads((path / "model.json").read_text())
    values["user_digest"] = tensors_digest(read_tensors(path / "user.safetensors"), values["user"])
    (path / "model.json").write_text(json.dumps(values))


# --- data -----------------------------------------------------------------------------------------


def image(kind: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (12, 9, 3), dtype=np.uint8)
    return cases.encoded(Image.fromarray(pixels), kind)


def npz() -> bytes:
    buffer = io.BytesIO()
    pixels = np.arange(4 * 6 * 6, dtype=np.uint8).reshape(4, 6, 6)
    np.savez_compressed(
        buffer, images=pixels, labels=np.array(["a", "b"] * 2), owners=np.array(["x", "y"] * 2)
    )
    return buffer.getvalue()


def parquet() -> bytes:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    cells = [{"bytes": image("PNG"), "path": None}, {"bytes": image("JPEG"), "path": "x"}]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"image": cells, "label": [0, 1], "owner": ["a", "b"]}), buffer)
    return buffer.getvalue()


def tar(kind: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{kind}") as archive:
        for name in ("a/1.txt", "b/2.txt"):
            member = tarfile.TarInfo(name)
            member.size = 600
            archive.addfile(member, io.BytesIO(b"x" * 600))
    return buffer.getvalue()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/1.txt", "x" * 600)
        archive.writestr("b/2.txt", "y" * 600)
    return buffer.getvalue()


def idx() -> bytes:
    return b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 3, 3)) + bytes(18)


def open_data(path: Path) -> None:
    for record in Records.open(path):
        record.image()


def open_image(path: Path) -> None:
    (path.parent / "a").mkdir()
    path.rename(path.parent / "a" / "x.png")
    open_data(path.parent)


def open_archive(path: Path) -> None:
    (path.parent / "out").mkdir()
    unpack(path, path.parent / "out")


def open_inside(path: Path) -> None:
    try:
        for _ in containers.inside(path.read_bytes()):
            pass
    except (containers.TooLarge, *containers.DAMAGED):
        pass


def open_list(path: Path) -> None:
    for name in ("1.png", "2.png"):
        (path.parent / name).write_bytes(image("PNG") + name.encode())
    open_data(path.parent)


CSV = b"file_name,label,owner,split\n1.png,a,x,user\n2.png,b,y,core\n"
JSONL = b'{"file_name": "1.png", "label": "a"}\n{"file_name": "2.png", "label": 3, "owner": "z"}\n'
TOML = b'[data]\nspec = "digits"\nseed = 3\n[core]\nstages = [{ train = "all", epochs = 2 }]\n'
REQUESTS = b'{"owner": "u17", "received": "2026-11-03"}\n{"ids": ["a", "b"]}\n'
KINDS: dict[str, tuple[Callable[[], bytes], Callable[[Path], object]]] = {
    "x.png": (lambda: image("PNG"), open_image),
    "x.jpg": (lambda: image("JPEG"), open_image),
    "x.gif": (lambda: image("GIF"), open_image),
    "x.bmp": (lambda: image("BMP"), open_image),
    "x.tif": (lambda: image("TIFF"), open_image),
    "x.webp": (lambda: image("WEBP"), open_image),
    "d.npz": (npz, open_data),
    "d.parquet": (parquet, open_data),
    "metadata.csv": (lambda: CSV, open_list),
    "metadata.jsonl": (lambda: JSONL, open_list),
    "d.tar": (lambda: tar(""), open_archive),
    "d.tar.gz": (lambda: tar("gz"), open_archive),
    "d.zip": (zipped, open_archive),
    "inside.tar": (lambda: tar("xz"), open_inside),
    "inside.zip": (zipped, open_inside),
    "inside.gz": (lambda: gzip.compress(zipped()), open_inside),
    "inside.bz2": (lambda: bz2.compress(tar("")), open_inside),
    "batch": (lambda: _pickle(), read_batch),
    "train-images-idx3-ubyte": (idx, lambda path: read_idx(path, 3)),
    "train-images-idx3-ubyte.gz": (lambda: gzip.compress(idx()), lambda path: read_idx(path, 3)),
    "run.toml": (lambda: TOML, load_config),
    "requests.jsonl": (lambda: REQUESTS, read_requests),
    "classes.txt": (lambda: b"ape\nbee\ncat\n", lambda path: class_names(str(path))),
}


def _pickle() -> bytes:
    from tests.data.named.archives import batch, pickled

    images, labels = batch(1)
    return pickled({"data": images, "labels": labels})


@cache
def original(name: str) -> bytes:
    return KINDS[name][0]()


@pytest.mark.parametrize("name", KINDS)
@examples(80)
@given(data=st.data())
def test_data_of_every_kind(name: str, data: Any) -> None:
    with folder() as path:
        (path / name).write_bytes(data.draw(changed_bytes(original(name))))
        with suppress(EffaceError):
            KINDS[name][1](path / name)


@pytest.mark.parametrize("name", KINDS)
def test_unchanged_they_are_read(name: str) -> None:
    with folder() as path:
        (path / name).write_bytes(original(name))
        KINDS[name][1](path / name)
    if name.endswith(".toml"):
        assert tomllib.loads(original(name).decode())


@cache
def network() -> Path:
    path = Path(tempfile.mkdtemp())
    cases.tiny("resnet-basic").save_pretrained(path)
    (path / "preprocessor_config.json").write_text('{"size": {"shortest_edge": 8}, "crop_size": 8}')
    return path


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors"])
@examples(25)
@given(data=st.data())
def test_a_network_of_somebody_else(name: str, data: Any) -> None:
    with folder() as path:
        shutil.copytree(network(), path / "net")
        text = (path / "net" / name).read_bytes()
        (path / "net" / name).write_bytes(data.draw(changed(name, text)))
        with suppress(EffaceError):
            load_backbone(f"hf:{path / 'net'}")
