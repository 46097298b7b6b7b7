"""Readers by their names, each loaded when it is first used.

Whoever asks for records to be forgotten reads no images: `efface forget` would wait for every reader, Pillow
and the table of named data sets before it begins.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efface.data.assemble import Looked as Looked
    from efface.data.assemble import assemble as assemble
    from efface.data.assemble import look as look
    from efface.data.opening import find as find
    from efface.data.readers.arrays import find_digits as find_digits
    from efface.data.readers.arrays import find_npz as find_npz
    from efface.data.readers.examples import Examples as Examples
    from efface.data.readers.examples import dataset_examples as dataset_examples
    from efface.data.readers.examples import examples_of as examples_of
    from efface.data.readers.examples import find_examples as find_examples
    from efface.data.readers.examples import label_name as label_name
    from efface.data.readers.examples import values_of as values_of
    from efface.data.readers.folder import find_folder as find_folder
    from efface.data.readers.memory import sources_of as sources_of
    from efface.data.readers.memory import stacked as stacked
    from efface.data.readers.metadata import find_metadata as find_metadata
    from efface.data.readers.parquet import find_parquet as find_parquet

_NAMES = {
    "assemble": ("Looked", "assemble", "look"),
    "opening": ("find",),
    "readers.arrays": ("find_digits", "find_npz"),
    "readers.examples": (
        *("Examples", "dataset_examples", "examples_of", "find_examples"),
        *("label_name", "values_of"),
    ),
    "readers.folder": ("find_folder",),
    "readers.memory": ("sources_of", "stacked"),
    "readers.metadata": ("find_metadata",),
    "readers.parquet": ("find_parquet",),
}
_WHERE = {name: f"efface.data.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'efface.data.reading' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
