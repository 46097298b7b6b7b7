"""The experiment and benchmark scripts run from a shell and write what they say they write."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.places import ROOT, script

import efface

SOURCE = Path(efface.__file__).parents[1]  # a script gets the efface that is tested
RESULTS = sorted((ROOT / "benchmarks/results").rglob("*.json"))


outcome = script("benchmarks/outcome.py")


def run(script: str, *words: object) -> str:
    """In an empty folder: nothing may depend on where a script is called from."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, str(ROOT / script), *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("folder", ["experiments", "benchmarks"])
def test_no_script_takes_the_name_of_a_package(folder: str) -> None:
    """A script's own folder comes first on its path: a file called like a package would hide it."""
    scripts = {path.stem for path in (ROOT / folder).glob("*.py")}
    taken = sys.stdlib_module_names | set(importlib.metadata.packages_distributions())
    assert scripts
    assert not scripts & taken


def test_accuracy_compares_all_methods_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "accuracy.json"
    words = ("--data", "digits", "--features", 300, "--passes", 8, "--epochs", 2, "--out", out)
    table = run("experiments/accuracy.py", *words)
    results = json.loads(out.read_text())["results"]
    assert {"core/0", "last-layer/0", "compact/0", "fine-tune/0", "tangent/0"} == set(results)
    assert results["compact/0"]["accuracy"] > results["core/0"]["accuracy"]
    assert (
        "stopped short" in results["tangent/0"]["status"]
    )  # 8 passes do not solve it, and it says so
    before = out.read_bytes()
    assert run("experiments/accuracy.py", *words).splitlines()[-5:] == table.splitlines()[-5:]
    assert out.read_bytes() == before


def test_forgetting_says_who_meets_the_guarantee(tmp_path: Path) -> None:
    out = tmp_path / "forgetting.json"
    words = ("--data", "digits", "--features", 300, "--requests", 2, "--out", out)
    run("experiments/forgetting.py", *words)
    results = json.loads(out.read_text())["results"]
    last = {name.split("/")[0]: value["requests"][-1] for name, value in results.items()}
    assert last["compact"]["equals_retrained"]
    assert last["solved"]["passed"]
    assert not last["paper-0.999"]["passed"]
    # the solved weights are nearer to the retrained ones than those of the paper's SGD
    assert last["solved"]["distance_estimate"] < last["paper-0.9"]["distance_estimate"]


def test_the_recipe_is_chosen_on_core_data_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "recipe.json"
    words = ("--data", "digits", "--features", 300, "--whiten", 0, 0.75, "--out", out)
    table = run("experiments/recipe.py", *words)
    results = json.loads(out.read_text())["results"]
    assert {name.split(",")[0] for name in results} == {"last layer", "whiten 0", "whiten 0.75"}
    for values in results.values():
        assert max(values["accuracy"].values()) > 0.5  # chance is 1/10
        assert max(values["ruled"].values()) <= max(values["accuracy"].values()) + 0.02
    assert run("experiments/recipe.py", *words).splitlines()[-5:] == table.splitlines()[-5:]


def test_calibration_compares_core_data_with_none(tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    run("experiments/calibration.py", "--data", "digits", "--features", 0, 300, "--out", out)
    results = json.loads(out.read_text())["results"]
    assert {"0/core/core", "0/core/none", "300/random/core", "300/core/none"} <= set(results)
    assert all(values["accuracy"] > 0.8 for values in results.values())
    assert results["300/core/core"]["features"] > results["0/core/core"]["features"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("benchmarks/hessian_product.py", ("--batch", 4, "--rounds", 1)),
        ("benchmarks/hessian_product.py", ("--batch", 4, "--rounds", 1, "--layers", "final")),
        ("benchmarks/compact_requests.py", ("--features", 64, "--sizes", 200, 400, "--rounds", 1)),
        ("benchmarks/workspace.py", ("--features", 64, "--sizes", 200, 400, "--rounds", 1)),
        ("benchmarks/workers.py", ("--features", 64, "--shards", 2, "--workers", 1, 2)),
        (
            "benchmarks/slopes.py",
            ("--axis", "c", "--sizes", 3, 6, "--features", 64, "--records", 200, "--rounds", 1),
        ),
    ],
)
def test_benchmarks_have_one_form(script: str, words: tuple[object, ...]) -> None:
    has_one_form(json.loads(run(script, *words)))


