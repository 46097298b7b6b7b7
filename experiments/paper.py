"""Writes docs/paper.md from the committed results: the paper's claim, our numbers, the verdict.

python experiments/paper.py          # write it
python experiments/paper.py --check  # exit 1 if it is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import accuracy
from common import RESULTS

from efface.reproduce.catalog import FIGURES
from efface.reproduce.figure import PaperFigure
from efface.reproduce.present import finished, markdown, subtitle, svg_name

PAGE = Path(__file__).parents[1] / "docs" / "paper.md"
DATA = ("digits", "cub40", "cub200", "caltech101", "cifar10")

HEAD = """\
# The paper's claims, checked

"Mixed-Privacy Forgetting in Deep Networks" (CVPR 2021), experiment by experiment: what it claims, what we
measured, and whether that agrees. This page is written by `python experiments/paper.py` from the JSON
files under `experiments/results/`, which `efface reproduce` made; a test fails if the page says anything
else. The word that a verdict begins with follows from the numbers by the rule in `verdict()` of the
figure's file.

A verdict needs models that were *solved*: the distance to the minimiser is proved to be at most 1 % of
the weights' norm, for the retrained model a third of what ε = 1 asks. And it needs a model that is better
than its last layer alone, at the same ridge: otherwise there is nothing below the head to forget. Where
either is missing it says "not tested".

The model is the paper's, in its own parameters: BatchNorm kept (its γ and β are parameters, too), weights
as they are, LeakyReLU, targets × 5, explicit L2, all images at the network's own size, a core trained on
30 % of the images, logits as cross-entropy left them. What differs, everywhere:

- The paper linearises "only the final layers" of the ResNet-50 and does not say which. Here these are the
  last convolution with its BatchNorm and the head (`--layers final`); of the built-in network for digits,
  the last block.
- The core's head is trained on the 30 %, the network below it is ImageNet's: fine-tuned as a whole on so
  few images it was worse (`experiments/results/finetuning-cub40-core.json`).
- The printed weight decays are read for a loss that is averaged over the classes, too
  ([errata](errata.md), 28): μ = λ c/2 on our loss. The step of SGD is 1/λmax(H), the largest that is sure
  to be stable, and not the printed rate: on cub40 6.7e-4, where the printed ones are 1.25e-3 (forgetting)
  and 2.5e-3 (training) on our loss, just below the 2.6e-3 at which SGD with momentum 0.9 diverges for
  certain. Momentum is 0.9 unless said otherwise (0.999, as printed, is there too).
- Information is ½‖w − ŵ‖²/σ² in nats, ŵ the retrained model. *Measured* uses ŵ itself; *proved* bounds
  the distance, by ‖∇L_r(w)‖/μ in float64 for SGD, between samples for *solved* ([method](method.md)). σ,
  where it is one number, moves a logit by 2 % of the target scale.
- "Solved" is our conjugate-gradient procedure on the same model, one solve for all requests; "compact" is
  our exact user part, photos read at 288 pixels, as `efface train` makes it (energies and roots of
  covariances).
- Where the samples' slopes do not fit into memory otherwise (CUB-200), they are kept in half precision: SGD
  steps with a J rounded to 11 bits. What is proved, and the retrained model, is in float64 all the same.
- Seconds were measured on two cores with other work going on: read them as ratios.
"""


def page() -> str:
    """The whole page."""
    runs = {name: finished(RESULTS / name) for name in DATA if (RESULTS / name).is_dir()}
    text = [HEAD.rstrip(), "## Settings", _settings(runs), "## Verdicts", _summary(runs)]
    for name, figure in FIGURES.items():
        text += [f"## {figure.title}", f"**The paper:** {figure.claim}"]
        for data, found in runs.items():
            if name in found:
                results = found[name]["results"]
                text += [f"### {data}", figure.verdict(results), markdown(figure.table(results))]
                text += [
                    f"![{figure.title}](../experiments/results/{data}/{first_drawing(name, results)})"
                ]
        if name == "error-comparison":
            text += _full_size()
    return "\n\n".join(text) + "\n"


def first_drawing(name: str, results: dict[str, Any]) -> str:
    """Where nothing can be seen (all are 0) nothing is drawn."""
    return next(svg_name(name, d.name) for d in FIGURES[name].draw(results) if d.svg)


def _settings(runs: dict[str, Any]) -> str:
    lines = [
        f"- **{data}**: {subtitle(next(iter(found.values()))['settings'])}"
        for data, found in runs.items()
    ]
    return "\n".join(lines)


def _summary(runs: dict[str, Any]) -> str:
    lines = ["| experiment | " + " | ".join(runs) + " |", "|---" * (len(runs) + 1) + "|"]
    for name, figure in FIGURES.items():
        cells = [_word(figure, found.get(name)) for found in runs.values()]
        lines.append(f"| {figure.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _word(figure: PaperFigure, found: dict[str, Any] | None) -> str:
    if found is None:
        return "not run"
    return figure.verdict(found["results"]).split("**")[1].rstrip(".").lower()


def _full_size() -> list[str]:
    """The tables of accuracy.py: all images, choices on core data."""
    text = []
    for path in sorted(RESULTS.glob("accuracy-*.json")):
        name = path.stem.removeprefix("accuracy-")
        plain = name.removesuffix("-mirror")
        if plain in DATA:
            results = json.loads(path.read_text())["results"]
            option = "" if name == plain else " --mirror"
            text += [
                f"### {plain}, all images (accuracy, `experiments/accuracy.py{option}`)",
                accuracy.table(results),
            ]
    return text


def main() -> None:
    text = page()
    if "--check" in sys.argv:
        raise SystemExit(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
