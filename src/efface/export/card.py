"""The model card: ``README.md`` with the front matter that hubs read, in words for whoever finds the copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from efface.export.manifest import COPY

NAME = "README.md"
TAGS = ("efface", "image-classification", "machine-unlearning", "privacy", "right-to-erasure")
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


def card(manifest: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> str:
    """The text of README.md, from the manifest and the public certificate."""
    parts = [
        _front_matter(manifest),
        "# An image classifier that can forget",
        _about(manifest),
        f"**{COPY}**",
        "## Input\n\n" + _input(manifest["input"], manifest["outputs"]),
        *[f"## Run `{name}`\n\n{HOW[name]}" for name in manifest["checked"] if name in HOW],
        "## What it was checked against\n\n" + _checked(manifest),
        "## What was proved\n\n" + _proved(certificate),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(manifest: Mapping[str, Any]) -> str:
    """YAML; strings as JSON has them, which YAML reads."""
    lines = ["---", "library_name: efface", "pipeline_tag: image-classification", "tags:"]
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
