"""efface: image classifiers that can forget.

>>> import efface
>>> data = efface.Records.digits()
>>> core = efface.Core("cnn", classes=data.classes).fit(data.core)
>>> model = efface.MixedLinear(core).fit(data.user)
>>> model.accuracy(data.test)  # doctest: +SKIP

Names are loaded when first used, so that ``import efface`` and ``efface --help`` do not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Record": "efface.records",
    "Records": "efface.records",
    "Split": "efface.records",
    "Preprocess": "efface.preprocess",
    "Core": "efface.core",
    "Stage": "efface.training",
    "MixedLinear": "efface.model",
    "Workspace": "efface.workspace",
    "Guarantee": "efface.certificates",
    "SGD": "efface.tangent.sgd",
    "ConjugateGradient": "efface.tangent.cg",
    "Cholesky": "efface.tangent.dense",
    "PaperForgetting": "efface.tangent.forgetting",
    "SolvedForgetting": "efface.tangent.forgetting",
    "LastLayer": "efface.lastlayer",
    "check": "efface.check",
    "settled": "efface.class_list",
    "EffaceError": "efface.errors",
}

if TYPE_CHECKING:
    from efface.certificates import Guarantee as Guarantee
    from efface.check import check as check
    from efface.class_list import settled as settled
    from efface.core import Core as Core
    from efface.errors import EffaceError as EffaceError
    from efface.lastlayer import LastLayer as LastLayer
    from efface.model import MixedLinear as MixedLinear
    from efface.preprocess import Preprocess as Preprocess
    from efface.records import Record as Record
    from efface.records import Records as Records
    from efface.records import Split as Split
    from efface.tangent.cg import ConjugateGradient as ConjugateGradient
    from efface.tangent.dense import Cholesky as Cholesky
    from efface.tangent.forgetting import PaperForgetting as PaperForgetting
    from efface.tangent.forgetting import SolvedForgetting as SolvedForgetting
    from efface.tangent.sgd import SGD as SGD
    from efface.training import Stage as Stage
    from efface.workspace import Workspace as Workspace

__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'efface' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
