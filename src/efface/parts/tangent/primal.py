"""The samples' side of ridge problems: prepared once, kept where it fits, shared by problems on some of them.

Everything that a product J v or Jᵀu needs of the samples, and nothing of the weights or targets. Requests,
retrained models and attacks all look at parts of one set: preparing each anew would cost more than the
products themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from efface.linear.operator import Prepared, TangentOperator
from efface.linear.pooled import SlopesOfSome
from efface.network.activations import Activations

BATCH_BYTES = (
    32 << 20
)  # enough for full-speed products, and what lies between layers stays in the cache
ROWS_AT_ONCE = 256  # of pooled slopes
MOST_CLASSES = 100  # of slopes by layer: with more they are made for longer than a solve takes


class Primal:
    """``activations`` (n, …), which may be a memory map, as J's products take them.

    They are kept if they fit ``cache_bytes``, otherwise rebuilt in every pass. ``batch_size`` defaults to
    what fills about ``BATCH_BYTES``.
    """

    def __init__(
        self,
        operator: TangentOperator,
        activations: Activations,
        *,
        batch_size: int | None = None,
        dtype: torch.dtype = torch.float32,
        cache_bytes: int = 6 << 30,
    ) -> None:
        self.operator, self.activations = operator, activations
        self.dtype, self.cache_bytes = dtype, cache_bytes
        self.pooled = False  # the form in which it is kept: see ``pool``
        self.half = False  # whether slopes are kept in half precision
        self._slopes: frozenset[int] = frozenset()  # numbers a sample in each tensor of them
        self.batch_size = batch_size or self._default_batch()
        self._kept: list[Prepared] | None = None

    def __len__(self) -> int:
        return len(self.activations)

    def _default_batch(self) -> int:
        if len(self.activations) == 0:
            return 1
        one = self.operator.prepare(self.activations[:1], self.dtype, lean=True)
        return max(16, min(1024, BATCH_BYTES // max(one.num_bytes, 1)))

    def pool(self, *, half: bool = False) -> None:
        """For many passes to come: keep slopes, pooled (``linear/pooled.py``) or by layer
        (``linear/slopes.py``), if the tail has them and they fit. They take longer to make than they save in
        a few.

        With ``half`` they are rounded to 11 bits where they do not fit in 24: products then have relative
        errors of about 2⁻¹², and whoever asks for it must look at the result in another way.
        """
        operator = self.operator
        if self.pooled or not len(self) or not (operator.pooled_numbers or operator.many):
            return
        one = operator.prepare(self.activations[:1], self.dtype, many=True)
        if operator.many is not None and one.outputs.shape[1] > MOST_CLASSES:
            return
        sizes = operator.slope_sizes(one)
        numbers = sum(t.numel() for t in tree_leaves(one.saved) if t.numel() in sizes) * len(self)
        width = torch.finfo(self.dtype).bits // 8
        rest = 0 if operator.many is None else one.num_bytes * len(self) - width * numbers
        if width * numbers + rest <= self.cache_bytes:
            self.pooled, self._kept, self._slopes = True, None, sizes
        elif half and self.dtype == torch.float32 and 2 * numbers + rest <= self.cache_bytes:
            self.pooled, self.half, self._kept, self._slopes = True, True, None, sizes

    @property
    def rows_at_once(self) -> int:
        """Of a walk through what is kept."""
        return max(self.batch_size, ROWS_AT_ONCE) if self.pooled else self.batch_size

    @property
    def kept(self) -> Prepared | None:
        """The whole primal side in one tree; None if it is too large."""
        if self._kept is None:
            self._kept = self._fill()
        return self._kept[0] if self._kept else None

    def some(self, index: Tensor) -> Prepared | None:
        """Of what is kept, these samples: pooled slopes where they lie, the rest as a copy."""
        kept, slopes = self.kept, self._slopes
        if kept is None:
            return None

        def take(t: Tensor) -> Any:
            return SlopesOfSome(t, index) if self.pooled and t[0].numel() in slopes else t[index]

        return Prepared(kept.outputs[index], tree_map(take, kept.saved), kept.layer)

    def drop(self) -> None:
        """Free what is kept; it is prepared again if it is needed again."""
        self._kept = None

    def _fill(self) -> list[Prepared]:
        if len(self) == 0:
            return []
        first = self._prepared(slice(0, 1))
        if not self.pooled and first.num_bytes * len(self) > self.cache_bytes:
            return []
        whole = self._assemble(first)
        if whole is None:
            self.pooled = self.half = False
            return self._fill()
        return [whole]

    def _prepared(self, part: slice) -> Prepared:
        """In the form in which it is kept."""
        form = {"many": True} if self.pooled else {"lean": True}
        return self.operator.prepare(self.activations[part], self.dtype, **form)

    def _assemble(self, first: Prepared) -> Prepared | None:
        """None: some slope is beyond 65,504 and has no half form."""
        n = len(self)

        def allocate(t: Tensor) -> Tensor:
            narrow = self.half and t[0].numel() in self._slopes
            return t.new_empty((n, *t.shape[1:]), dtype=torch.float16 if narrow else t.dtype)

        whole = Prepared(allocate(first.outputs), tree_map(allocate, first.saved), first.layer)
        for start in range(0, n, self.batch_size):
            part = slice(start, min(start + self.batch_size, n))
            batch = self._prepared(part)
            whole.outputs[part] = batch.outputs
            pairs = zip(tree_leaves(whole.saved), tree_leaves(batch.saved), strict=True)
            for target, source in pairs:
                target[part] = source
                if target.dtype != source.dtype and not bool(target[part].isfinite().all()):
                    return None
        return whole


class SharedRows:
    """Some samples of a primal side, as activations: problems on them share what it keeps."""

    def __init__(self, primal: Primal, index: Tensor | None = None) -> None:
        self.primal = primal
        self.index = torch.arange(len(primal)) if index is None else index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Tensor | slice | np.ndarray) -> Tensor:
        return self.primal.activations[self.index[index]]

    def select(self, index: np.ndarray) -> SharedRows:
        return SharedRows(self.primal, self.index[torch.from_numpy(index)])
