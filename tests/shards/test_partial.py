"""Partials: made apart, put together, they are the model that was trained on all; a wrong one is refused."""

from __future__ import annotations

import itertools
import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tests.workspaces import NEW, OWNER, assert_checks, contents, core, fitted, people

from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError
from efface.model.mixed_linear import MixedLinear
from efface.shards import Partial, Shard, combine
from efface.version import VERSION
from efface.workspace import Workspace


def empty(folder: Path) -> Workspace:
    """A workspace of the core alone, calibrated."""
    return Workspace.create(folder, fitted("compact", people()[:0]))


def partials(model: MixedLinear, records: Records, count: int) -> list[Partial]:
    shards = [(shard, shard.of(records)) for shard in Shard.all(count)]
    return [Partial.make(model, some, str(shard)) for shard, some in shards if len(some)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return empty(tmp_path_factory.mktemp("base") / "w").path


@pytest.fixture
def workspace(base: Path, tmp_path: Path) -> Workspace:
    return Workspace.open(shutil.copytree(base, tmp_path / "w"))


@given(st.lists(st.text(max_size=6), max_size=40, unique=True), st.integers(1, 7))
def test_every_record_is_in_one_shard(ids: list[str], count: int) -> None:
    held = [sum(shard.holds(name) for shard in Shard.all(count)) for name in ids]
    assert held == [1] * len(ids)


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "a/b", "1/2/3", "-1/4", "1/99999999"])
def test_what_is_no_shard_is_said(text: str) -> None:
    with pytest.raises(EffaceError, match="is no shard"):
        Shard.parse(text)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_shards_give_the_model_of_all_records(count: int, workspace: Workspace) -> None:
    made = partials(workspace.model(), people(), count)
    result = workspace.merge(combine(made[::-1]))
    whole = fitted("compact", people())
    user = workspace.model().user
    assert result.num_records == 30
    assert user.statistics_digest == whole.user.statistics_digest
    assert user.weights_digest == whole.user.weights_digest
    assert_checks(workspace.path)


def test_files_do_not_depend_on_shards_or_their_order(base: Path, tmp_path: Path) -> None:
    found = []
    for i, order in enumerate([(0, 1, 2), (2, 0, 1), None]):
        opened = Workspace.open(shutil.copytree(base, tmp_path / str(i)))
        made = partials(opened.model(), people(), 3 if order else 1)
        opened.merge(combine([made[j] for j in order] if order else made))
        found.append({name: data for name, data in contents(opened.path).items() if "rows" in name})
    assert found[0]
    assert found[0] == found[1] == found[2]


def test_saved_and_loaded_it_is_the_same(workspace: Workspace, tmp_path: Path) -> None:
    model = workspace.model()
    folders = []
    for i, partial in enumerate(partials(model, people(), 3)):
        folders.append(tmp_path / f"part{i}")
        partial.save(folders[-1])
        assert folders[-1].stat().st_mode & 0o077 == 0
    loaded = [Partial.load(folder) for folder in folders]
    for partial in loaded:
        partial.check(model)
    workspace.merge(combine(loaded))
    whole = fitted("compact", people())
    assert workspace.model().user.weights_digest == whole.user.weights_digest


def test_merged_records_are_forgotten_like_all_others(workspace: Workspace) -> None:
    workspace.merge(combine(partials(workspace.model(), people(), 3)))
    workspace.forget(owner=OWNER)
    left = people().where(lambda record: record.owner != OWNER)
    user = workspace.model().user
    assert user.weights_digest == fitted("compact", left).user.weights_digest
    again = partials(workspace.model(), people(), 1)
    with pytest.raises(RecordError):
        workspace.merge(combine(again))


def test_into_a_workspace_that_has_records_already(made: dict[str, Path], tmp_path: Path) -> None:
    opened = Workspace.open(shutil.copytree(made["compact"], tmp_path / "w"))
    opened.merge(combine(partials(opened.model(), NEW, 2)))
    whole = fitted("compact", people() + NEW)
    assert opened.model().user.weights_digest == whole.user.weights_digest
    assert_checks(opened.path)


def test_overlaps_are_refused_and_named(workspace: Workspace) -> None:
    one = Partial.make(workspace.model(), people()[:5], "one")
    two = Partial.make(workspace.model(), people()[4:9], "two")
    before = contents(workspace.path)
    with pytest.raises(EffaceError, match=f"{people()[4].id!r} is in partials one and two"):
        combine([one, two])
    workspace.merge(combine([one]))
    with pytest.raises(RecordError, match="is in the workspace already"):
        workspace.merge(combine([two]))
    assert before != contents(workspace.path)
    assert len(workspace.records) == 5


