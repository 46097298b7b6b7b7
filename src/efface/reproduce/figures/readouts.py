"""All readouts of all methods after ten requests of 1 %, against the retrained model's band."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from efface.audit.attacks import ATTACKS, Worlds, build_worlds, play
from efface.audit.methods import Method, normal, own_method
from efface.audit.readouts import Relearn
from efface.audit.scene import Scene
from efface.audit.study import Reader
from efface.report.figures import Band, bars
from efface.report.html import Table
from efface.reproduce import procedures
from efface.reproduce.bench import Bench, Spot
from efface.reproduce.figure import (
    Drawing,
    PaperFigure,
    Results,
    Values,
    by_name,
    judged,
    mean,
    percent,
    seeds,
    short,
    spread,
    three_solves,
)
from efface.reproduce.figures.info_vs_noise import sgd_passes
from efface.reproduce.procedures import Procedure
from efface.reproduce.specimen import Specimen, specimen_of

READOUTS = (
    ("error_retained", "error, retained", True),
    ("error_forgotten", "error, forgotten", True),
    ("error_test", "error, test", True),
    ("relearn", "relearn time (steps)", False),
    ("distance_forgotten", "activation distance, forgotten", False),
    ("distance_test", "activation distance, test", False),
    ("entropy_attack", "entropy attack", True),
    ("canary_auc", "canary attack (AUC)", False),
)


def runs(bench: Bench) -> dict[str, Procedure]:
    epochs = bench.paper_epochs
    return {
        "original": procedures.ORIGINAL,
        "fisher": procedures.FISHER,
        "fine-tune": procedures.fine_tuned(epochs),
        "paper": procedures.paper(epochs),
        "paper-0.999": procedures.paper_as_printed(epochs),
        "solved": procedures.SOLVED,
    }


def parts(bench: Bench, whole_class: bool = False) -> dict[str, Callable[[], Values]]:
    found: dict[str, Callable[[], Values]] = {}
    for seed in seeds(bench):
        spot = bench.spot(seed=seed, whole_class=whole_class)
        found[f"retrained/{seed}"] = partial(retrained, bench, spot)
        for name, procedure in runs(bench).items():
            found[f"{name}/{seed}"] = partial(measure, bench, spot, procedure)
        found[f"compact/{seed}"] = partial(compact, bench, spot)
    return found


def reader(bench: Bench, spot: Spot) -> Reader:
    specimen = specimen_of(bench, spot)
    relearn = Relearn(max_iterations=bench.preset.relearn, seed=spot.seed)
    return specimen.beside(
        "reader",
        lambda: Reader(specimen.forgotten, specimen.weights, relearn, specimen.retrained),
    )


def retrained(bench: Bench, spot: Spot) -> Values:
    """The minimiser, with the noise of a release: what the others are held against."""
    specimen = specimen_of(bench, spot)
    noisy = _noisy(specimen, specimen.retrained, 1)
    return _read(bench, spot, specimen.retrained, noisy) | specimen.standing


def measure(bench: Bench, spot: Spot, procedure: Procedure) -> Values:
    specimen = specimen_of(bench, spot)
    run = procedure.run(specimen)
    released = run.release if procedure.released else _noisy(specimen, run.state, 0)
    values = _read(bench, spot, run.state, released)
    values |= {key: float(np.mean([s[key] for s in run.steps])) for key in ("passes", "seconds")}
    if bench.preset.canaries and not spot.whole_class:
        values |= canaries(_worlds(bench, spot), procedure.choice(specimen), spot.seed)
    return values


def _noisy(specimen: Specimen, state: torch.Tensor, seed: int) -> torch.Tensor:
    """The release: the state and noise of the planned σ."""
    return state + specimen.guarantee.sigma * normal(len(state), 1000 * specimen.spot.seed + seed)


def _read(bench: Bench, spot: Spot, state: torch.Tensor, released: torch.Tensor) -> Values:
    return reader(bench, spot).values(released, state)


def canaries(worlds: Worlds, method: Method, seed: int) -> Values:
    """The one-run audit: mislabelled canaries, each in with probability ½, all forgotten at once.

    AUC of the white-box attack (projection of the weights); 0.5 is chance.
    """
    verdict = ATTACKS["white-box"].verdict(play(worlds, method, seed=seed))
    return {"canary_auc": verdict.auc, "canary_epsilon_bound": verdict.epsilon_bound}


def _worlds(bench: Bench, spot: Spot) -> Worlds:
    specimen, count = specimen_of(bench, spot), bench.preset.canaries

    def make() -> Worlds:
        seed = spot.seed + 1
        return build_worlds(specimen.scene, 1, count, seed=seed, mislabelled=True, base_share=1.0)

    return specimen.beside("worlds", make)


def compact(bench: Bench, spot: Spot) -> Values:
    """The exact method on the compact user part, against that part's own retrained model."""
    model, specimen = bench.compact_model(spot), specimen_of(bench, spot)
    gone = torch.cat(specimen.sets)
    scene = Scene.of(model, gone.numpy(), bench.core_and_data(spot)[1].test)
    relearn = Relearn(max_iterations=bench.preset.relearn, seed=spot.seed)
    own = Reader(scene, scene.solve(scene.everyone), relearn)
    method = own_method(scene.kind)
    values = own.read(method, spot.seed) | {"passes": 0.0}
    if bench.preset.canaries and not spot.whole_class:
        count = bench.preset.canaries
        worlds = build_worlds(scene, 1, count, seed=spot.seed + 1, mislabelled=True, base_share=1.0)
        values |= canaries(worlds, method, spot.seed)
    return values


