"""A layer of any kind, linearised by torch.func: for what has no fast form, and as the slow twin."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping

import torch
from torch import Tensor, nn

from efface.linear.layers import Layer, Saved, from_module, to_module
from efface.network.backbone import forward_ad_kernels


class OpaqueLayer(Layer):
    """Any other module, differentiated by torch.func: forward mode for jvp, reverse for vjp.

    This is also the slow twin of the whole fast path: ``OpaqueLayer(tail)`` must agree with it.
    """

    def __init__(self, module: nn.Module, prefix: str) -> None:
        self.module = module.eval()
        self.prefix = prefix
        self.inner = tuple(name for name, _ in module.named_parameters())
        self.names = tuple(prefix + name for name in self.inner)
        self.slots = _slots(module)

    def restrict(self, names: Collection[str]) -> OpaqueLayer:
        """The same layer with user weights in ``names`` alone; its others are constants, like buffers."""
        made = OpaqueLayer(self.module, self.prefix)
        made.inner = tuple(name for name in self.inner if self.prefix + name in names)
        made.names = tuple(self.prefix + name for name in made.inner)
        return made

    def _state(self, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        every = {k: p.detach().to(dtype) for k, p in self.module.named_parameters()}
        params = {k: every.pop(k) for k in self.inner}
        buffers = {k: _cast(b, dtype) for k, b in self.module.named_buffers()}
        return params, buffers | every

    def _call(self, params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        # A clone, because the module may work in place, and x is saved for later products; a
        # contiguous one, because modules may call view.
        x = to_module(x).clone(memory_format=torch.contiguous_format)
        with forward_ad_kernels():
            given = {**buffers, **params}
            given |= {name: given[first] for name, first in self.slots.items()}
            y = torch.func.functional_call(self.module, given, (x,), tie_weights=False)
        return from_module(y)

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        with torch.no_grad():
            return self._call(*self._state(x.dtype), x), (x,)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        x = saved[0]
        params, buffers = self._state(x.dtype)
        dp = {name: v[self.prefix + name] for name in self.inner}
        if dx is None and not self.inner:
            return None
        if dx is None:
            run = lambda p: self._call(p, buffers, x)  # noqa: E731
            return torch.func.jvp(run, (params,), (dp,))[1]
        run2 = lambda p, a: self._call(p, buffers, a)  # noqa: E731
        return torch.func.jvp(run2, (params, x), (dp, dx))[1]

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        x = saved[0]
        params, buffers = self._state(x.dtype)
        run = lambda p, a: self._call(p, buffers, a)  # noqa: E731
        _, pull = torch.func.vjp(run, params, x)  # type: ignore[misc]
        dp, dx = pull(dy)
        for name in self.inner:
            out[self.prefix + name] += dp[name]
        return dx if need_dx else None


def _slots(module: nn.Module) -> dict[str, str]:
    """Every place that holds a parameter, and the name that this parameter goes by.

    torch's own way with tied weights fills a place that has two names (a module that is used twice) twice,
    and leaves a tensor of torch.func in it.
    """
    first: dict[int, str] = {}
    found: dict[tuple[int, str], tuple[str, str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, _, own = name.rpartition(".")
        place = (id(module.get_submodule(owner)), own)
        found.setdefault(place, (name, first.setdefault(id(parameter), name)))
    return dict(found.values())


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