def has_one_form(values: dict[str, Any]) -> None:
    assert outcome.wrong_form(values) == []
    assert values["environment"]["cpus"]
    assert values["limit"]["fraction_reached"] > 0


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_every_result_has_the_one_form(path: Path) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    assert outcome.wrong_form(values) == []
    assert outcome.wrong_form({**values, "ours": {}}) == ["nothing of ours was measured"]
    del values["ratios"]
    assert outcome.wrong_form({**values, "seconds": 1}) == [
        "no ratios",
        "seconds is no part of it",
        "ratios are not numbers by name",
    ]


def test_benchmarks_are_drawn_and_a_guard_that_is_not_kept_is_said(tmp_path: Path) -> None:
    words = ("--features", 64, "--classes", 4, "--sizes", 300, 500, "--rounds", 1)
    values = json.loads(run("benchmarks/after_deletion.py", *words))
    has_one_form(values)
    name = "scikit-learn Ridge / ours, n = 500"
    assert values["ratios"][name] > 0
    path = tmp_path / "after-deletion.json"
    path.write_text(json.dumps({**values, "guards": {name: 1e9}}))
    command = [sys.executable, str(ROOT / "benchmarks/run.py"), "--draw", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run([*command, "--check"], env=environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert name in done.stderr
    page = (tmp_path / "index.html").read_text()
    assert values["question"] in page
    assert f"{datetime.now(UTC):%Y-%m-%d}" in page.partition("<section")[0]
    assert values["environment"]["processor"] in page.partition("<section")[0]
    assert "<svg" in page


def test_the_costs_are_what_the_results_say() -> None:
    run("benchmarks/cost_model.py", "--check")


def test_the_table_of_deletions_is_what_the_results_say() -> None:
    run("benchmarks/deletion_table.py", "--check")


def test_every_benchmark_is_listed_and_those_that_make_bench_runs_are_marked() -> None:
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    rows = page.partition("| script | question |")[2].partition("\n\n")[0].splitlines()
    first = [row.split("|")[1] for row in rows if "`" in row]
    marked = {name for cell in first if "*" in cell for name in re.findall(r"`(\w+\.py)`", cell)}
    code = "import run; print(*(script for script, _ in {**run.QUICK, **run.FULL}.values()))"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True)
    assert marked == set(ran.stdout.split())
    named = set(re.findall(r"`(\w+\.py)`", page))
    helpers = {"growth", "transcript"}  # what others import, and nobody runs
    there = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    assert {Path(name).stem for name in there - named} == helpers


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
def test_the_shell_is_timed_from_outside(fresh: tuple[str, ...]) -> None:
    words = ("--images", 60, "--features", 40, "--classes", 3, "--requests", 2, *fresh)
    values = json.loads(run("benchmarks/shell.py", *words))
    has_one_form(values)
    assert values["setting"]["fresh"] == bool(fresh)
    values = values["details"]
    assert len(values["seconds"]) == 2
    assert values["least_seconds"] <= values["median_seconds"] <= values["most_seconds"]
    assert 0 < values["median_of_the_request"] < values["median_seconds"]


def test_a_request_with_a_kept_factor_is_timed_to_its_release_and_to_its_end() -> None:
    words = ("--images", 60, "--features", 40, "--classes", 3, "--requests", 2, "--warm")
    values = json.loads(run("benchmarks/shell.py", *words))
    has_one_form(values)
    for where in ("in process", "efface forget"):
        found = values["details"][where]
        assert 0 < found["published"] < found["done"]
        assert found["published"] <= found["most_published"]
    inside = values["details"]["in process"]
    assert 0 < inside["published_processors"] <= inside["processors"]
    assert values["limit"]["seconds"] == values["details"]["in memory"]["published"] > 0


def test_the_seconds_from_the_shell_are_those_that_were_measured() -> None:
    text = (ROOT / "benchmarks/results/shell.json").read_text(encoding="utf-8")
    requests, values = (json.loads(text)[name] for name in ("setting", "details"))
    said = (
        f"takes {values['median_seconds']:.2f} s",
        f"median of {requests['requests']}, "
        f"{values['least_seconds']:.2f} to {values['most_seconds']:.2f}",
    )
    for page in ("README.md", "benchmarks/README.md"):
        shown = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert [words for words in said if words not in shown] == []


def test_the_exports_on_the_page_are_those_that_were_measured() -> None:
    text = (ROOT / "benchmarks/results/exports.json").read_text(encoding="utf-8")
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    for name, found in json.loads(text)["details"]["formats"].items():
        size, seconds = f"{found['megabytes']} MB", f"{found['seconds']} s"
        assert f"| `--{name}` | {size} | {seconds} | {found['ran_with']} |" in page
        assert found["bit_equal"] is True
        assert found["largest_difference"] == 0


def test_photos_get_owners_that_are_drawn(tmp_path: Path) -> None:
    for split, count in (("train", 6), ("test", 3)):
        for label in "abc":
            folder = tmp_path / "source" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i}.JPG").write_bytes(f"{split} {label} {i}".encode())
    words = ("--classes", 2, "--train", 9, "--test", 4, "--people", 3)
    for name in ("one", "two"):
        run("benchmarks/owned_photos.py", tmp_path / "source", tmp_path / name, *words)
    listed = (tmp_path / "one/metadata.csv").read_text()
    assert listed == (tmp_path / "two/metadata.csv").read_text()
    rows = list(csv.DictReader(listed.splitlines()))
    assert {row["label"] for row in rows} == {"a", "b"}
    assert {row["owner"] for row in rows if row["split"] == "train"} <= {"u00", "u01", "u02"}
    assert [row["split"] for row in rows].count("test") == 4
    for row in rows:
        content = (tmp_path / "one" / row["file_name"]).read_text()
        assert content.startswith(f"{row['split']} {row['label']}")


