"""The paper's experiments at a size for tests: measured once, then only read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.places import ROOT
from typer.testing import CliRunner

from efface import reproduce
from efface.audit.methods import normal
from efface.audit.readouts import error
from efface.cli import app
from efface.commands.reproduce import FIGURE
from efface.data.records import Records
from efface.errors import EffaceError
from efface.network.device import TWIN
from efface.parts.tangent.primal import SharedRows
from efface.parts.tangent.user import TangentUser
from efface.reproduce import procedures
from efface.reproduce.bench import Bench, limited
from efface.reproduce.catalog import FIGURES
from efface.reproduce.present import present
from efface.reproduce.presets import PRESETS, resolve
from efface.reproduce.specimen import Specimen, specimen_of

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All figures on digits, tiny."""
    out = tmp_path_factory.mktemp("reproduce")
    result = RUNNER.invoke(app, ["reproduce", "all", "--preset", "tiny", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def small_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    cache = tmp_path_factory.mktemp("bench")
    return Bench("digits", "cnn", PRESETS["tiny"], cache, say=lambda text: None)


def test_reproduce_computes_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bench: Bench
) -> None:
    benches: list[Bench] = []

    def caught(bench: Bench, *rest: object) -> None:
        benches.append(bench)
        raise EffaceError("that is enough.", "")

    monkeypatch.setattr("efface.reproduce.run.measure", caught)
    words = ["reproduce", "speed", "--preset", "tiny", "--device", "cpu:0", "--out", str(tmp_path)]
    RUNNER.invoke(app, words)
    (bench,) = benches
    core = bench.new_core()
    assert core.place.device == TangentUser(core).operator.device == TWIN
    assert bench.settings == small_bench.settings | {"device": "cpu:0"}


def results(folder: Path, figure: str) -> dict:
    return json.loads((folder / f"{figure}.json").read_text())["results"]


def test_every_figure_has_numbers_drawings_and_a_verdict(folder: Path) -> None:
    text = (folder / "results.md").read_text()
    for name, figure in FIGURES.items():
        assert (
            results(folder, name).keys()
            == figure.parts(Bench("digits", "cnn", PRESETS["tiny"], folder / "cache")).keys()
        )
        assert list(folder.glob(f"{name}*.svg"))
        assert figure.claim in text
    assert (folder / "report.html").read_text().count("<svg") == len(list(folder.glob("*.svg")))


def test_the_solved_procedure_leaves_less_than_the_papers(folder: Path) -> None:
    found = results(folder, "info-vs-noise")
    solved, sgd = found["solved/0"], found["paper/0"]
    assert solved["distance_estimate"] < 1e-2 * sgd["distance_estimate"]
    for row in (solved, sgd):
        # ŵ is itself solved for
        assert row["distance_estimate"] <= row["distance_bound"] + row["reference_distance_bound"]


def test_a_class_is_forgotten_exactly_by_ours(folder: Path) -> None:
    found = results(folder, "forget-class")
    for name in ("retrained", "solved", "compact"):
        assert found[f"{name}/0"]["error_forgotten"] == 1.0
    assert found["original/0"]["error_forgotten"] < 0.5


def test_canaries_are_found_in_the_original_and_not_after_ours(folder: Path) -> None:
    found = results(folder, "readouts")
    assert found["original/0"]["canary_auc"] > 0.8
    assert found["solved/0"]["canary_auc"] < 0.75
    assert found["compact/0"]["canary_auc"] < 0.75


def test_nothing_is_measured_twice(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    result = RUNNER.invoke(app, ["reproduce", "all", "--preset", "tiny", "--out", str(folder)])
    assert result.exit_code == 0
    assert "expected time" not in result.output
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}


def test_other_settings_do_not_mix_with_old_results(folder: Path) -> None:
    result = RUNNER.invoke(
        app, ["reproduce", "l2", "--preset", "tiny", "--limit", "100", "--out", str(folder)]
    )
    assert result.exit_code == 2
    assert "other settings" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["figure-9"], "no figure"),
        (["all", "--preset", "huge"], "no preset"),
        (["all", "--draw-only"], "holds no results of"),
    ],
)
def test_bad_input_names_what_is_there(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.output


def test_drawing_needs_only_the_json(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    present(tmp_path)
    assert (tmp_path / "results.md").read_text() == (folder / "results.md").read_text()


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path) -> None:
    """In a folder full of files with likely names, on a path that begins with that folder."""
    names = [path.stem for path in Path(reproduce.__file__).parent.rglob("*.py")]
    for name in {*names, "reproduce", "laboratory", "common", "accuracy"} - {"__init__"}:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')")
        (tmp_path / "experiments").mkdir(exist_ok=True)
        (tmp_path / "experiments" / f"{name}.py").write_text("raise RuntimeError('imported')")
    shutil.copy(ROOT / "experiments" / "results" / "digits" / "l2.json", tmp_path)
    program = "import sys; sys.path.insert(0, ''); from efface.cli import main; main()"
    command = [sys.executable, "-c", program, "reproduce", "l2", "--draw-only", "--out", "."]
    source = Path(reproduce.__file__).parents[2]  # the efface that is tested, wherever it is from
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").is_file()


def test_requests_are_disjoint_user_records(small_bench: Bench) -> None:
    specimen = specimen_of(small_bench, small_bench.spot())
    everyone = np.concatenate([s.numpy() for s in specimen.sets])
    assert len(set(everyone)) == len(everyone)
    assert everyone.max() < specimen.scene.num_user
    assert len(specimen.sets) == small_bench.preset.requests


def test_a_run_equals_its_requests_one_by_one(small_bench: Bench) -> None:
    specimen = specimen_of(small_bench, small_bench.spot())
    twice = procedures.paper(2)
    run, method = twice.run(specimen), twice.choice(specimen)
    weights, left = specimen.weights, list(range(len(specimen.scene.train)))
    for positions in specimen.sets:
        gone = set(positions.tolist())
        index = specimen.scene.everyone[left]
        scene = specimen.scene.restricted(index, positions)
        weights = method(scene, weights).state
        left = [i for i in left if i not in gone]
    assert float((weights - run.state).norm()) <= 1e-9 * float(weights.norm())


def test_errors_under_noise_are_those_of_the_noisy_weights(small_bench: Bench) -> None:
    specimen = specimen_of(small_bench, small_bench.spot())
    samples, sigma = specimen.scene.test, 100 * specimen.guarantee.sigma
    for seed, found in enumerate(specimen.test_errors(specimen.weights, sigma)):
        noisy = specimen.weights + sigma * normal(len(specimen.weights), seed)
        wanted = error(specimen.scene.logits(noisy, samples), samples.labels)
        assert found == pytest.approx(wanted, abs=1.01 / len(samples))  # a tie may fall either way
        assert found > specimen.test_errors(specimen.weights)[0] + 0.1


def test_models_at_two_ridges_share_what_is_prepared(small_bench: Bench) -> None:
    first = Specimen(small_bench, small_bench.spot())
    second = Specimen(small_bench, small_bench.spot(mu=7.0))
    other = Specimen(small_bench, small_bench.spot(seed=1))
    rows = [specimen.scene.train.inputs for specimen in (first, second, other)]
    assert all(isinstance(one, SharedRows) for one in rows)
    assert rows[0].primal is rows[1].primal  # type: ignore[union-attr]
    assert rows[0].primal is not rows[2].primal  # type: ignore[union-attr]
    assert first.standing["slopes_in_half"] is False  # there is room for these few


def test_the_kept_weights_are_those_computed(small_bench: Bench) -> None:
    specimen = specimen_of(small_bench, small_bench.spot())
    again = Specimen(small_bench, small_bench.spot())
    assert again is not specimen
    assert (again.weights == specimen.weights).all()
    assert (again.retrained == specimen.retrained).all()


def test_a_limit_takes_equally_many_of_each_class() -> None:
    records = limited(Records.open("digits"), 100)
    counts = np.bincount(records.labels)
    assert len(records) == 100
    assert counts.max() - counts.min() <= 1


def test_the_forgotten_class_has_no_core_record(small_bench: Bench) -> None:
    core = small_bench.split(0.3, 0, whole_class=True).core
    assert len(core) > 0
    assert small_bench.forgotten_class not in {record.label for record in core}


def test_presets_resolve() -> None:
    for backbone in ("cnn", "hf:x"):  # nothing is judged on a part of the images, or on thumbnails
        for name in ("small", "paper"):
            preset = resolve(name, backbone)
            assert (preset.limit, preset.test_limit, preset.side) == (None, None, None)
    assert resolve("tiny", "cnn").limit == 250
    assert resolve("tiny", "cnn", limit=0, seeds=5).limit is None
    with pytest.raises(EffaceError, match="no preset"):
        resolve("none", "cnn")


def test_the_help_names_every_figure() -> None:
    assert FIGURE.replace(";", ",").split(", ")[: len(FIGURES)] == list(FIGURES)
