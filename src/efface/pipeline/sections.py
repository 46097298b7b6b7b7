"""The sections of a config: every setting of a training run, with its default, limits and option.

Settings that are often changed carry a ``Flag``: it makes them options of the command line (see
``options.py`` for how to add one). Nothing heavy is imported here: the ``build`` methods load the library
when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from efface.pipeline.core_section import SEED
from efface.pipeline.options import ConfigSection, Flag, Misplaced
from efface.pipeline.solvers import ConjugateGradientConfig, SolverConfig

if TYPE_CHECKING:
    from efface.data.listing import Listing
    from efface.data.records import Records
    from efface.model.mixed_linear import MixedLinear
    from efface.network.activations import ActivationCache
    from efface.network.core import Core


def _class_names(text: str) -> list[str]:
    from efface.data.class_list import class_names

    return class_names(text)


class DataConfig(ConfigSection):
    """``spec`` is "digits", a data set's name (``cub200``, ``cub200:DIR``; see docs/data.md), a folder, a
    .npz, .parquet, .tar, .csv or .jsonl file, or the URL of one in an object store.

    Without ``core_fraction`` the data's own core/user split stands; without ``channels`` all images
    must agree; without ``classes`` the list is the data's own, or that of the core records' labels.
    ``core_data`` is another such spec, of data that is core whole.
    ``label_type`` is for models trained in Python on labels that are numbers.
    """

    spec: Annotated[
        str,
        Flag(
            "digits, cub200 (see `efface data list`), a folder, a .npz, .parquet, .tar, .csv or .jsonl "
            "file, or a URL (s3://…, gs://…, hf://…).",
            name="data",
            argument=True,
        ),
    ] = Field(min_length=1)
    classes: Annotated[
        tuple[str, ...] | None,
        Flag(
            "The class list, in the order of the outputs: names separated by commas, or a file with one a "
            "line. Default: the data's own list, else the classes of core data.",
            read=_class_names,
        ),
    ] = Field(default=None, min_length=1)
    core_fraction: Annotated[
        float | None,
        Flag(
            "Make this share of the owners, drawn by name, core whole: they are never forgotten. "
            "Default: as the data says."
        ),
    ] = Field(default=None, ge=0, le=1)
    core_data: Annotated[
        str | None,
        Flag(
            "Other data that is core whole: a public set, say, with the same classes. Nobody in it can be "
            "forgotten. Default: none."
        ),
    ] = Field(default=None, min_length=1)
    seed: Annotated[int, SEED] = 0
    channels: Annotated[
        Literal["gray", "rgb"] | None,
        Flag("Convert images: gray or rgb. Default: they must agree."),
    ] = None
    skip_bad: Annotated[
        bool, Flag("Set unreadable images aside instead of stopping.", switch=True)
    ] = False
    absolute_paths: Annotated[
        bool, Flag("Let a list name files anywhere, by their absolute paths.", switch=True)
    ] = False
    decode_workers: Annotated[
        int, Flag("Processes that decode images ahead of the network; 0: threads. Default: 0.")
    ] = Field(default=0, ge=0, le=1024)
    label_type: Literal["integer"] | None = None

    def build(self) -> Records:
        return self.listing().records()

    def listing(self, pieces: Callable[[str], bool] | None = None) -> Listing:
        """What the data lists, no image looked at; of archives, those among the ``pieces`` alone."""
        from efface.data.listing import Listing

        options = self.model_dump(exclude={"spec", "label_type", "core_data", "decode_workers"})
        return Listing.open(self.spec, self.core_data, pieces, **options)


class UserConfig(ConfigSection):
    """The user part. ``replay_core`` uses core records again in its fit, as the paper does.

    ``mu`` left out: the compact part chooses it on core data, the tangent part takes 0.01. ``features``,
    ``bits``, ``bases``, ``layer_features``, ``power``, ``calibration`` and ``arithmetic`` are the compact
    part's, ``solver``, ``scales``, ``layers`` and ``loss`` are the tangent part's. ``arithmetic`` is integer
    (the same bits on every machine), float, or auto: integer if possible. ``scales`` plain is the paper's
    model, balanced brings every layer to one size on core data. ``loss`` says which loss ``mu`` and
    sgd's ``lr`` are meant for: sum (ours), or paper: averaged over the classes, too (docs/errata.md, 28).
    ``calibration`` is a data spec, a folder of public images say, for bases and scales instead of core data.
    """

    kind: Annotated[
        Literal["compact", "tangent"],
        Flag("compact (exact forgetting, the default) or tangent (the paper's).", name="user"),
    ] = "compact"
    mu: Annotated[
        float | None, Flag("The ridge. Default: chosen on core data (compact), 0.01 (tangent).")
    ] = Field(default=None, gt=0)
    target_scale: float = Field(default=5.0, gt=0)
    replay_core: Annotated[
        bool, Flag("Use core records again in the user fit. Default: {default}.")
    ] = True
    features: Annotated[
        int, Flag("How many features the compact part has, about. Default: {default}.")
    ] = Field(default=4096, ge=1)
    bits: Annotated[int, Flag("Of a compact feature, 2 to 16. Default: {default}.")] = Field(
        default=8, ge=2, le=16
    )
    bases: Literal["core", "random"] = "core"
    layer_features: Annotated[
        Literal["gradients", "moments", "maps", "covariances"] | None,
        Flag(
            "What compact keeps beside pooled features: covariances, maps, moments or "
            "gradients. Default: covariances for images and networks with ReLU, else gradients."
        ),
    ] = None
    power: Annotated[
        float | None,
        Flag("Of compact's features: 0.25, 0.5, 0.75 or 1. Default: 0.5 for such images, else 1."),
    ] = Field(default=None, gt=0, le=1)
    arithmetic: Annotated[
        Literal["auto", "integer", "float"],
        Flag(
            "integer (compact: rows and weights are the same bits on every machine), float (on this one), "
            "or auto: integer where the network has such a form. Default: {default}."
        ),
    ] = "auto"
    calibration: Annotated[
        str | None,
        Flag(
            "Public images for bases and scales (compact). Default: core data, else none are needed."
        ),
    ] = Field(default=None, min_length=1)
    solver: Annotated[
        SolverConfig,
        Flag("cg, dual (small ridges, large networks), sgd or cholesky. Default: {default}."),
    ] = ConjugateGradientConfig()
    scales: Annotated[
        Literal["plain", "balanced"],
        Flag(
            "Of the tangent part: plain (the paper's) or balanced on core data. Default: {default}."
        ),
    ] = "plain"
    layers: Annotated[
        Literal["all", "final"],
        Flag(
            "Which layers from --linearize on have user weights (tangent): all, or final (the last "
            "convolution with its BatchNorm, and the head). Default: {default}."
        ),
    ] = "all"
    loss: Annotated[
        Literal["sum", "paper"],
        Flag(
            "Which loss --mu and sgd's rate are for (tangent): sum over the classes, or paper: the mean "
            "over them, as its numbers seem to be meant. Default: {default}."
        ),
    ] = "sum"

    rate: Annotated[
        float | None, Flag("The first learning rate of sgd. Default: its lr, 0.05.")
    ] = Field(default=None, gt=0)
    epochs: Annotated[int | None, Flag("Of sgd. Default: 50.")] = Field(default=None, ge=1)

    @field_validator("power")
    @classmethod
    def _known_power(cls, value: float | None) -> float | None:
        """Before anything is trained."""
        if value is not None:
            from efface.parts.compact.power_map import POWERS

            if value not in POWERS:
                raise ValueError(f"should be one of {', '.join(f'{p:g}' for p in POWERS)}")
        return value

    @field_validator("scales", "loss", "layers")
    @classmethod
    def _of_tangent(cls, value: str, info: ValidationInfo) -> str:
        """A setting that the part does not take has its default."""
        from efface.parts.table import part_named

        name, kind = str(info.field_name), info.data.get("kind")
        first = cls.model_fields[name].default
        if kind is not None and value != first and name not in part_named(kind).options:
            raise Misplaced(f"should be {first!r} for the {kind} part", "--user tangent")
        return value

    @field_validator("rate", "epochs")
    @classmethod
    def _of_sgd(cls, value: float | None, info: ValidationInfo) -> float | None:
        from efface.parts.table import part_named

        kind, solver = info.data.get("kind"), info.data.get("solver")
        if value is None or kind is None or solver is None:
            return value
        if info.field_name not in part_named(kind).options:
            told = f"is for the tangent part's solver sgd: the {kind} part solves once"
            raise Misplaced(told, "--user tangent --solver sgd")
        if solver.kind != "sgd":
            raise Misplaced(f"is for the solver sgd and not for {solver.kind}", "--solver sgd")
        return value

    def given(self) -> dict[str, Any]:
        """The settings that the part takes: those that it names as its ``options``, and two that all have."""
        from efface.parts.table import part_named

        found: dict[str, Any] = {"target_scale": self.target_scale}
        if self.mu is not None:
            found["mu"] = self.mu
        for name in part_named(self.kind).options:
            value = getattr(self, name)
            if value is None and name in ("layer_features", "power"):
                continue  # the part knows what is usual
            found[name] = value.build() if hasattr(value, "build") else value
        return found

    def build(self, core: Core, cache: ActivationCache | None = None) -> MixedLinear:
        """The model, not fitted yet."""
        from efface.model.mixed_linear import MixedLinear
        from efface.parts.table import part_named

        arguments = part_named(self.kind).arguments(core, self.given(), cache)
        return MixedLinear(core, self.kind, cache=cache, **arguments)

    def reading_note(self, num_classes: int) -> str | None:
        """How printed numbers are read, where that is not as they stand."""
        if self.loss == "sum":
            return None
        from efface.parts.tangent.reading import Reading

        reading, read = Reading(self.loss), []
        if self.solver.kind == "sgd":
            rate = self.rate or self.solver.lr
            read.append(f"rate {rate:g} is {reading.rate(rate, num_classes):.3g}")
        if self.mu is not None:
            read.append(f"weight decay {self.mu:g} is mu {reading.ridge(self.mu, num_classes):.3g}")
        text = "the loss is read as averaged over the classes, too (docs/errata.md, 28)"
        return f"{text}: {', '.join(read)}" if read else text


class OutputConfig(ConfigSection):
    """``dir`` gets the model; ``cache`` keeps boundary activations (not kept on disk by default)."""

    dir: Annotated[str, Flag("The model's folder. Default: {default}.", name="out", path=True)] = (
        Field(default="efface-model", min_length=1)
    )
    cache: Annotated[str | None, Flag("Keep boundary activations in this folder.", path=True)] = (
        None
    )
