"""Predict from rows, with numpy alone: python numpy_loader.py head.npz rows.npy [core_logits.npy]

Rows are the integers of an image's features: the output `rows` of the exported ONNX or torch graph.
"""

import sys

import numpy as np


def logits(head: dict, rows: np.ndarray, core_logits: np.ndarray | None = None) -> np.ndarray:
    """α · core + (rows · scale) Θ, (n, classes): within k · 2⁻⁵³ · Σ|rows · scale · Θ| of the exact sum."""
    weight, theta = float(head["core_weight"]), head["theta"].astype(np.float64)
    if weight and core_logits is None:
        raise ValueError("this head needs core_logits, an output of the graph, too")
    part = np.float64(weight) * np.asarray(0.0 if core_logits is None else core_logits)
    return part + (rows.astype(np.float64) * head["scale"]) @ theta if len(theta) else part


if __name__ == "__main__":
    head = np.load(sys.argv[1], allow_pickle=False)
    print(*head["classes"][logits(head, *map(np.load, sys.argv[2:])).argmax(1)], sep="\n")
