"""The formats by name."""

from __future__ import annotations

from efface.errors import EffaceError
from efface.export.format import Format
from efface.export.model_files import ModelFiles
from efface.export.numpy_head import NumpyHead
from efface.export.onnx_file import OnnxFile
from efface.export.torch_file import TorchFile

FORMATS: dict[str, type[Format]] = {
    form.name: form for form in (OnnxFile, TorchFile, NumpyHead, ModelFiles)
}


def format_named(name: str) -> Format:
    if name not in FORMATS:
        fix = f"use one of {', '.join(FORMATS)}."
        raise EffaceError(f"unknown format {name!r}.", fix)
    return FORMATS[name]()
