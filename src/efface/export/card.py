"""The model card: ``README.md`` with the front matter that hubs read, in words for whoever finds the copy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from efface.errors import EffaceError, FormatError
from efface.export.manifest import COPY
from efface.network.backbone import HUB_ID

NAME = "README.md"
TAGS = ("efface", "image-classification", "machine-unlearning", "privacy", "right-to-erasure")
LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
MOST_CLASSES = 50  # that are listed

HOW = {
    "model.onnx": """```python
import json, numpy as np, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
classes = json.load(open("manifest.json"))["classes"]
logits = session.run(["logits"], {"pixels": pixels})[0]   # uint8, see "Input"
print(classes[logits[0].argmax()])
```""",
    "model.pt2": """```python
import json, torch
run = torch.export.load("model.pt2").module()
classes = json.load(open("manifest.json"))["classes"]
logits = run(torch.from_numpy(pixels))[0]                 # uint8, see "Input"
print(classes[logits[0].argmax()])
```""",
    "head.npz": "`python numpy_loader.py head.npz rows.npy`, rows being the output `rows` of the graph.",
    "model.json": """```python
import efface
model = efface.load("THIS_FOLDER")         # or efface.from_pretrained("OWNER/NAME")
print(model.predict(["cat.jpg"]))
```""",
}


@dataclass(frozen=True)
class Provenance:
    """What the card says and the files do not: where the network came from, and whoever exports says under
    which licence they pass it on. Neither is guessed; what is empty is left out."""

    base_model: str = ""
    license: str = ""

    def __post_init__(self) -> None:
        if self.base_model and not HUB_ID.fullmatch(self.base_model):
            raise FormatError(
                f"{self.base_model!r:.120} is no name of a hub.", "give OWNER/NAME, or nothing."
            )
        if self.license and not LICENSE.fullmatch(self.license):
            raise EffaceError(
                f"{self.license!r:.120} is no licence's identifier.",
                "give one as hubs list them: apache-2.0, cc-by-4.0, other.",
            )


def card(
    manifest: Mapping[str, Any],
    certificate: Mapping[str, Any] | None,
    provenance: Provenance | None = None,
) -> str:
    """The text of README.md, from the manifest and the public certificate."""
    parts = [
        _front_matter(manifest, provenance or Provenance()),
        "# An image classifier that can forget",
        _about(manifest),
        f"**{COPY}**",
        "## Input\n\n" + _input(manifest["input"], manifest["outputs"]),
        *[f"## Run `{name}`\n\n{HOW[name]}" for name in manifest["checked"] if name in HOW],
        "## What it was checked against\n\n" + _checked(manifest),
        "## What was proved\n\n" + _proved(certificate),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(manifest: Mapping[str, Any], provenance: Provenance) -> str:
    """YAML; strings as JSON has them, which YAML reads."""
    said = {name: value for name, value in asdict(provenance).items() if value}
    lines = ["---", *[f"{name}: {json.dumps(value)}" for name, value in said.items()]]
    lines += ["library_name: efface", "pipeline_tag: image-classification", "tags:"]
    lines += [f"- {tag}" for tag in TAGS]
    lines += ["efface:", f"  version: {json.dumps(manifest['efface'])}"]
    for name in ("release", "weights_digest", "core_digest", "arithmetic", "bit_equal"):
        lines.append(f"  {name}: {json.dumps(manifest[name])}")
    return "\n".join([*lines, "---"])


def _about(manifest: Mapping[str, Any]) -> str:
    classes = manifest["classes"]
    listed = ", ".join(f"`{_plain(name)}`" for name in classes[:MOST_CLASSES])
    more = f", and {len(classes) - MOST_CLASSES} more" if len(classes) > MOST_CLASSES else ""
    release = manifest["release"]
    which = (
        "It was saved alone." if release is None else f"It is release {release} of its workspace."
    )
    return (
        f"Made with efface {manifest['efface']}: a frozen network and a linear user part "
        f"(`{manifest['user']}`), out of which people's images can be taken again. {which}\n\n"
        f"{len(classes)} classes: {listed}{more}."
    )


def _plain(text: str) -> str:
    """A class name inside backticks, on one line."""
    return " ".join(str(text).replace("`", "'").split())


def _input(given: Mapping[str, Any], outputs: list[str]) -> str:
    p = given["preprocess"]
    steps = []
    if p["resize"]:
        steps.append(f"resized (Pillow, {p['interpolation']}) to a short side of {p['resize']}")
    if p["crop"]:
        steps.append(f"cropped to the central {p['crop']} × {p['crop']}")
    done = ", then ".join(steps) or "as they are"
    colours = "gray" if p["channels"] == 1 else "RGB"
    shape = " × ".join(str(side) for side in given["shape"])
    many = "any number of images" if given["shape"][0] == "n" else "one image at a time"
    return (
        f"`{given['name']}`, {given['type']}, {shape}: {colours} images, {done}. Normalisation is part of "
        f"the graph. It takes {many}. Outputs: {', '.join(f'`{name}`' for name in outputs)}; softmax makes "
        "scores of the logits."
    )


def _checked(manifest: Mapping[str, Any]) -> str:
    lines = [
        "| file | run with | images | largest difference of a logit | same class |",
        "|---|---|---|---|---|",
    ]
    for name, found in manifest["checked"].items():
        lines.append(
            f"| `{name}` | {found['ran_with']} | {found['num_images']} | "
            f"{found['largest_difference']:.3g} | {found['same_classes']} |"
        )
    return "\n".join([*lines, "", f"Rounding: {manifest['rounding']}. The images show nobody."])


def _proved(certificate: Mapping[str, Any] | None) -> str:
    if certificate is None:
        return "Nothing has been forgotten here that a certificate would speak about."
    left = certificate.get("not_covered") or ()
    told = [
        f"`certificate.json` ({certificate.get('kind', '')}) says what was proved about this release; "
        "with a signed receipt, `efface verify receipt.json --key KEYS` checks it without the model.",
        "",
        "Not covered:",
        "",
        *[
            f"- {text}"
            for text in (*left, "this copy, and every other, once a later release is out")
        ],
    ]
    return "\n".join(told)
