"""Where things are: the checkout, and the real weights and data beside it where there are any."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
WEIGHTS = SHARED / "weights" / "resnet50-imagenet"


def script(path: str) -> ModuleType:
    """A script of the checkout as a module, without its folder on the path."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