def test_differencing_names_the_deleted_image_and_noise_hides_it(tmp_path: Path) -> None:
    out = tmp_path / "differencing.json"
    words = ("--data", "digits", "--features", 150, "--trials", 8, "--batches", 5, "--out", out)
    run("experiments/differencing.py", *words)
    rows = json.loads(out.read_text())["rows"]
    plain = next(row for row in rows if row["release"] == "plain" and row["batch"] == 1)
    assert plain["identified"]["informed"] == 1  # it knows what each deletion would have done
    assert plain["identified"]["outside"] >= 0.75
    drowned = [r for r in rows if r["release"] == "shaped" and r["size"] == 4 and r["batch"] == 1]
    assert drowned[0]["identified"]["informed"] <= 0.25
    assert drowned[0]["accuracy"] < plain["accuracy"]
    assert {row["batch"] for row in rows} == {1, 5}


def test_the_page_says_what_the_results_say() -> None:
    run("experiments/paper.py", "--check")


def test_finetuning_measures_the_core_and_the_whole_and_resumes(tmp_path: Path) -> None:
    words = ("--data", "digits", "--no-flip", "--least-crop", 0.7, "--folder", tmp_path / "runs")
    words += ("--epochs", 3, "--rates", 0.2, "--head-factor", 1, "--batch-size", 16)
    core, whole = tmp_path / "core.json", tmp_path / "all.json"
    run("experiments/finetuning.py", *words, "--share", "core", "--out", core)
    trials = json.loads(core.read_text())["results"]["choice/0"]["trials"]
    assert [trial["settings"] is None for trial in trials] == [True, False]
    run("experiments/finetuning.py", *words, "--share", "all", "--out", whole)
    before = whole.read_bytes()
    assert json.loads(before)["results"]["all/0"]["accuracy_own"] > 0.8  # chance is 1/10
    assert run("experiments/finetuning.py", *words, "--share", "all", "--out", whole) == ""
    assert whole.read_bytes() == before


def test_solving_counts_passes_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "solving.json"
    words = ("--data", "digits", "--each", 2, "--decays", 1e-2, "--passes", 60, "--out", out)
    run("experiments/solving.py", *words)
    results = json.loads(out.read_text())["results"]
    assert set(results) == {"each 2, decay 0.01, dual", "each 2, decay 0.01, cg"}
    for value in results.values():
        assert (value["images"], value["mu"]) == (20, 0.05)
        assert value["passes"] <= 60
    dual, plain = results["each 2, decay 0.01, dual"], results["each 2, decay 0.01, cg"]
    assert dual["status"] == "converged"
    assert dual["distance_bound"] <= 0.01 * dual["norm"]
    assert plain["distance_estimate"] < plain["distance_estimate_of_best_head"]
    near = plain["distance_estimate"] <= 0.01
    assert plain["status"] == ("converged" if near else "stopped short")
    assert run("experiments/solving.py", *words) == ""
