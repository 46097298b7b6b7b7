"""``model.onnx``: the same operations as an ONNX graph; weights of more than 2 GB lie beside it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from efface.errors import EffaceError
from efface.export.format import Format, Subject

PIXELS = "pixels"
LARGEST = 2**31 - 2**24  # bytes of weights that fit in the one file


class OnnxFile(Format):
    """See the module. Needs the extra ``onnx``."""

    name, main = "onnx", "model.onnx"

    def __init__(self) -> None:
        self._runtime = _runtime()
        self.ran_with = f"onnxruntime {self._runtime.__version__}"

    def write(self, subject: Subject, folder: Path) -> None:
        import torch

        exported, path = subject.exported, folder / self.main
        size = sum(t.numel() * t.element_size() for t in subject.program.state_dict.values())
        size += sum(
            t.numel() * t.element_size()
            for t in subject.program.constants.values()
            if isinstance(t, torch.Tensor)
        )
        with _quiet():
            # Not optimised: rewritten sums may round otherwise, and runtimes optimise by themselves.
            made = torch.onnx.export(
                subject.program,
                (),
                dynamo=True,
                optimize=False,
                verbose=False,
                input_names=[PIXELS],
                output_names=list(exported.outputs),
            )
            assert made is not None
            _strip(made.model)
            made.save(str(path), external_data=size > LARGEST)

    def logits(self, subject: Subject, folder: Path) -> np.ndarray:
        options = self._runtime.SessionOptions()
        options.log_severity_level = 3
        session = self._runtime.InferenceSession(
            str(folder / self.main), options, providers=["CPUExecutionProvider"]
        )
        batches = subject.sample.batches(subject.at_once)
        found = [session.run(["logits"], {PIXELS: batch})[0] for batch in batches]
        return np.concatenate(found)


def _runtime() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise EffaceError(
            f"ONNX files need packages that are not installed ({error}).",
            "pip install 'efface[onnx]'.",
        ) from error
    return onnxruntime


def _strip(model: Any) -> None:
    """Take out what names files of this machine and code of ours."""
    model.doc_string = None
    model.metadata_props.clear()
    for graph in model.graphs():
        graph.doc_string = None
        graph.metadata_props.clear()
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            value.metadata_props.clear()
        for node in graph:
            node.doc_string = None
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of torchvision's operations and of its own progress."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
