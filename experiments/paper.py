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
DATA = ("digits", "cub40", "caltech101", "cifar10-subset")

HEAD = """\
# The paper's claims, checked

"Mixed-Privacy Forgetting in Deep Networks" (CVPR 2021), experiment by experiment: what it claims, what we
measured, and whether that agrees. This page is written by `python experiments/paper.py` from the JSON files
under `experiments/results/`, which `efface reproduce` made; a test fails if the page says anything else. The
word that a verdict begins with follows from the numbers by the rule in `verdict()` of the figure's file.

How this differs from the paper, everywhere:

- Fewer images, and none of the paper's data sets in full: see the settings of each run below. The paper's own
  settings are `--preset paper`.
- The last block and the head are linearised; the paper says "the final layers".
- The layers are balanced: each tensor's tangents are scaled to a mean squared norm of 1 on core images. In
  the plain parameters the head dwarfs the layers below it, and no procedure gets far in a few passes; here
  the paper's has its best chance. μ is in these units.
- The paper's SGD runs at the step 1/λmax(H), the largest that is sure to be stable, not at its printed rates:
  those belong to its own scaling of the loss. Momentum is 0.9 unless said otherwise (0.999, as printed, is
  there too). An epoch of 64-image batches has fewer steps on a smaller set.
- Information is ½‖w − ŵ‖²/σ² in nats, ŵ the retrained model. *Measured* uses ŵ itself, solved ten times more
  precisely than a request; *proved* bounds the distance by ‖∇L_r(w)‖/μ in float64. σ, where it is one number,
  moves a logit by 2 % of the target scale.
- "Solved" is our conjugate-gradient procedure on the same model, "compact" our exact user part.
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
    return svg_name(name, FIGURES[name].draw(results)[0].name)


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
