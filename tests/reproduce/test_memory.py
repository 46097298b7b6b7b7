"""What a spot needs is let go before the next one is made: on photos two of them do not fit into memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch

from efface.data.records import Records
from efface.network.core import Core
from efface.parts.tangent.primal import Primal
from efface.reproduce import bench as bench_module
from efface.reproduce.bench import Bench
from efface.reproduce.catalog import chosen
from efface.reproduce.figures import error_comparison, readouts
from efface.reproduce.presets import PRESETS
from efface.reproduce.run import measure
from efface.reproduce.specimen import Specimen, specimen_of


@pytest.fixture
def uncollected() -> Iterator[None]:
    """As in a long computation: it makes few objects, however large, so nobody looks for rings."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    preset = replace(PRESETS["tiny"], seeds=2)
    return Bench("digits", "cnn", preset, tmp_path / "cache", say=lambda text: None)


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> dict[type, WeakSet[Any]]:
    """Specimens, prepared samples and cores that were made from now on and are still there."""
    found: dict[type, WeakSet[Any]] = {}
    for kind in (Specimen, Primal, Core):
        made, init = WeakSet[Any](), kind.__init__

        def noting(self: Any, *a: Any, made: Any = made, init: Any = init, **o: Any) -> None:
            made.add(self)
            init(self, *a, **o)

        monkeypatch.setattr(kind, "__init__", noting)
        found[kind] = made
    return found


def test_a_specimen_and_all_that_figures_keep_of_it_are_gone_before_the_next_is_made(
    bench: Bench,
    living: dict[type, WeakSet[Any]],
    uncollected: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spots = [bench.spot(seed=seed) for seed in (0, 1)]
    assert readouts.reader(bench, spots[0]) is readouts.reader(bench, spots[0])
    assert readouts._worlds(bench, spots[0]) is readouts._worlds(bench, spots[0])
    assert specimen_of(bench, spots[0]).test_errors(specimen_of(bench, spots[0]).retrained)
    (first,) = living[Specimen]
    primals, tensor = list(living[Primal]), Bench.tensor
    assert first.primal in primals
    seen: list[tuple[int, int]] = []

    def counted(self: Bench, core: Core, records: Records) -> Any:
        seen.append((len(living[Specimen]), len(living[Primal])))
        return tensor(self, core, records)

    del first, primals
    monkeypatch.setattr(Bench, "tensor", counted)
    specimen_of(bench, spots[1])
    before, after = seen[0], seen[-1]
    assert before == (1, 1)  # itself, and the prepared samples that it may have shared
    assert after == (1, 1)  # those are its own now
    assert specimen_of(bench, spots[1]).primal in living[Primal]


def test_a_specimen_of_the_same_samples_takes_those_that_are_prepared(
    bench: Bench, living: dict[type, WeakSet[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    primal = specimen_of(bench, bench.spot()).primal
    read, tensor = [], Bench.tensor

    def counted(self: Bench, core: Core, records: Records) -> Any:
        read.append(len(records))
        return tensor(self, core, records)

    monkeypatch.setattr(Bench, "tensor", counted)
    other = specimen_of(bench, bench.spot(mu=2 * bench.mu))
    assert other.primal is primal
    assert len(other.scene.train) not in read  # their activations are not read a second time
    assert len(living[Specimen]) == 1


def test_figures_in_one_process_do_not_add_up(
    bench: Bench, tmp_path: Path, living: dict[type, WeakSet[Any]], uncollected: None
) -> None:
    most = dict.fromkeys(living, 0)

    def look(text: str) -> None:
        for kind, made in living.items():
            most[kind] = max(most[kind], len(made))

    measure(bench, chosen("error-comparison,readouts,l2"), tmp_path / "out", look)
    # Of prepared samples: those for training, the test samples, those of the time that was measured.
    assert most[Specimen] == 1
    assert most[Primal] <= 3
    assert most[Core] == 2  # one a seed


@pytest.mark.parametrize("part", [error_comparison.compact, error_comparison.fine_tuned])
def test_models_of_another_kind_do_not_wait_beside_prepared_samples(
    part: Callable[[Bench, int], object], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    specimen = specimen_of(bench, bench.spot())
    problem = specimen.scene.problem(specimen.scene.everyone)
    vector = torch.ones(problem.d, dtype=torch.float64)
    before = problem.product(vector)
    assert specimen.primal._kept
    tensor, held = bench_module.part_of, []

    def looking(*given: Any) -> Any:
        held.append(specimen.primal._kept)
        return tensor(*given)

    monkeypatch.setattr(bench_module, "part_of", looking)
    part(bench, 0)
    assert not any(held)
    assert specimen.primal._kept is None
    assert torch.equal(problem.product(vector), before)  # they are prepared again


def test_few_networks_are_kept(
    bench: Bench, living: dict[type, WeakSet[Any]], uncollected: None
) -> None:
    for seed in range(2 * bench_module.CORES):
        bench.core(0.3, seed)
    gc.collect()  # torch's modules are rings
    assert len(living[Core]) == bench_module.CORES
