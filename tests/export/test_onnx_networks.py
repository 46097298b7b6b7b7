"""ONNX graphs of networks with gradients in their features, run by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.arithmetic.test_chain import fitted

from efface.export.format import Subject
from efface.export.manifest import check
from efface.export.onnx_file import OnnxFile

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra onnx is not installed")


@pytest.mark.parametrize("folded", [True, False])
def test_a_residual_network_has_the_same_bits(folded: bool, tmp_path: Path) -> None:
    """Also where BatchNorms are factors of their own, which runtimes like to move into convolutions."""
    subject, form = Subject(fitted("resnet-bottleneck", fold_batchnorm=folded)), OnnxFile()
    form.write(subject, tmp_path)
    found = check(subject, form, tmp_path)
    assert subject.exported.bit_equal
    assert found.largest_difference == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_attention_is_within_rounding(tmp_path: Path) -> None:
    subject, form = Subject(fitted("vit")), OnnxFile()
    form.write(subject, tmp_path)
    found = check(subject, form, tmp_path)
    assert not subject.exported.bit_equal
    assert found.same_classes == found.num_images