def test_never_more_than_two_sums_are_in_memory(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total and those of one partial, however many there are: a merge is bounded by k²."""
    from efface.parts.compact.statistics import Statistics
    from efface.pipeline.sharded import checked

    model, folders = workspace.model(), []
    for i, partial in enumerate(partials(model, people(), 5)):
        folders.append(tmp_path / str(i))
        partial.save(folders[-1])
    del partial
    alive: weakref.WeakSet[Statistics] = weakref.WeakSet()
    most, begin = [0], Statistics.__init__

    def counted(self: Statistics, *args: object, **options: object) -> None:
        begin(self, *args, **options)  # type: ignore[arg-type]
        alive.add(self)
        most[0] = max(most[0], len(alive))

    monkeypatch.setattr(Statistics, "__init__", counted)
    data = combine(checked(folders, model, {}))
    assert most == [2]
    assert data.sums in alive
    assert len(alive) == 1
    whole = fitted("compact", people()).user.no_statistics()
    for partial in map(Partial.load, folders):
        assert partial.data.sums is not None
        whole.merge(partial.data.sums)
    assert data.sums is not None
    assert data.sums.digest() == whole.digest()


def test_a_partial_of_another_model_is_refused(workspace: Workspace) -> None:
    other = MixedLinear(core(), "compact", features=100)
    other.fit(people()[:0])
    with pytest.raises(EffaceError, match="calibration_digest"):
        Partial.make(other, people(), "1/1").check(workspace.model())


def test_another_decoder_is_said_once_and_no_error(workspace: Workspace, tmp_path: Path) -> None:
    """Integers are the same everywhere once pixels are; pixels of a JPEG are the decoder's."""
    from efface.pipeline.sharded import merge

    model, folders = workspace.model(), []
    for i, made in enumerate(partials(model, people(), 4)):
        old = {**made.given.environment, "decoder": "pillow 1.0, libjpeg 6.2"}
        other = replace(made.given, environment=old) if i else made.given
        folders.append(tmp_path / str(i))
        replace(made, given=other).save(folders[-1])
    assert Partial.load(folders[0]).check(model) == ()
    (note,) = Partial.load(folders[1]).check(model)
    assert "with decoder pillow 1.0, libjpeg 6.2, here there is decoder pillow" in note
    assert model.user.given.environment["decoder"] in note
    said = merge(workspace.path, folders).notes
    assert [text for text in said if "decoder" in text] == [note]


def test_where_and_when_a_partial_was_made_is_in_it(folder: Path, workspace: Workspace) -> None:
    """The data's name and not its place, the time, the version; people are in other files."""
    from efface.pipeline.sharded import _name_of

    values = json.loads((folder / "partial.json").read_text())
    loaded = Partial.load(folder)
    assert (values["time"], values["version"]) == (loaded.time, VERSION)
    assert len(loaded.time) == len("2026-01-01T00:00:00+00:00")
    text = (folder / "partial.json").read_text()
    assert not any(name in text for name in (*people().owners, *people().ids))
    names = {"/home/ann/photos/": "photos", "s3://bucket/a/b.tar": "b.tar", "digits": "digits"}
    assert {spec: _name_of(spec) for spec in names} == names


def test_a_tangent_part_has_no_partials() -> None:
    with pytest.raises(EffaceError, match="tangent part cannot be trained in shards"):
        Partial.make(fitted("tangent", people()), people(), "1/1")


def test_an_empty_shard_is_said(workspace: Workspace) -> None:
    with pytest.raises(EffaceError, match="no records"):
        Partial.make(workspace.model(), people()[:0], "9/9")


def test_nothing_is_overwritten(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    with pytest.raises(EffaceError, match="there already"):
        Partial.make(workspace.model(), people()[:3], "1/1").save(tmp_path / "part")
    assert not list((tmp_path / "part").iterdir())


@pytest.fixture
def folder(workspace: Workspace, tmp_path: Path) -> Path:
    Partial.make(workspace.model(), people(), "1/1").save(tmp_path / "part")
    return tmp_path / "part"


def test_sums_that_are_not_those_of_the_rows_are_refused(
    folder: Path, workspace: Workspace
) -> None:
    """Whoever lies consistently, digest and all, is found by the rows."""
    arrays = load_file(folder / "sums.safetensors")
    arrays["cross"][0, 3, 1] += 1
    save_file(arrays, folder / "sums.safetensors")
    with pytest.raises(FormatError, match="not those that were saved"):
        Partial.load(folder)
    values = json.loads((folder / "partial.json").read_text())
    from efface.parts.compact.statistics import Statistics

    values["statistics_digest"] = Statistics.from_arrays(arrays).digest()
    (folder / "partial.json").write_text(json.dumps(values))
    with pytest.raises(FormatError, match="its sums are not those of its rows"):
        Partial.load(folder).check(workspace.model())


def test_damaged_partials_are_named(folder: Path, tmp_path: Path) -> None:
    """Every file, cut short, emptied or full of other bytes: an error with a fix, no traceback."""
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    damages = (lambda b: b[: len(b) // 2], lambda b: b"", lambda b: bytes(reversed(b)))
    for i, (name, damage) in enumerate(itertools.product(names, damages)):
        copy = shutil.copytree(folder, tmp_path / f"damaged{i}")
        (copy / name).write_bytes(damage((copy / name).read_bytes()))
        with pytest.raises(EffaceError):
            Partial.load(copy).check(fitted("compact", people()[:0]))


@settings(max_examples=200)
@given(st.data())
def test_changed_values_never_pass(data: st.DataObject) -> None:
    """One number of the sums changed by any amount is found."""
    from efface.parts.compact.rows import Rows
    from efface.parts.compact.statistics import Statistics
    from efface.parts.compact.sums_check import agree

    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = generator.integers(-127, 128, (9, 6), dtype=np.int8)
    targets = generator.integers(-32767, 32768, (9, 3)).astype(np.int16)
    sums = Statistics(6, 3)
    sums.add(rows, targets)
    assert agree(sums, Rows(rows, targets))
    arrays = {name: array.copy() for name, array in sums.to_arrays().items()}
    name = data.draw(st.sampled_from(["gram", "cross"]))
    flat = arrays[name].reshape(-1)
    at = data.draw(st.integers(0, flat.size - 1))
    step = data.draw(st.integers(1, 2**40)) * data.draw(st.sampled_from([1, -1]))
    flat[at] += step
    try:
        changed = Statistics.from_arrays(arrays)
    except FormatError:
        return  # found even before
    assert not agree(changed, Rows(rows, targets))
