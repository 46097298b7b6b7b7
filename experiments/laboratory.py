"""What ``efface reproduce`` needs of this folder, in one place."""

from bench import Bench
from common import name_of
from presets import resolve
from reproduce import chosen, measure, present

__all__ = ["Bench", "chosen", "measure", "name_of", "present", "resolve"]