def passes(bench: Bench) -> float:
    e, each = bench.paper_epochs, bench.preset.relearn * 0.3 + 20
    sgd = 3 * sgd_passes(bench, e)
    return bench.preset.seeds * (60 + sgd + 8 * each + (150 if bench.preset.canaries else 0))


def solves(bench: Bench) -> float:
    """With canaries there is a world to train, too, and one to solve a request in."""
    return three_solves(bench) + (2 * bench.preset.seeds if bench.preset.canaries else 0)


TITLES = {
    "retrained": "retrained",
    "original": "original",
    "fisher": "Fisher noise",
    "fine-tune": "fine-tune",
    "paper": "paper, 0.9",
    "paper-0.999": "paper, 0.999",
    "solved": "solved",
    "compact": "compact",
}


def draw(results: Results) -> list[Drawing]:
    found, drawings = by_name(results), []
    for key, title, as_percent in READOUTS:
        names = [n for n in TITLES if n in found and key in found[n][0] and n != "retrained"]
        if not names:
            continue
        values = [mean(found[n], key) for n in names]
        errors = [spread(found[n], key) for n in names]
        band = None
        if key in found["retrained"][0]:
            middle, room = mean(found["retrained"], key), spread(found["retrained"], key)
            room = max(
                room, 0.004 * max([*values, middle, 1e-9])
            )  # a line, where there is no spread
            band = Band(middle - room, middle + room, "retrained")
        labels = [TITLES[n] for n in names]
        svg = bars(
            labels, values, errors=errors, band=band, ylabel=title, percent=as_percent, title=title
        )
        drawings.append(
            Drawing(
                svg,
                f"{title}; the band is the retrained tangent model (compact has its own).",
                key.replace("_", "-"),
            )
        )
    return drawings


def table(results: Results) -> Table:
    columns = ("method", *(title for _, title, _ in READOUTS), "nats (measured)")
    rows = []
    for name in TITLES:
        values = by_name(results).get(name)
        if values:
            cells = [_cell(values, key, p) for key, _, p in READOUTS]
            nats = short(mean(values, "information_nats_estimate"))
            rows.append((TITLES[name], *cells, nats))
    return Table(columns, rows, numeric=tuple(range(1, len(columns))))


def _cell(values: list[Values], key: str, as_percent: bool) -> str:
    if key not in values[0]:
        return "–"
    return percent(values, key) if as_percent else short(mean(values, key))


def verdict(results: Results) -> str:
    found = by_name(results)
    paper, band = found["paper"], found["retrained"]
    pairs = [
        f"{title} {_cell(paper, key, p)} against {_cell(band, key, p)}"
        for key, title, p in READOUTS
        if key in ("error_forgotten", "relearn", "entropy_attack")
    ]
    slow = mean(paper, "relearn") >= 0.5 * mean(band, "relearn")
    near = abs(mean(paper, "error_forgotten") - mean(band, "error_forgotten")) <= 0.1
    hidden = mean(paper, "canary_auc") < 0.6 if "canary_auc" in paper[0] else True
    word = judged(results, slow and near and hidden, slow and near)
    text = f"{word} The paper's forgetting against the retrained model: {', '.join(pairs)}."
    if "canary_auc" in paper[0]:
        aucs = {n: mean(found[n], "canary_auc") for n in ("original", "paper", "solved", "compact")}
        text += (
            f" A stronger attack (canaries, AUC): original {aucs['original']:.3f}, the paper's forgetting "
            f"{aucs['paper']:.3f}, solved {aucs['solved']:.3f}, compact {aucs['compact']:.3f}; 0.5 is chance."
        )
    return text


FIGURE = PaperFigure(
    "readouts",
    "Readouts of all methods against the retrained model",
    "After ML-forgetting no readout tells the model from one that was retrained; other methods are told.",
    parts,
    passes,
    solves,
    draw,
    table,
    verdict,
)
