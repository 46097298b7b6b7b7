"""The machine and libraries that numbers depend on, for certificates.

They are looked up when they are asked for: finding them takes longer than reading the sums of a model.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def environment(*, integer: bool) -> dict[str, str]:
    """What a row depends on beside the model: for integers the decoder of images and torch's order of
    operations, for float32 the processor and its kernels, too."""
    from importlib.metadata import version

    import PIL
    from PIL import features

    found = {
        "decoder": f"pillow {PIL.__version__}, libjpeg {features.version('jpg')}",
        "torch": version("torch").split("+")[0],
    }
    if not integer:
        import torch

        found["processor"] = _processor()
        found["kernels"] = torch.backends.cpu.get_cpu_capability()
    return found


def _processor() -> str:
    """Its model name where the system tells (Linux), else its architecture."""
    import platform

    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
