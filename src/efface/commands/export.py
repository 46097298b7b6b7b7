"""``efface export``: a release for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import JsonFlag, ModelPath, TrustModule, cell, finish, plain, table

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface export model --onnx --out served[/bold]

Example: [bold]efface export model --torch --numpy-head --out served[/bold]

Example: [bold]efface export model --files --license apache-2.0 --out hub[/bold]"""


LICENSE = (
    "For the model card: under which licence you pass it on (apache-2.0, other). None is made up."
)


def export(
    model: ModelPath,
    out: Annotated[Path, typer.Option(help="The folder to write; an earlier export is replaced.")],
    onnx: Annotated[
        bool, typer.Option("--onnx", help="model.onnx, for ONNX Runtime (extra onnx).")
    ] = False,
    torch: Annotated[
        bool, typer.Option("--torch", help="model.pt2, for torch.export.load.")
    ] = False,
    numpy_head: Annotated[
        bool,
        typer.Option("--numpy-head", help="head.npz: the user weights alone, for rows you have."),
    ] = False,
    own_files: Annotated[
        bool, typer.Option("--files", help="The model's own files, for from_pretrained and hubs.")
    ] = False,
    license: Annotated[str, typer.Option(help=LICENSE)] = "",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Write the published release for other programs, with its certificate, a manifest and a model card.

    Networks that compute in integers give the same bits there; others what float32 rounds. Every file is
    run by the program that it is for, beside the model, before it is written. It holds released weights
    only, nothing of anybody's images; but it is a copy, which does not forget: export again after each
    release, and delete older copies.
    """
    from efface.export.release import export as write
    from efface.network.backbone import trusted_module

    asked = {"onnx": onnx, "torch": torch, "numpy-head": numpy_head, "files": own_files}
    formats = [name for name, wanted in asked.items() if wanted]
    with show("export", mode_for(as_json=json)) as progress:
        manifest = write(
            model,
            formats,
            out,
            module=trusted_module(trust_module),
            license=license,
            progress=progress,
        )
    values: dict[str, Any] = {"model": str(model), "out": str(out), **manifest}
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _render(console: Console, values: dict[str, Any]) -> None:
    rows = table("file", "run with", "largest difference of a logit", right=(2,))
    for name, found in values["checked"].items():
        difference = found["largest_difference"]
        same = values["bit_equal"] and not difference
        rows.add_row(
            cell(name), cell(found["ran_with"]), "same bits" if same else f"{difference:.3g}"
        )
    console.print(rows)
    release = "the model" if values["release"] is None else f"release {values['release']}"
    text = f"{release}: {plain(values['out'])}, {len(values['files']) + 1} files"
    console.print(text, style="bold", markup=False, soft_wrap=True)
    console.print(f"\n{values['copy']}", markup=False, soft_wrap=True)
