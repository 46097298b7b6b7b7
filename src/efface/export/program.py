"""A plain module written down by torch.export: what the torch file holds, and what ONNX is made of."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from efface.errors import BackboneError
from efface.parts.exported import Exported

if TYPE_CHECKING:
    from torch.export import ExportedProgram

TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node")


def program_of(exported: Exported) -> ExportedProgram:
    """The module as a list of operations and the tensors in it. It names no files and no code of ours."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # about how torch will write programs one day
            program = _written(exported)
    except Exception as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BackboneError(
            f"torch cannot write this network down ({first:.300}).",
            "use --numpy-head, which needs no network, or serve with efface (efface.Serving).",
        ) from error
    for node in program.graph.nodes:
        for name in TRACES:
            node.meta.pop(name, None)
    return program


def _written(exported: Exported) -> ExportedProgram:
    pixels = torch.zeros(2 if exported.batched else 1, *exported.image, dtype=torch.uint8)
    if exported.batched:
        shapes = ({0: torch.export.Dim("n")},)
        return torch.export.export(exported.module, (pixels,), dynamic_shapes=shapes, strict=False)
    # Derivatives within the module: make_fx writes them down as plain operations first. For one image:
    # networks of others often fix the number of images when they are traced.
    plain = make_fx(exported.module, tracing_mode="real")(pixels)
    for node in plain.graph.nodes:
        if node.target is torch.ops.aten._new_zeros_with_same_feature_meta.default:
            node.target, node.args = torch.ops.aten.zeros_like.default, (node.args[1],)
    plain.recompile()
    return torch.export.export(plain, (pixels,), strict=False)
