"""``efface predict``: what a trained model sees in images."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import Mode, mode_for, show
from efface.commands.output import (
    DeviceName,
    JsonFlag,
    ModelPath,
    TrustModule,
    cell,
    finish,
    table,
    warn,
)

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface predict model cat.jpg dog.png[/bold]

Example: [bold]efface predict model photos/ --json[/bold]

Example: [bold]efface predict model digits --split test[/bold]"""

FEW = 32  # images: more take long enough to be told how far it is


def predict(
    model: ModelPath,
    images: Annotated[
        list[str],
        typer.Argument(
            help="Image files (paths or file: URLs), folders of images, or data as for train."
        ),
    ],
    split: Annotated[
        str, typer.Option(help="Of data with splits: core, user, test or all.")
    ] = "all",
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out images that cannot be read, and say which."),
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Classes to list for each image.")] = 3,
    device: DeviceName = "cpu",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Predict the class of images.

    Scores are the softmax of the model's outputs: they sum to one, but they are not calibrated
    probabilities.
    """
    from efface.pipeline.inputs import load_model, read_unlabelled
    from efface.pipeline.predict import ranked

    loaded = load_model(model, trust_module, device)
    records = read_unlabelled(loaded, images, split, note=warn, skip_bad=skip_bad)
    mode = mode_for(as_json=json) if len(records) > FEW else Mode.SILENT
    with show("predict", mode) as progress:
        predictions = ranked(loaded, records, top, progress)
    skipped = [asdict(one) for one in records.skipped]
    for one in skipped:
        warn(f"left out {one['id']}: {one['reason']}")
    values = {"model": str(model), "predictions": predictions, "skipped": skipped}
    finish(values, as_json=json, render=lambda console: _render(console, predictions))


def _render(console: Console, predictions: list[dict[str, Any]]) -> None:
    rows = table("image", "class", "scores")
    for entry in predictions:
        scores = ", ".join(f"{name} {score:.2f}" for name, score in entry["scores"].items())
        rows.add_row(cell(entry["id"]), f"[bold]{cell(entry['label'])}[/bold]", cell(scores))
    console.print(rows)
