"""The machine and libraries that numbers depend on, for certificates.

They are looked up when they are asked for: finding them takes longer than reading the sums of a model.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def environment(*, integer: bool) -> dict[str, str]:
    """What a row depends on beside the model: for integers the decoder of images and torch's order of
    operations, for float32 the processor and its kernels, too."""
    import PIL

    found = {
        "decoder": f"pillow {PIL.__version__}, libjpeg {_jpeg_version()}",
        "torch": _installed("torch").split("+")[0],
    }
    if not integer:
        import torch

        found["processor"] = _processor()
        found["kernels"] = torch.backends.cpu.get_cpu_capability()
    return found


def _jpeg_version() -> str | None:
    """What `PIL.features` says, from where it has it: it would load all that opens images, for one text."""
    try:
        from PIL import _imaging

        return str(_imaging.jpeglib_version)
    except (ImportError, AttributeError):
        from PIL import features

        return features.version("jpg")


def _installed(name: str) -> str:
    """The version of a package that need not be loaded, by the folder of its metadata, which is named
    NAME-VERSION.dist-info beside it. Where there is none, or more than one, `importlib.metadata` decides:
    it loads a parser of e-mail."""
    found = find_spec(name)
    if found is not None and found.origin is not None:
        beside = [entry.name for entry in Path(found.origin).parents[1].iterdir()]
        named = [text for text in beside if re.fullmatch(rf"{name}-[^-]+\.dist-info", text)]
        if len(named) == 1:
            return named[0].removeprefix(f"{name}-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version(name)


def _processor() -> str:
    """Its model name where the system tells (Linux), else its architecture."""
    import platform

    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
