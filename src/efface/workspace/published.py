"""What a workspace serves: the file CURRENT names the release, and the core that it belongs to.

Readers need no lock: the release is the old one or the new one, never a mixture.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efface import files
from efface.errors import FormatError

if TYPE_CHECKING:
    from torch import nn

    from efface.model.mixed_linear import MixedLinear
    from efface.network.activations import ActivationCache
    from efface.network.core import Core

CURRENT = "CURRENT"
SCHEMA = "efface.current/2"


@dataclass(frozen=True)
class Current:
    """The number of the published release, and that of the core it belongs to."""

    release: int
    core: int

    def folders(self, directory: Path) -> tuple[Path, Path]:
        """Of the core and of the release."""
        return directory / "core" / str(self.core), directory / "releases" / str(self.release)


def current(directory: Path) -> Current | None:
    """What is published if ``directory`` is a workspace, else None."""
    if not (directory / CURRENT).is_file():
        return None
    values = files.read_json(directory / CURRENT, SCHEMA)
    numbers = [values.get(name) for name in ("release", "core")]
    if not all(type(number) is int and number > 0 for number in numbers):  # never a path
        message = (
            f"{CURRENT} in {directory} names release {numbers[0]!r:.80}, core {numbers[1]!r:.80}."
        )
        raise FormatError(message, "restore it from a copy: both are numbers.")
    return Current(*numbers)  # type: ignore[arg-type]


def load(
    directory: Path | str,
    *,
    module: nn.Module | None = None,
    cache: ActivationCache | None = None,
    device: str | None = None,
) -> MixedLinear:
    """The model to predict with: what a workspace has published, or a model that was saved alone.

    Its predictions are bit-equal to those of the model that was saved. ``device`` is where its network is
    computed: "auto", "cuda", "mps" or "cpu", the default.
    """
    return load_current(directory, module=module, cache=cache, device=device).model


@dataclass(frozen=True)
class PublishedModel:
    """A model, and which release it is; None for one that was saved alone."""

    model: MixedLinear
    current: Current | None


def _same_core(one: Current | None, other: Current | None) -> bool:
    return one is not None and other is not None and one.core == other.core


def load_current(
    directory: Path | str,
    *,
    module: nn.Module | None = None,
    cache: ActivationCache | None = None,
    device: str | None = None,
    before: PublishedModel | None = None,
) -> PublishedModel:
    """As ``load``, with the release's number; ``before`` is an earlier release of the same workspace, whose
    core is used again if it is still the same."""
    # torch and all: only whoever predicts needs it
    from efface.model.mixed_linear import MixedLinear

    directory = Path(directory)
    while True:
        published = current(directory)
        core: Path | Core | None
        core, user = (None, directory) if published is None else published.folders(directory)
        if before is not None and _same_core(before.current, published):
            core = before.model.core
        try:
            options: dict[str, Any] = {"module": module, "cache": cache, "device": device}
            model = MixedLinear.load(user, core=core, **options)
            return PublishedModel(model, published)
        except Exception:
            # A request may have published another release, and deleted this one, in the meantime:
            # then whatever was raised (a file that vanished while it was read) means nothing.
            if current(directory) == published:
                raise
