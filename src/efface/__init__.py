"""efface: image classifiers that can forget.

>>> import efface
>>> data = efface.Records.digits()
>>> clf = efface.ForgettingClassifier("cnn").fit(data)  # or images, labels, owners=…
>>> receipt = clf.forget(owner="u07")

The same from its parts:

>>> core = efface.Core("cnn", classes=data.classes).fit(data.core)
>>> model = efface.MixedLinear(core).fit(data.user)
>>> model.accuracy(data.test)  # doctest: +SKIP

Names are loaded when first used, so that ``import efface`` and ``efface --help`` do not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from efface.version import VERSION as __version__

_WHERE = {
    "ForgettingClassifier": "efface.door.classifier",
    "Record": "efface.data.record",
    "Records": "efface.data.records",
    "Pictures": "efface.data.pictures",
    "Split": "efface.data.record",
    "Preprocess": "efface.data.preprocess",
    "Tokens": "efface.data.numbers",
    "Vectors": "efface.data.numbers",
    "Core": "efface.network.core",
    "Stage": "efface.network.training",
    "FineTuning": "efface.network.finetuning",
    "fine_tune": "efface.network.finetuning",
    "MixedLinear": "efface.model.mixed_linear",
    "Workspace": "efface.workspace",
    "load": "efface.workspace.published",
    "Serving": "efface.workspace.serving",
    "from_pretrained": "efface.export.hub",
    "push_to_hub": "efface.export.hub",
    "Guarantee": "efface.guarantee.promise",
    "SGD": "efface.parts.tangent.sgd",
    "ConjugateGradient": "efface.parts.tangent.cg",
    "Cholesky": "efface.parts.tangent.dense",
    "PaperForgetting": "efface.parts.tangent.forgetting",
    "SolvedForgetting": "efface.parts.tangent.forgetting",
    "LastLayer": "efface.linear.last_layer",
    "check": "efface.pipeline.check",
    "settled": "efface.data.class_list",
    "EffaceError": "efface.errors",
    "EffaceWarning": "efface.errors",
}

if TYPE_CHECKING:
    from efface.data.class_list import settled as settled
    from efface.data.numbers import Tokens as Tokens
    from efface.data.numbers import Vectors as Vectors
    from efface.data.pictures import Pictures as Pictures
    from efface.data.preprocess import Preprocess as Preprocess
    from efface.data.record import Record as Record
    from efface.data.record import Split as Split
    from efface.data.records import Records as Records
    from efface.door.classifier import ForgettingClassifier as ForgettingClassifier
    from efface.errors import EffaceError as EffaceError
    from efface.errors import EffaceWarning as EffaceWarning
    from efface.export.hub import from_pretrained as from_pretrained
    from efface.export.hub import push_to_hub as push_to_hub
    from efface.guarantee.promise import Guarantee as Guarantee
    from efface.linear.last_layer import LastLayer as LastLayer
    from efface.model.mixed_linear import MixedLinear as MixedLinear
    from efface.network.core import Core as Core
    from efface.network.finetuning import FineTuning as FineTuning
    from efface.network.finetuning import fine_tune as fine_tune
    from efface.network.training import Stage as Stage
    from efface.parts.tangent.cg import ConjugateGradient as ConjugateGradient
    from efface.parts.tangent.dense import Cholesky as Cholesky
    from efface.parts.tangent.forgetting import PaperForgetting as PaperForgetting
    from efface.parts.tangent.forgetting import SolvedForgetting as SolvedForgetting
    from efface.parts.tangent.sgd import SGD as SGD
    from efface.pipeline.check import check as check
    from efface.workspace import Workspace as Workspace
    from efface.workspace.published import load as load
    from efface.workspace.serving import Serving as Serving

__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'efface' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
