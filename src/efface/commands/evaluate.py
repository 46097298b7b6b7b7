"""``efface evaluate``: how often a model is right, class by class, and what it mixes up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import (
    AbsolutePaths,
    DeviceName,
    JsonFlag,
    ModelPath,
    TrustModule,
    cell,
    finish,
    percent,
    table,
    warn,
)

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface evaluate model digits[/bold]

Example: [bold]efface evaluate model photos/ --split user --json[/bold]"""


def evaluate(
    model: ModelPath,
    data: Annotated[str, typer.Argument(help="Labelled data, as for train.")],
    split: Annotated[str, typer.Option(help="core, user, test or all.")] = "test",
    absolute_paths: AbsolutePaths = False,
    device: DeviceName = "cpu",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Accuracy on labelled data: overall, for each class, and the confusions of the worst classes."""
    from efface.pipeline.evaluate import measure
    from efface.pipeline.inputs import load_model, read_labelled
    from efface.workspace.published import current

    loaded, published = load_model(model, trust_module, device), current(model)
    records = read_labelled(loaded, model, data, split, note=warn, absolute_paths=absolute_paths)
    labels = [record.label for record in records]
    with show("evaluate", mode_for(as_json=json)) as progress:
        predicted = loaded.predict(records, progress=progress).tolist()
    values = {
        "model": str(model),
        "release": None if published is None else published.release,
        "split": split,
        **measure(labels, predicted),
    }
    finish(values, as_json=json, render=lambda console: _render(console, values))


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
