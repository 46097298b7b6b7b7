"""What somebody would write without efface: features of a frozen network, and scikit-learn on top.

    python benchmarks/first_hour_sklearn.py features photos/ my-resnet50   # features.npz, cached
    python benchmarks/first_hour_sklearn.py fit                            # classifier.npz
    python benchmarks/first_hour_sklearn.py forget u17                     # the rows go, it is fitted again

It forgets, too: a refit without somebody's rows is a refit. What it has not: a proof that this is what
happened, the same bits elsewhere, a receipt, or a plan for the machine that stops half way.
``first_hour.py`` times it beside efface; it needs nothing of it.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

FEATURES, CLASSIFIER = Path("features.npz"), Path("classifier.npz")
BATCH = 16


def features(photos: Path, network: str) -> None:
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel

    with (photos / "metadata.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    processor = AutoImageProcessor.from_pretrained(network, use_fast=False)
    model = AutoModel.from_pretrained(network).eval()
    found = []
    for start in range(0, len(rows), BATCH):
        names = [row["file_name"] for row in rows[start : start + BATCH]]
        images = [Image.open(photos / name).convert("RGB") for name in names]
        with torch.no_grad():
            pooled = model(**processor(images, return_tensors="pt")).pooler_output
        found.append(pooled.flatten(1).numpy())
    columns = {name: np.array([row[name] for row in rows]) for name in ("label", "owner", "split")}
    stored: dict[str, Any] = {"x": np.concatenate(found), **columns}
    np.savez(FEATURES, **stored)


def fit() -> None:
    cached = np.load(FEATURES)
    train, test = cached["split"] != "test", cached["split"] == "test"
    model = LogisticRegression(max_iter=1000).fit(cached["x"][train], cached["label"][train])
    np.savez(CLASSIFIER, coef=model.coef_, intercept=model.intercept_, classes=model.classes_)
    print(f"accuracy {model.score(cached['x'][test], cached['label'][test]):.4f}")


def forget(owner: str) -> None:
    with np.load(FEATURES) as cached:
        kept = cached["owner"] != owner
        np.savez(FEATURES, **{name: cached[name][kept] for name in cached.files})
    fit()


if __name__ == "__main__":
    if sys.argv[1] == "features":
        features(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "fit":
        fit()
    else:
        forget(sys.argv[2])
