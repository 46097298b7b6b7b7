"""The config that ``efface init`` writes: the questions of a first training, answered and explained.

It holds no names of people: the file lives as long as the project, and a forgotten person must not be in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from efface.pipeline.config import Config, toml_value
from efface.pipeline.core_people import CorePeople
from efface.pipeline.survey import Survey

PUBLIC_NETWORK = "hf:microsoft/resnet-50"

CORE_QUESTION = """\
# Which data may be core? Core trains the network, and the scales of everything after it. It is never
# forgotten: a request by somebody who is in it is refused (exit code 3), and with --user-part-only the
# model keeps what the core learnt of them. So, in this order:
#   1. nobody's: core_fraction = 0, and a network that was trained elsewhere (below)
#   2. a public set with the same classes: core_data = "public/"
#   3. some of these people, with eyes open: core_fraction = 0.3 makes about 30 % of them core whole, drawn
#      by a hash of their names. Ask them first, and tell them that this cannot be undone."""

CLASSES_QUESTION = """\
# The outputs of the model, in this order. The list is yours: it stays when the last image of a class is
# forgotten, so no class may be one person's alone (their name, say)."""

NETWORK_QUESTION = """\
# The frozen network: hf:FOLDER, hf:NAME (fetched from the Hugging Face hub once, when you train), timm:NAME,
# open_clip:NAME:WEIGHTS, or cnn (a small one of our own, which knows nothing: it needs core data)."""


def config_text(config: Config, found: Survey) -> str:
    """TOML that ``load_config`` reads as ``config``, with a word on each decision."""
    return "\n".join(_lines(config, found)) + "\n"


def _lines(config: Config, found: Survey) -> Iterator[str]:
    yield "# Written by efface init. Change what you like, then: efface train --config THIS_FILE"
    yield f"# Found: {summary(found)}."
    yield "\n[data]"
    yield f"spec = {toml_value(config.data.spec)}"
    yield from _data_lines(config, found)
    yield f"\n{CORE_QUESTION}"
    yield from _core_lines(config, found)
    yield f"\n{CLASSES_QUESTION}"
    yield f"classes = {toml_value(list(config.data.classes or ()))}"
    yield f"\n[core]\n{NETWORK_QUESTION}"
    yield f"backbone = {toml_value(config.core.backbone)}"
    yield "\n[output]\n# The folder of the model: what is served, and what it takes to forget."
    yield f"dir = {toml_value(config.output.dir)}"


def _data_lines(config: Config, found: Survey) -> Iterator[str]:
    data = config.data
    if data.absolute_paths:
        yield "absolute_paths = true  # the list names files outside of its folder"
    if data.channels is not None:
        why = "some images are gray and some are colour" if found.mixed_channels else "as asked for"
        yield f"channels = {toml_value(data.channels)}  # {why}"
    if data.skip_bad:
        yield f"skip_bad = true  # {len(found.damaged)} files cannot be read; they are left out"


def _core_lines(config: Config, found: Survey) -> Iterator[str]:
    data = config.data
    own = found.splits["core"]
    if own:
        yield f"# The data itself calls {own:,} images core; whoever is in them cannot be forgotten."
    if data.core_data is not None:
        yield f"core_data = {toml_value(data.core_data)}"
    if data.core_fraction is not None:
        people = found.core_people(data.core_fraction, data.seed)
        yield f"core_fraction = {data.core_fraction:g}  # {people:,} of {found.people:,} people"


def summary(found: Survey) -> str:
    """In a sentence, without names."""
    images = ", ".join(f"{n:,} {split}" for split, n in found.splits.items() if n)
    owners = f"{found.people:,} people"
    if found.ownerless:
        owners += f" ({found.ownerless:,} images without an owner count as one person each)"
    return f"{images} images of {len(found.classes):,} classes, {owners}"


def answers(config: Config, found: Survey) -> Config:
    """What the survey can answer, where nothing else was said: classes, channels, damaged files, core."""
    data: dict[str, object] = {}
    if config.data.classes is None:
        data["classes"] = tuple(found.classes)
    if found.mixed_channels and config.data.channels is None:
        data["channels"] = "rgb"
    if found.damaged:
        data["skip_bad"] = True
    undecided = config.data.core_fraction is None and config.data.core_data is None
    if undecided and not found.splits["core"]:
        data["core_fraction"] = 0.0
    return config.model_copy(update={"data": config.data.model_copy(update=data)})


def warnings(config: Config, found: Survey) -> Iterator[str]:
    """What a person should know before they train with this config."""
    data = config.data
    if data.core_fraction and found.people:
        people = found.core_people(data.core_fraction, data.seed)
        yield str(CorePeople(data.core_fraction, people, found.people))
    if found.splits["core"]:
        yield (f"{found.splits['core']:,} images are core by the data's own split: never forgotten")
    if config.core.backbone == "cnn" and not _has_core(config, found):
        yield "the network cnn knows nothing, and without core data it learns nothing: choose another"
    if not found.splits["test"]:
        yield "no test images: training cannot say how good the model is (split = test in a list)"
    if found.lonely:
        yield (
            f"{len(found.lonely):,} classes have images of one person only: their names stay in the model "
            "when that person is forgotten"
        )
    small = [name for name, n in found.classes.items() if n < 2]
    if small:
        yield f"{len(small):,} classes have fewer than two images to learn from"


def _has_core(config: Config, found: Survey) -> bool:
    data = config.data
    return bool(found.splits["core"] or data.core_fraction or data.core_data)
