"""``efface check``: what in a network would break linearisation, and what to do about it.

The safe fixes are applied when the core is built (eval mode, frozen statistics, LeakyReLU, folding, the
math attention kernel); the others are listed so that work does not start in vain.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from efface.arithmetic.choice import Arithmetic, choose_form_without_data
from efface.arithmetic.integer.form import IntegerForm
from efface.errors import EffaceError
from efface.linear.operator import TangentOperator
from efface.network import synthetic
from efface.network.core import Core
from efface.progress import Progress, part


@dataclass(frozen=True)
class Obstacle:
    """``fixed`` says that building the core already took care of it."""

    module: str
    problem: str
    fix: str
    fixed: bool


def check(
    backbone: str | nn.Module, *, linearize: str = "last-block", num_classes: int = 2
) -> list[Obstacle]:
    """All findings for a backbone; the last ones come from really differentiating the tail."""
    classes = [str(i) for i in range(num_classes)]
    core = Core(
        backbone, classes=classes, linearize=linearize, leaky_slope=None, fold_batchnorm=False
    )
    findings = [f for name, module in core.tail.named_modules() for f in _inspect(name, module)]
    return findings + _differentiate(core)


@dataclass(frozen=True)
class FormReport:
    """Which form compact gives the network, why not a better one, and the error of each summed tensor."""

    arithmetic: str
    kind: str
    reasons: tuple[str, ...]
    errors: tuple[tuple[str, float], ...]  # of 8-bit integers: ‖q 2^e − x‖/‖x‖ by operation
    parts: int  # layers whose sums were split to stay below 2^24


def check_form(
    backbone: str | nn.Module, *, linearize: str = "last-block", progress: Progress | None = None
) -> FormReport:
    """Build the form on a batch of synthetic images, and compare it with float32 on some of them.

    Training without core data looks at eight batches; which form it is does not depend on that.
    """
    core = Core(backbone, classes=["0", "1"], linearize=linearize)
    tell = part(progress, 0, 1)
    tell(0.1, "the arithmetic it gets")
    choice, _, _ = choose_form_without_data(core, Arithmetic.AUTO, count=synthetic.BATCH)
    tell(0.6, "its error")
    form = choice.form
    errors: tuple[tuple[str, float], ...] = ()
    parts = 0
    if isinstance(form, IntegerForm):
        images = torch.from_numpy(np.stack(synthetic.pixels(core, synthetic.BATCH)[:8]))
        errors = tuple(form.errors(images))
        graphs = (form.prefix_graph, form.tail_graph)
        parts = sum(len(a.parts) > 1 for graph in graphs for a in graph.affine.values())
    tell(1.0, "done")
    return FormReport(form.arithmetic, form.kind, choice.reasons, errors, parts)


def _inspect(name: str, module: nn.Module) -> list[Obstacle]:
    found = []
    if getattr(module, "inplace", False):
        found.append(
            Obstacle(
                name,
                "works in place, which would corrupt saved activations",
                "runs on a copy of them while linearised",
                True,
            )
        )
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
        found.append(Obstacle(name, f"dropout p = {module.p}", "switched off (eval mode)", True))
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        found += _inspect_norm(name, module)
    if isinstance(module, nn.ReLU):
        fix = "becomes LeakyReLU (leaky_slope), as the paper found better"
        found.append(Obstacle(name, "ReLU has a zero slope for half its inputs", fix, True))
    if isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer):
        found.append(
            Obstacle(
                name,
                "its fused path has no forward-mode derivative",
                "use explicit q, k, v projections with scaled_dot_product_attention",
                False,
            )
        )
    elif "scaled_dot_product_attention" in _source(module):
        found.append(
            Obstacle(name, "fused attention", "runs through the math kernel while linearised", True)
        )
    return found


def _inspect_norm(name: str, norm: nn.modules.batchnorm._BatchNorm) -> list[Obstacle]:
    if norm.running_mean is None:
        fix = "train it with track_running_stats=True, or use GroupNorm"
        return [Obstacle(name, "BatchNorm without running statistics mixes samples", fix, False)]
    return [Obstacle(name, "BatchNorm", "statistics frozen, folded into the convolution", True)]


def _source(module: nn.Module) -> str:
    try:
        return inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return ""


def _differentiate(core: Core) -> list[Obstacle]:
    """Forward against reverse mode in float64, uᵀ(J v) = (Jᵀu)ᵀv for u = 1, on two random samples."""
    generator = torch.Generator().manual_seed(0)
    nn.init.normal_(core.tail.head.weight, std=0.1, generator=generator)
    operator = TangentOperator(core.tail)
    x = torch.randn(2, *core.boundary_shape, generator=generator, dtype=torch.float64)
    v = torch.randn(operator.d, generator=generator, dtype=torch.float64)
    try:
        batch = operator.prepare(x, torch.float64)
        tangent = operator.jvp(batch, v)
        gradient = operator.vjp(batch, torch.ones_like(batch.outputs))
    except (RuntimeError, NotImplementedError, EffaceError) as error:
        text = str(error).splitlines()[0]
        fix = "choose a later boundary, or replace the module named in the message"
        return [Obstacle("tail", f"cannot be differentiated: {text}", fix, False)]
    both = float(tangent.sum()), float(gradient @ v)
    if abs(both[0] - both[1]) > 1e-8 * max(1.0, abs(both[0])):
        fix = "look for in-place operations and randomness in the tail"
        return [Obstacle("tail", "forward and reverse mode disagree", fix, False)]
    return []
