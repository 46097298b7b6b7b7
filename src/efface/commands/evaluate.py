"""``efface evaluate``: how often a model is right, class by class, and what it mixes up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.output import JsonFlag, ModelPath, TrustModule, cell, finish, percent, table

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface evaluate model digits[/bold]

Example: [bold]efface evaluate model photos/ --split user --json[/bold]"""

WORST = 5  # classes shown with what they were taken for


def evaluate(
    model: ModelPath,
    data: Annotated[str, typer.Argument(help="Labelled data, as for train.")],
    split: Annotated[str, typer.Option(help="core, user, test or all.")] = "test",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Accuracy on labelled data: overall, for each class, and the confusions of the worst classes."""
    from efface.commands.inputs import load_model, read_labelled

    loaded = load_model(model, trust_module)
    records = read_labelled(loaded, model, data, split)
    labels = [record.label for record in records]
    values = {
        "model": str(model),
        "split": split,
        **measure(labels, loaded.predict(records).tolist()),
    }
    finish(values, as_json=json, render=lambda console: _render(console, values))


def measure(labels: Sequence[str], predicted: Sequence[str]) -> dict[str, Any]:
    """Accuracy with its 95 % interval, each class's, and the worst classes' confusions."""
    pairs = Counter(zip(labels, predicted, strict=True))
    counts = Counter(labels)
    correct = sum(n for (label, guess), n in pairs.items() if label == guess)
    per_class = {
        name: {"num_records": n, "accuracy": pairs[name, name] / n}
        for name, n in sorted(counts.items())
    }
    return {
        "num_records": len(labels),
        "accuracy": correct / len(labels),
        "interval_95": wilson(correct, len(labels)),
        "per_class": per_class,
        "confusions": _confusions(pairs, per_class),
    }


def _confusions(
    pairs: Counter[tuple[str, str]], per_class: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """For the worst classes that have errors: what they were taken for, most often first."""
    imperfect = [name for name in per_class if per_class[name]["accuracy"] < 1]
    worst = sorted(imperfect, key=lambda name: (per_class[name]["accuracy"], name))[:WORST]
    return [
        {"class": name, "taken_for": guess, "num_records": n}
        for name in worst
        for (label, guess), n in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
        if label == name and guess != name
    ]


def wilson(correct: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval for a proportion: (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)."""
    p = correct / n
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _render(console: Console, values: dict[str, Any]) -> None:
    rows = table("class", "records", "accuracy", "taken for", right=(1, 2))
    for name, entry in values["per_class"].items():
        mixed = [c for c in values["confusions"] if c["class"] == name]
        taken = ", ".join(f"{c['taken_for']} × {c['num_records']}" for c in mixed)
        cells = (cell(name), str(entry["num_records"]), percent(entry["accuracy"]))
        rows.add_row(*cells, cell(taken))
    console.print(rows)
    low, high = values["interval_95"]
    console.print(
        f"accuracy {percent(values['accuracy'])} on {values['num_records']:,} {values['split']} "
        f"records (95 % interval {percent(low)} to {percent(high)})",
        style="bold",
        soft_wrap=True,
    )
