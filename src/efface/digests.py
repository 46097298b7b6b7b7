"""SHA-256 digests of tensors and settings: the names by which models and caches know each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_digest(tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None) -> str:
    """SHA-256 over sorted (name, dtype, shape, little-endian bytes), and the settings as JSON."""
    digest = hashlib.sha256()
    digest.update(json.dumps(settings or {}, sort_keys=True, default=str).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
