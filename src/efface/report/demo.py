"""The demo's page: draws what ``efface.pipeline.demo`` measured, and computes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from efface.data.records import Records
from efface.report.figures import Line, Scale, bars, lines
from efface.report.html import Card, Figure, HowToCheck, Report, Section, Table, duration
from efface.report.images import Thumbnail, image_grid


def demo_report(
    records: Records, predicted: list[str], values: dict[str, Any], out: Path
) -> Report:
    """One page: the data, the models, the requests, the mistakes, and how to check it all."""
    accuracy = values["accuracy"]
    return Report(
        title="A classifier that can forget",
        subtitle=(
            "The efface demo: a small network learns handwritten digits from people's images, "
            "in a form that lets their images be taken out again."
        ),
        cards=[
            Card("core model", _percent(accuracy["core"]), "core data only, never forgotten"),
            Card("last layer refitted", _percent(accuracy["last_layer"]), "the plain alternative"),
            Card("mixed-linear model", _percent(accuracy["user"]), "core + linear user part"),
            Card(
                "one person forgotten in",
                duration(values["requests"][0]["seconds"]),
                "exactly: the digests below are equal",
            ),
            Card("accuracy afterwards", _percent(accuracy["after"]), "retrained: the same"),
            Card("time", f"{values['seconds']:.0f} s", "all of it, on one CPU thread"),
        ],
        sections=[
            _data_section(records, values["owner"]),
            _accuracy_section(records, values),
            _solve_section(values),
            _requests_section(values),
            _errors_section(records, predicted),
        ],
        checks=_checks(out),
        digests={
            "core weights (SHA-256)": values["core_digest"],
            "statistics after forgetting": values["digests"]["forgotten"],
            "statistics of a model never given them": values["digests"]["retrained"],
        },
        made=datetime.now(UTC),
        subject=f"{len(records):,} handwritten digits; the model in {out / 'model'}",
    )


def _data_section(records: Records, owner: str) -> Section:
    owned = records.user.select(owner=owner)
    pictures = [Thumbnail(record.image(), f"“{record.label}”") for record in owned]
    rows: list[tuple[str | int, ...]] = [
        ("core", len(records.core), "–", "trains the core; is never forgotten"),
        (
            "user",
            len(records.user),
            len(set(records.user.owners)),
            "fits the user part; can be forgotten",
        ),
        ("test", len(records.test), "–", "measures; is never trained on"),
    ]
    return Section(
        "The data",
        prose=(
            f"The {len(records):,} images of 8 × 8 pixels come with scikit-learn. They are split by a "
            "fixed hash, and the user images are dealt out to people who do not exist, so that there "
            "is somebody to forget."
        ),
        tables=[Table(("split", "images", "people", "purpose"), rows, numeric=(1, 2))],
        figures=[
            Figure(
                image_grid(pictures, columns=15, side=44, title=f"the images of {owner}"),
                f"All {len(owned)} images of one person, `{owner}`.",
                wide=True,
            )
        ],
    )


def _accuracy_section(records: Records, values: dict[str, Any]) -> Section:
    accuracy, n = values["accuracy"], len(records.test)
    what = {
        "core": ("core", "cross-entropy on core data"),
        "last_layer": ("last layer", "ridge regression on the core's 32 features"),
        "tangent": ("tangent", "ridge on the whole gradient of the last block: the paper's model"),
        "user": (
            "compact",
            "ridge on features and their moments, in exact integers: efface's default",
        ),
    }
    scores = [accuracy[key] for key in what]
    errors = [(score * (1 - score) / n) ** 0.5 for score in scores]
    rows = [
        (what[key][0], what[key][1], _percent(accuracy[key]), f"± {100 * error:.1f}")
        for key, error in zip(what, errors, strict=True)
    ]
    svg = bars(
        [name for name, _ in what.values()],
        [1 - score for score in scores],
        errors=errors,
        ylabel="test error",
        percent=True,
        highlight=3,
        title="test error of the four models",
    )
    return Section(
        "Four models",
        prose=(
            "A mixed-linear model adds to the core's output a user part that is linear in its weights. "
            "So the best weights are unique and can be computed: that is what makes forgetting a matter "
            "of arithmetic. The last three models were fitted on core and user images, with the "
            "settings printed in `config.toml`; the ridge of the compact model was chosen on core data. "
            "One seed, one split: differences of a point are noise."
        ),
        tables=[Table(("model", "trained by", "accuracy", "std. error"), rows, numeric=(2, 3))],
        figures=[
            Figure(svg, f"Share of the {n} test images that are misread, ± one standard error.")
        ],
    )


def _solve_section(values: dict[str, Any]) -> Section:
    solution = values["solution"]
    history = solution["history"]
    curve = Line("conjugate gradients", range(1, len(history) + 1), history)
    svg = lines(
        [curve],
        Scale("pass over the training data", low=0),
        Scale("gradient norm", log=True),
        title="gradient norm against passes over the data",
    )
    return Section(
        "The tangent model's solve",
        prose=(
            f"Conjugate gradients {solution['status']} after {solution['passes']:.0f} passes. The "
            f"gradient of the loss on the final weights, computed anew in double precision, has norm "
            f"{solution['residual_norm']:.2g}. With a ridge of {values['mu']:g} the weights, of length "
            f"{solution['weights_norm']:.3g}, are then provably within "
            f"{solution['distance_bound']:.2g} of the one minimiser."
        ),
        figures=[
            Figure(svg, "Each point is one pass. The curve may rise: CG minimises the error.")
        ],
    )


def _requests_section(values: dict[str, Any]) -> Section:
    rows: list[tuple[str | int, ...]] = [
        (
            entry["title"],
            entry["method"],
            entry["num_forgotten"],
            duration(entry["seconds"]),
            f"{entry['passes']:.0f}",
            entry["verdict"],
        )
        for entry in values["requests"]
    ]
    equal = values["digests"]["forgotten"] == values["digests"]["retrained"]
    shown = values["differencing"]
    head = ("request", "method", "images", "time", "passes", "certificate")
    return Section(
        "The requests",
        prose=(
            f"`{values['owner']}` asks to be forgotten. **compact** subtracts the person's integers from "
            "its statistics and solves again. A second model was trained without these images from the "
            f"start: the SHA-256 digests of the two are {'**equal**' if equal else '**NOT equal**'} "
            "(they stand at the foot of this page). **tangent** solves again until the measured "
            "gradient proves that, with the noise added, nobody can tell it from a retrained model "
            "better than ε says. **paper** is the published procedure, three epochs of SGD, held to the "
            "same standard; where it misses, nothing is released, and the table says by how much.\n\n"
            "Exact is about one release. Somebody who kept the one before the request as well compares the "
            f"two models' answers, and finds **{shown['found']} of the {shown['deleted']} deleted images** "
            f"among {shown['candidates']} candidates, knowing nobody else. No certificate covers that.\n\n"
            f"{values['class_story']}"
        ),
        tables=[Table(head, rows, numeric=(2, 3, 4))],
    )


def _errors_section(records: Records, predicted: list[str]) -> Section:
    wrong = [
        Thumbnail(record.image(), f"{record.label} → {guess}", marked=True)
        for record, guess in zip(records.test, predicted, strict=True)
        if guess != record.label
    ]
    return Section(
        "What it still gets wrong",
        figures=[
            Figure(
                image_grid(wrong, columns=12, side=52, title="misread test images"),
                f"All {len(wrong)} misread test images: label → prediction.",
                wide=True,
                instead=f"It misreads none of the {len(records.test)} test images.",
            )
        ],
    )


def _checks(out: Path) -> list[HowToCheck]:
    model = out / "model"
    return [
        HowToCheck(
            "Measure the accuracy of the saved model again.", f"efface evaluate {model} digits"
        ),
        HowToCheck(
            "Train it again from the same settings, in a folder of your own.",
            f"efface train --config {out / 'config.toml'} --out my-model",
        ),
        HowToCheck("The measured values behind this page are in `demo.json` beside it."),
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
