"""The page of an audit or a comparison: draws what ``efface.audit`` measured, and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from efface.audit.methods import REFERENCE, Prominence, own_method, prominent
from efface.report.figures import Band, Line, Point, Scale, bars, histograms, lines, scatter
from efface.report.html import Card, Figure, HowToCheck, Report, Section, Table, duration

SETS = ("retained", "forgotten", "test")
FEW_BARS = 5  # more need a row for themselves
FLOOR = 1e-3  # of rates on logarithmic axes
BARS = (  # readout, label of the axis, caption, in percent
    ("error_forgotten", "error", "Error on the forgotten records", True),
    ("error_test", "error", "Error on the test records", True),
    ("distance_forgotten", "distance", "Activation distance on the forgotten records", False),
    ("relearn_relative", "relearn time", "Relearn time, in that of the retrained model", False),
    ("entropy_attack", "called members", "Forgotten records called members, by entropy", True),
)


def audit_report(values: dict[str, Any], title: str, command: str, subject: str) -> Report:
    """One page: verdict, readouts beside the retrained band, attacks, and how to repeat it."""
    methods = values["methods"]
    sections = [_readout_section(values), _bars_section(methods)]
    if any(m["attacks"] for m in methods.values()):
        sections.append(_attack_section(methods, "attacks", "Attacks over many models"))
        sections.append(_curve_section(methods, values["strongest"]))
    if any(m["canary"] for m in methods.values()):
        sections.append(_attack_section(methods, "canary", "One run with canaries"))
    sections.append(_information_section(methods))
    if "served" in values:
        sections.insert(0, _served_section(values))
    return Report(
        title=title,
        subtitle=(
            f"{values['num_forgotten']} of {values['num_user']:,} user records must go; "
            f"{values['user']} user part, {values['num_weights']:,} weights."
        ),
        cards=_cards(values),
        sections=sections,
        checks=[
            HowToCheck("Measure everything again.", command),
            HowToCheck("All numbers behind this page are in the JSON file beside it."),
        ],
        made=datetime.now(UTC),
        subject=subject,
    )


def _share(value: float) -> str:
    """What people read as a share, and as a power of ten what is too small for that."""
    return f"{100 * value:.3g} %" if value >= 1e-3 or value == 0 else f"{value:.1e}"


def _cards(values: dict[str, Any]) -> list[Card]:
    refuted = values["contradictions"]
    cards = [
        Card(
            "claims contradicted",
            str(len({c["method"] for c in refuted})) if refuted else "none",
            ", ".join(sorted({c["method"] for c in refuted})) or "by any attack here",
        )
    ]
    if "served" in values:
        left = values["served"]["influence"]
        note = f"in the served weights; {left['resolution']:.0e} can be told"
        cards.insert(0, Card("influence left", _share(left["share"]), note))
    for name in prominent(Prominence.CARD):
        best = values["strongest"].get(name)
        if best is not None:
            chance = "chance" if best["at_chance"] else "not chance"
            note = f"{best['attack']}, {best['game']}: {chance}"
            cards.append(Card(f"strongest attack on {name}", f"AUC {best['auc']:.3f}", note))
    cards.append(Card("time", f"{values['seconds']:.0f} s", "all of it"))
    return cards


def _readout_section(values: dict[str, Any]) -> Section:
    errors, others = [], []
    for name, method in values["methods"].items():
        r = method["readouts"]
        errors.append((name, *(_spread(r[f"error_{s}"], percent=True) for s in SETS)))
        distances = (_spread(r[f"distance_{s}"]) for s in SETS)
        seconds = duration(r["seconds"]["mean"])
        rest = (_spread(r["relearn"]), _spread(r["entropy_attack"], percent=True), seconds)
        others.append((name, *distances, *rest))
    rest_head = (*(f"dist. {s}" for s in SETS), "relearn", "entropy", "time")
    seeds = values["settings"]["seeds"]
    return Section(
        "Readouts",
        prose=(
            "What the model shows of the forgotten records. **An ideal method has the values of the "
            "retrained model**, on every set, not the best ones. Distances are between softmax outputs "
            "and those of the retrained model. Relearn time is the number of SGD steps until nine tenths "
            "of the loss that forgetting cost on the forgotten records is made up again; at "
            f"{values['settings']['relearn']} it was stopped. {_runs(seeds)}"
        ),
        tables=[
            Table(("method", *(f"error, {s}" for s in SETS)), errors, numeric=(1, 2, 3)),
            Table(("method", *rest_head), others, numeric=tuple(range(1, 7))),
        ],
    )


def _bars_section(methods: Mapping[str, Any]) -> Section:
    drawn = []
    wide = len(methods) > FEW_BARS
    names, exact = list(methods), own_method("compact").name
    for key, label, caption, percent in BARS:
        spreads = [methods[name]["readouts"][key] for name in names]
        band = None
        if REFERENCE in methods:
            r = methods[REFERENCE]["readouts"][key]
            band = Band(r["mean"] - r["std"], r["mean"] + r["std"], "retrained, ± 1 std")
        svg = bars(
            names,
            [s["mean"] for s in spreads],
            errors=[s["std"] for s in spreads],
            band=band,
            ylabel=label,
            title=caption,
            percent=percent,
            highlight=names.index(exact) if exact in names else None,
        )
        note = f"{caption}; inside the band is as if retrained."
        instead = f"{caption}: 0 with every method, the retrained model included."
        drawn.append(Figure(svg, note, wide=wide, instead=instead))
    return Section("Beside the retrained band", figures=drawn)


def _attack_section(methods: Mapping[str, Any], game: str, heading: str) -> Section:
    names = list(next(m[game] for m in methods.values() if m[game]))
    head = ("method", *names, "TPR .1 %", "TPR 1 %", "ε ≥", "ε ≤")
    rows = []
    for name, method in methods.items():
        found = method[game]
        covered = [v for v in found.values() if v["covered"]]
        claimed = method["claimed_epsilon"]
        rows.append(
            (
                name,
                *(_auc(found[n]) for n in names),
                _percent(max(v["tpr"]["0.001"] for v in covered)),
                _percent(max(v["tpr"]["0.01"] for v in covered)),
                f"{max(v['epsilon_bound'] for v in covered):.2f}",
                "–" if claimed is None else f"{claimed:.2f}",
            )
        )
    return Section(
        heading,
        prose=(
            "Each target was in the data with probability ½, and forgotten if it was; the attack tells "
            "which. Under each attack's name is its AUC: 0.5 is chance; a value marked * lies outside the "
            "95 % interval of pure chance (one in twenty does by accident). TPR at an FPR of 0.1 and 1 %, "
            "and ε ≥ (95 %), are those of the best attack on the released model alone; ε ≤ is claimed. "
            "**difference** compares the releases before and after the request, which no certificate "
            "covers: exact forgetting does not help against somebody who kept the old model."
        ),
        tables=[Table(head, rows, numeric=tuple(range(1, len(head))))],
    )


def _curve_section(methods: Mapping[str, Any], best: Mapping[str, Any]) -> Section:
    """ROC curves and scores of the strongest attack on each method."""
    curves, histories = [], []
    for name in prominent(Prominence.CURVE):
        chosen = best.get(name)
        if chosen is None:
            continue
        verdict, attack = methods[name][chosen["game"]][chosen["attack"]], chosen["attack"]
        x = [max(v, FLOOR) for v in verdict["fpr"]]
        curves.append(Line(f"{name}: {attack}", x, [max(v, FLOOR) for v in verdict["tprs"]]))
        if name in prominent(Prominence.CARD):
            both = [np.asarray(verdict[side]) for side in ("members", "others")]
            scale = max(float(np.abs(np.concatenate(both)).max()), 1e-300)
            named = dict(zip(("was in, forgotten", "never in"), both, strict=True))
            svg = histograms(
                {key: (values / scale).tolist() for key, values in named.items()},
                xlabel=f"score of {attack}, {name}",
            )
            text = f"Scores of {attack} against **{name}**; forgotten if both look alike."
            histories.append(Figure(svg, text))
    drawn = lines(
        curves,
        Scale("false positive rate", log=True, low=FLOOR, high=1.0),
        Scale("true positive rate", log=True, low=FLOOR, high=1.0),
        diagonal=True,
        height=4.2,
        title="ROC of the strongest attack on each method",
    )
    caption = "The attack furthest from chance on each method. On the dotted line it is guessing."
    return Section("Attack curves", figures=[Figure(drawn, caption), *histories])


def _information_section(methods: Mapping[str, Any]) -> Section:
    points = []
    for name, method in methods.items():
        r = method["readouts"]
        nats = r["information_nats_estimate"]["mean"]
        points.append(Point(name, max(nats, 1e-8), 1 - r["error_test"]["mean"]))
    svg = scatter(
        points,
        Scale("information left (nats, at the certificate's noise)", log=True),
        Scale("test accuracy", percent=True),
        title="information left against accuracy",
        height=4.0,
    )
    return Section(
        "Information against accuracy",
        prose=(
            "‖w − w_r‖²/(2σ²): what the weights could tell about the forgotten records if noise of the "
            "certificate's σ were added to them; measured against an actual retrain (values below 1e-8 "
            "are drawn there)."
        ),
        figures=[Figure(svg, "The upper left corner is where one wants to be.")],
    )


def _served_section(values: dict[str, Any]) -> Section:
    served = values["served"]
    rows = [(key.replace("_", " "), _number(value)) for key, value in served["readouts"].items()]
    held = served["held"]
    if held is None:
        verdict = "There is no certificate to hold it against."
    elif held["kept"]:
        verdict = "Its weights keep the certificate."
    else:
        verdict = "**Its weights contradict the certificate.**"
    shown = values["differencing"]
    difference = (
        f"Somebody who kept the release before the request identifies **{shown['found']} of the "
        f"{shown['deleted']} deleted images** among {shown['candidates']} candidates by comparing the two "
        f"releases' answers, nobody else known ({shown['by_chance']:.2g} by chance). Exact forgetting does "
        "not help against that, and no certificate covers it."
    )
    return Section(
        "The served model",
        prose=(
            f"The published weights, against a model retrained without the records. {verdict} {difference}"
        ),
        tables=[Table(("readout", "value"), rows, numeric=(1,))],
    )


def _runs(seeds: int) -> str:
    return f"Mean ± standard deviation of {seeds} runs." if seeds > 1 else "One run."


def _spread(spread: Mapping[str, float], percent: bool = False) -> str:
    factor, unit = (100, " %") if percent else (1, "")
    text = f"{factor * spread['mean']:.3g}"
    if spread["num"] > 1 and spread["std"] > 0:
        text += f" ± {factor * spread['std']:.2g}"
    return text + unit


def _auc(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['auc']:.3f}" + ("" if verdict["at_chance"] else " *")


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _number(value: float) -> str:
    return f"{value:.4g}"
