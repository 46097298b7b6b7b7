"""What a bench takes from files, and how it tells the time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from efface.network.core import Core
from efface.reproduce import bench as bench_module
from efface.reproduce import run as run_module
from efface.reproduce.bench import Bench, dots
from efface.reproduce.catalog import FIGURES
from efface.reproduce.figure import PaperFigure
from efface.reproduce.presets import PRESETS
from efface.reproduce.run import LOOKS, Pace, expected, pace
from efface.reproduce.specimen import Specimen


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("digits", "cnn", PRESETS["tiny"], tmp_path / "cache", say=lambda text: None)


def test_activations_of_a_cached_prefix_stay_in_its_file(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = bench.core(0.3)
    some = bench.records[slice(0, 20)]

    def kept(self: Bench, core: Core) -> object:
        return core.cache(tmp_path / "rows")

    monkeypatch.setattr(Bench, "activation_cache", kept)
    rows = bench.rows(core, some)
    assert not isinstance(rows, torch.Tensor)
    assert torch.equal(rows[slice(0, 20)], bench.tensor(core, some))
    assert torch.equal(bench.tensor(core, some), core.activations(some)[slice(0, 20)])


def test_a_smaller_ridge_has_a_larger_budget(bench: Bench) -> None:
    usual = Specimen(bench, bench.spot())
    assert usual.passes == bench.preset.passes
    assert Specimen(bench, bench.spot(mu=bench.mu / 100)).passes == 10 * bench.preset.passes
    assert Specimen(bench, bench.spot(mu=100 * bench.mu)).passes == bench.preset.passes


def test_a_long_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr(bench_module.time, "monotonic", lambda: now[0])
    progress = dots(said.append)
    for fraction, at in ((0.0, 1.0), (0.05, 2.0), (0.11, 3.0), (0.12, 4.0), (0.13, 200.0)):
        now[0] = at
        progress(fraction, f"at {at:g} s")
    assert [text.split(" at ")[1] for text in said] == ["1 s", "3 s", "200 s"]


def test_a_solved_request_says_how_it_stands(tmp_path: Path) -> None:
    said = list[str]()
    bench = Bench("digits", "cnn", PRESETS["tiny"], tmp_path / "cache", say=said.append)
    specimen = Specimen(bench, bench.spot())
    assert specimen.weights.any()
    said.clear()
    specimen.at_once("solved", lambda own: own.solving)
    assert said[0].startswith("solved: all requests as one")
    assert any("residual" in text for text in said[1:])


def test_the_expected_time_is_of_what_is_missing(bench: Bench) -> None:
    figure = FIGURES["l2"]
    parts = list(figure.parts(bench))
    whole = 2.0 * figure.passes(bench) + 7.0 * LOOKS * figure.solves(bench)
    assert expected(figure, bench, Pace(2.0, 7.0), parts) == pytest.approx(whole)
    half = expected(figure, bench, Pace(2.0, 7.0), parts[: len(parts) // 2])
    assert half == pytest.approx(whole * (len(parts) // 2) / len(parts))
    assert expected(figure, bench, Pace(2.0, 7.0), []) == 0


def test_a_pass_and_a_look_are_timed_for_all_images(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 3))  # every call of it is 3 seconds later
    monkeypatch.setattr(run_module.time, "monotonic", lambda: float(next(clock)))
    found = pace(bench)
    n = len(bench.records) - len(bench.records.test)
    assert found.each == pytest.approx(3.0 / min(n, run_module.SOME) * n)
    assert found.look == pytest.approx(3.0 / run_module.FEW * n)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_every_figure_knows_what_it_solves(figure: PaperFigure, bench: Bench) -> None:
    assert figure.solves(bench) >= 1
    assert figure.passes(bench) > 0
