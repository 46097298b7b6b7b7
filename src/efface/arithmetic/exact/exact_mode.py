"""Run an unchanged network so that every bit of its outputs and gradients is the same on every machine.

The mode sits below autograd: it sees each aten operation of the forward and of the backward pass, and lets
through only what cannot depend on the machine (see ``exact_rules``). Any operation it does not know is an
error that names it, never a silent approximation.

    network = exact(module)                    # a copy in float64, frozen
    with ExactMode(network):
        features = network(image.double())
        gradients = torch.autograd.grad(features.sum(), ...)

The order of operations is the network's own and autograd's, so the promise is for one release of torch;
within it for every x86-64 processor, instruction set, number of threads, memory alignment and batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from efface.arithmetic.exact.exact_products import Products, WeightCache
from efface.arithmetic.exact.exact_rules import ANY_TYPE, EXTREMES, RULES, SELECTIONS, SINGLE
from efface.arithmetic.exact.exact_sums import positive_zeros
from efface.arithmetic.exact.self_test import self_test
from efface.errors import EffaceError
from efface.network.backbone import forward_ad_kernels

Module = TypeVar("Module", bound=nn.Module)


class UnsupportedOperation(EffaceError):
    """The network does something that has no exact form yet; ``operation`` is aten's name for it."""

    def __init__(self, operation: str, why: str = "has no exact form") -> None:
        self.operation = operation
        super().__init__(f"{operation} {why}.", "use --arithmetic float for this backbone.")


class ExactMode(TorchDispatchMode):
    """Within it, float64 networks compute the same bits on every machine.

    The weights of ``modules`` are rounded once and kept, so a mode lives no longer than they stay as
    they are; other tensors are rounded every time they are used.
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self_test()
        self._rules = RULES | Products(WeightCache(modules)).rules

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        base = _base_name(func)
        if base in SELECTIONS:
            return func(*args, **kwargs)
        if base in EXTREMES:
            result = func(*args, **kwargs)
            return positive_zeros(result) if result.is_floating_point() else result
        if base in self._rules:
            if base not in ANY_TYPE:
                _refuse_other_types(func, args)
            return self._composed(func, self._rules[base], args, kwargs)
        if base in SINGLE:
            _refuse_other_types(func, args)
            return _single(func, base, args, kwargs)
        return self._decomposed(func, args, kwargs)

    def _composed(self, func: Any, rule: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        try:
            result = rule(*args, **kwargs)
        except NotImplementedError as error:
            raise UnsupportedOperation(str(func), f"is {error}, which has no exact form") from error
        return args[0].copy_(result) if _in_place(func) else result

    def _decomposed(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Composite operations (linear, matmul in inference mode) in terms of their parts."""
        with self:
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise UnsupportedOperation(str(func))
        return result


@cache
def _base_name(func: Any) -> str:
    """aten's name of the operation, of the one that is not in place if it is."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace != "aten" or (func._schema.is_mutable and not _in_place(func)):
        raise UnsupportedOperation(str(func))
    return name[:-1] if _in_place(func) else name


@cache
def _in_place(func: Any) -> bool:
    name = func._schema.name
    return name.endswith("_") and not name.endswith("__")


def _single(func: Any, base: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """As it is, but α y and its addition by themselves: fused, they are rounded once."""
    alpha = kwargs.pop("alpha", args[2] if base in ("add", "sub", "rsub") and args[2:] else 1)
    args = args[:2] if base in ("add", "sub", "rsub") else args
    if alpha != 1:
        # x − α y, and rsub's y − α x.
        scaled = 0 if base == "rsub" else 1
        args = tuple(a * alpha if i == scaled else a for i, a in enumerate(args))
    if kwargs.get("rounding_mode") is not None and any(map(_is_fraction, args)):
        raise UnsupportedOperation(str(func), "rounds a quotient, which has no exact form")
    return func(*args, **kwargs)


def _is_fraction(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())


def _refuse_other_types(func: Any, args: Iterable[Any]) -> None:
    for x in args:
        if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64 and x.dim():
            raise UnsupportedOperation(str(func), f"is computed in {x.dtype}, not in float64")


def exact(module: Module) -> Module:
    """A copy in float64, frozen and in evaluation mode: what :class:`ExactMode` runs."""
    return copy.deepcopy(module).double().eval().requires_grad_(False)


def wide(x: Tensor) -> Tensor:
    """In float64; whole numbers (token ids) as they are."""
    return x.double() if x.is_floating_point() else x


def probe(module: nn.Module, example: Tensor, backward: bool = True) -> str | None:
    """None if ``module`` runs in exact mode on ``example``, forward (and backward); else why not."""
    network = exact(module)
    x = wide(example.detach()).requires_grad_(backward)
    try:
        with torch.enable_grad(), forward_ad_kernels(), ExactMode(network):
            output = network(x.clone())
            if backward:
                torch.autograd.grad(output.sum(), x)
    except UnsupportedOperation as error:
        return error.message
    return None
