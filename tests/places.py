"""Where things are: the checkout, and the real weights and data beside it where there are any."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
WEIGHTS = SHARED / "weights" / "resnet50-imagenet"
