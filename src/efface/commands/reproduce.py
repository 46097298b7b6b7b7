"""``efface reproduce``: the experiments of the paper, figure by figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from efface.commands.output import DeviceName, JsonFlag, finish

EXAMPLES = """\
Example: [bold]efface reproduce all --data digits[/bold]

Example: [bold]efface reproduce info-vs-noise --data photos/ --backbone hf:models/resnet-50 --side 128[/bold]

Example: [bold]efface reproduce all --data digits --draw-only --out efface-reproduce/digits[/bold]"""

FIGURE = """\
error-comparison, info-vs-noise, info-vs-epochs, readouts, complete-vs-stochastic, core-data, forget-class, \
l2, speed; several with commas; or all."""


def reproduce(
    figure: Annotated[str, typer.Argument(help=FIGURE)],
    data: Annotated[str, typer.Option(help="Data, as for train.")] = "digits",
    backbone: Annotated[str, typer.Option(help="As for train.")] = "cnn",
    preset: Annotated[str, typer.Option(help="paper, small, or tiny (for tests).")] = "small",
    limit: Annotated[
        int | None, typer.Option(min=0, help="Training images, instead of the preset's; 0: all.")
    ] = None,
    side: Annotated[
        int | None, typer.Option(min=32, help="Pixels of the images, instead of the network's.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Instead of the preset's.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where results go. Default: efface-reproduce/DATA.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="For activations and weights. Default: OUT/cache.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(min=0.1, help="GiB for prepared samples. Default: 60 % of what is free."),
    ] = None,
    device: DeviceName = "cpu",
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Measure nothing: draw what OUT holds.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Repeat the paper's experiments: one JSON file and its drawings a figure, results.md, report.html.

    What OUT holds already is not measured again, so a run that was cut short goes on.
    """
    from efface.reproduce.bench import Bench
    from efface.reproduce.catalog import chosen
    from efface.reproduce.present import present
    from efface.reproduce.presets import resolve
    from efface.reproduce.results import name_of
    from efface.reproduce.room import room
    from efface.reproduce.run import measure

    where = out or Path("efface-reproduce") / name_of(data)
    figures = chosen(figure)
    if not draw_only:
        say = _quiet if json else _say
        size = resolve(preset, backbone, limit=limit, side=side, seeds=seeds)
        most = room() if memory is None else int(memory * 2**30)
        options: dict[str, Any] = {"memory": most, "device": device, "say": say}
        bench = Bench(data, backbone, size, cache or where / "cache", **options)
        measure(bench, figures, where, say)
    values = present(where)
    finish(
        values, as_json=json, render=lambda console: console.print(f"report: {values['report']}")
    )


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _quiet(text: str) -> None:
    pass
