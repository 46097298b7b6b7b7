"""SHA-256 digests of tensors and settings: the names by which models and caches know each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def tensors_digest(
    tensors: Mapping[str, Tensor] | Mapping[str, np.ndarray],
    settings: Mapping[str, Any] | None = None,
) -> str:
    """SHA-256 over sorted (name, dtype, shape, little-endian bytes), and the settings as JSON.

    Of numpy's arrays it is that of the same tensors.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps(settings or {}, sort_keys=True, default=str).encode())
    for name in sorted(tensors):
        kind, array = _plain(tensors[name])
        digest.update(f"|{name}|{kind}|{tuple(array.shape)}|".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class RememberedDigest:
    """:func:`tensors_digest`, computed again only if a tensor has been written or replaced since.

    torch counts the writes to a tensor. The tensors themselves are held, so that no other can take the place
    in memory of one that is gone.
    """

    def __init__(self) -> None:
        self._seen: tuple[Any, ...] | None = None
        self._tensors: dict[str, Tensor] = {}
        self._digest = ""

    def __call__(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> str:
        written = [(name, t.data_ptr(), t._version, t.shape) for name, t in tensors.items()]
        seen = (json.dumps(settings, sort_keys=True, default=str), written)
        if seen != self._seen:
            self._digest = tensors_digest(tensors, settings)
            self._seen, self._tensors = seen, dict(tensors)
        return self._digest


def _plain(tensor: Tensor | np.ndarray) -> tuple[str, np.ndarray]:
    """torch's name of the type, and the numbers as an array that has the tensor's bytes."""
    if isinstance(tensor, np.ndarray):
        little = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
        return f"torch.{tensor.dtype.name}", little
    import torch

    values = tensor.detach().cpu().contiguous()
    if values.dtype == torch.bfloat16:  # which numpy does not have
        return str(tensor.dtype), values.view(torch.int16).numpy()
    return str(tensor.dtype), values.numpy()
