"""One TOML file that says everything about a training run; see ``Config`` for the sections.

A key that does not exist is an error that names it: a misspelt setting must not look like a default.
Nothing heavy is imported here: the ``build`` methods load the library when they are called.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from efface.errors import FormatError

if TYPE_CHECKING:
    from efface.data.records import Records
    from efface.model.mixed_linear import MixedLinear
    from efface.network.activations import ActivationCache
    from efface.network.backbone import Backbone
    from efface.network.core import Core
    from efface.network.training import Stage
    from efface.parts.tangent.user import Solver


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Table):
    """``spec`` is "digits", a data set's name (``cub200``, ``cub200:DIR``; see docs/data.md), a folder, or a
    .npz, .parquet, .csv or .jsonl file.

    Without ``core_fraction`` the data's own core/user split stands; without ``channels`` all images
    must agree; without ``classes`` the list is the data's own, or that of the core records' labels.
    ``label_type`` is for models trained in Python on labels that are numbers.
    """

    spec: str = Field(min_length=1)
    classes: tuple[str, ...] | None = Field(default=None, min_length=1)
    core_fraction: float | None = Field(default=None, ge=0, le=1)
    seed: int = 0
    channels: Literal["gray", "rgb"] | None = None
    skip_bad: bool = False
    label_type: Literal["integer"] | None = None

    def build(self) -> Records:
        from efface.data.records import Records

        return Records.open(self.spec, **self.model_dump(exclude={"spec", "label_type"}))


class StageConfig(_Table):
    """One stage of core training; see ``efface.Stage``."""

    train: Literal["head", "tail", "all"] = "head"
    epochs: int = Field(default=30, ge=1)
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    batch_size: int = Field(default=64, ge=1)

    def build(self) -> Stage:
        from efface.network.training import Stage

        return Stage(**self.model_dump())


class CoreConfig(_Table):
    """``leaky_slope = 0`` keeps the ReLUs, ``calibrate_to = 0`` the scale of the core's logits; no
    ``stages`` means the backbone's default ones. ``resize`` (short side) and ``crop`` (central square), if
    given, replace those of the backbone's preprocessing; 0 leaves that step out."""

    backbone: str = Field(default="cnn", min_length=1)
    linearize: str = Field(default="last-block", min_length=1)
    leaky_slope: float = Field(default=0.01, ge=0, lt=1)
    fold_batchnorm: bool = True
    mirror: bool = False
    calibrate_to: float = Field(default=0.0, ge=0)
    resize: int | None = Field(default=None, ge=0)
    crop: int | None = Field(default=None, ge=0)
    seed: int = 0
    stages: tuple[StageConfig, ...] = ()

    def build(self, classes: Sequence[str]) -> Core:
        from efface.network.core import Core

        return Core(
            self._sized(),
            classes=classes,
            linearize=self.linearize,
            leaky_slope=self.leaky_slope or None,
            fold_batchnorm=self.fold_batchnorm,
            mirror=self.mirror,
            seed=self.seed,
        )

    def _sized(self) -> str | Backbone:
        """The backbone, with its preprocessing changed where ``resize`` or ``crop`` say so."""
        sizes = {"resize": self.resize, "crop": self.crop}
        given: dict[str, Any] = {k: v for k, v in sizes.items() if v is not None}
        if not given:
            return self.backbone
        from efface.network.backbone import load_backbone

        named = self.linearize not in ("head", "last-block", "last-stage", "all")
        boundary = self.linearize if named else None
        loaded = load_backbone(self.backbone, boundary=boundary, seed=self.seed)
        return replace(loaded, preprocess=replace(loaded.preprocess, **given))

    def fit_options(self) -> dict[str, Any]:
        """What ``Core.fit`` takes beside the records."""
        stages = [stage.build() for stage in self.stages] or None
        return {"stages": stages, "calibrate_to": self.calibrate_to or None}


class ConjugateGradientConfig(_Table):
    kind: Literal["cg"] = "cg"
    tolerance: float = Field(default=1e-4, gt=0)
    absolute: float | None = Field(default=None, gt=0)
    max_passes: int = Field(default=500, ge=3)
    refinements: int = Field(default=8, ge=0)

    def build(self) -> Solver:
        from efface.parts.tangent.cg import ConjugateGradient

        return ConjugateGradient(**self.model_dump(exclude={"kind"}))


class SGDConfig(_Table):
    kind: Literal["sgd"] = "sgd"
    epochs: int = Field(default=50, ge=1)
    batch_size: int = Field(default=64, ge=1)
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    milestones: tuple[int, ...] = (25, 40)
    factor: float = Field(default=0.1, gt=0, le=1)
    replacement: bool = False
    tolerance: float | None = Field(default=None, gt=0)
    seed: int = 0

    def build(self) -> Solver:
        from efface.parts.tangent.sgd import SGD

        return SGD(**self.model_dump(exclude={"kind"}))


class CholeskyConfig(_Table):
    kind: Literal["cholesky"] = "cholesky"
    max_weights: int = Field(default=20_000, ge=1)

    def build(self) -> Solver:
        from efface.parts.tangent.dense import Cholesky

        return Cholesky(**self.model_dump(exclude={"kind"}))


SOLVERS: dict[str, type[_Table]] = {
    "cg": ConjugateGradientConfig,
    "sgd": SGDConfig,
    "cholesky": CholeskyConfig,
}


def _named(value: Any) -> Any:
    """``solver = "cg"`` is short for a table with only its kind; a table without one is cg's."""
    if isinstance(value, str):
        return {"kind": value}
    return {"kind": "cg", **value} if isinstance(value, Mapping) else value


SolverConfig = Annotated[
    Annotated[ConjugateGradientConfig | SGDConfig | CholeskyConfig, Field(discriminator="kind")],
    BeforeValidator(_named),
]


class UserConfig(_Table):
    """The user part. ``replay_core`` uses core records again in its fit, as the paper does.

    ``mu`` left out: the compact part chooses it on core data, the tangent part takes 0.01. ``features``,
    ``bits``, ``bases``, ``calibration`` and ``arithmetic`` are the compact part's, ``solver`` is the tangent
    part's. ``arithmetic`` is integer (the same bits on every machine), float, or auto: integer if possible.
    ``calibration`` is a data spec, a folder of public images say, for bases and scales instead of core data.
    """

    kind: Literal["compact", "tangent"] = "compact"
    mu: float | None = Field(default=None, gt=0)
    target_scale: float = Field(default=5.0, gt=0)
    replay_core: bool = True
    features: int = Field(default=4096, ge=1)
    bits: int = Field(default=8, ge=2, le=16)
    bases: Literal["core", "random"] = "core"
    arithmetic: Literal["auto", "integer", "float"] = "auto"
    calibration: str | None = Field(default=None, min_length=1)
    solver: SolverConfig = ConjugateGradientConfig()

    def build(self, core: Core, cache: ActivationCache | None = None) -> MixedLinear:
        from efface.model.mixed_linear import MixedLinear

        options: dict[str, Any] = {"target_scale": self.target_scale}
        if self.mu is not None:
            options["mu"] = self.mu
        if self.kind == "tangent":
            options["solver"] = self.solver.build()
        else:
            options |= {"features": self.features, "bits": self.bits, "bases": self.bases}
            options["arithmetic"] = self.arithmetic
        return MixedLinear(core, self.kind, cache=cache, **options)


class OutputConfig(_Table):
    """``dir`` gets the model; ``cache`` keeps boundary activations (not kept on disk by default)."""

    dir: str = Field(default="efface-model", min_length=1)
    cache: str | None = None


class Config(_Table):
    """``[data]``, ``[core]``, ``[user]``, ``[output]``."""

    data: DataConfig
    core: CoreConfig = CoreConfig()
    user: UserConfig = UserConfig()
    output: OutputConfig = OutputConfig()


# Reading.


def load_config(path: Path | str | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """The file's settings (none: all defaults) with ``overrides`` on top.

    ``overrides`` maps dotted keys to values, ``{"user.mu": 0.1}``; None means "not given". Paths in
    the settings are relative to the working directory.
    """
    values = {} if path is None else _read(Path(path))
    for key, value in (overrides or {}).items():
        if value is not None:
            _set(values, key.split("."), value)
    values.setdefault("data", {})
    try:
        return Config.model_validate(values)
    except ValidationError as problem:
        raise _explained(problem, "the settings" if path is None else Path(path).name) from problem


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise FormatError(f"the config {path} cannot be read.", "check the path.") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        fix = (
            "correct the line; strings need quotes, sections are [data], [core], [user], [output]."
        )
        raise FormatError(f"{path.name} is not TOML: {problem}.", fix) from problem


def _set(values: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a dotted key. Another solver than the file's does not inherit the file's options."""
    *sections, last = keys
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # the file has a value where a section belongs: validation says so
        values = inner
    before = values.get(last)
    if isinstance(before, dict) and before.get("kind", "cg") == value:
        return
    values[last] = value


def _explained(problem: ValidationError, where: str) -> FormatError:
    """The first problem as a sentence that names the key, and how many more there are."""
    errors = problem.errors()
    first = errors[0]
    keys, kind = _location(first["loc"])
    name = ".".join(keys)
    more = f" ({len(errors) - 1} more after it)" if len(errors) > 1 else ""
    if first["type"] == "extra_forbidden":
        return FormatError(f"{where}: unknown key {name!r}{more}.", _known(keys, kind))
    if name == "data.spec" and first["type"] == "missing":
        fix = 'name the data on the command line, or as spec = "…" in [data] of the config.'
        return FormatError("no data given.", fix)
    if first["type"] == "union_tag_invalid":
        name, text = f"{name}.kind", "should be 'cg', 'sgd' or 'cholesky'"
        return FormatError(f"{where}: {name} {text}{more}.", "use one of these.")
    given = "" if first["type"] == "missing" else f", not {first['input']!r}"
    text = first["msg"].removeprefix("Input ")
    return FormatError(f"{where}: {name} {text}{given}{more}.", "correct this value.")


def _location(loc: tuple[int | str, ...]) -> tuple[list[str], str]:
    """The dotted key as the file has it, and the solver's kind, which pydantic puts into the path."""
    keys = [str(part) for part in loc]
    kind = keys.pop(2) if keys[:2] == ["user", "solver"] and len(keys) > 2 else ""
    return keys, kind


def _known(keys: list[str], kind: str) -> str:
    """The likely spelling if there is one, else the keys of the section."""
    names = _keys_of(keys[:-1], kind)
    close = difflib.get_close_matches(keys[-1], names, n=1)
    if close:
        return f"write {close[0]!r}."
    section = f"[{'.'.join(keys[:-1])}]" if len(keys) > 1 else "the file"
    return f"take it out; {section} knows {', '.join(names)}."


def _keys_of(section: list[str], kind: str) -> list[str]:
    tables: dict[str, type[BaseModel]] = {
        "data": DataConfig,
        "core": CoreConfig,
        "user": UserConfig,
        "output": OutputConfig,
    }
    if section[:2] == ["core", "stages"]:
        return list(StageConfig.model_fields)
    if section[:2] == ["user", "solver"]:
        return list(SOLVERS[kind].model_fields)
    return list(tables[section[0]].model_fields) if section else list(tables)


# Writing.


def to_toml(config: Config) -> str:
    """The resolved settings; ``load_config`` of this text gives an equal ``Config``."""
    return _table_text(config.model_dump(exclude_none=True), ())


def _table_text(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """Plain values first, then sub-tables: in TOML a key after a header belongs to that header."""
    plain = {k: v for k, v in values.items() if not _is_table(v) and not _is_table_list(v)}
    text = "".join(f"{key} = {_value_text(value)}\n" for key, value in plain.items())
    if path and (plain or not values):
        text = f"[{'.'.join(path)}]\n{text}\n"
    for key, value in values.items():
        if _is_table(value):
            text += _table_text(value, (*path, key))
        elif _is_table_list(value):
            text += "".join(_list_entry_text(entry, (*path, key)) for entry in value)
    return text if path else text.rstrip("\n") + "\n"


def _list_entry_text(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    lines = "".join(f"{key} = {_value_text(value)}\n" for key, value in values.items())
    return f"[[{'.'.join(path)}]]\n{lines}\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_table, value))


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else f"{'-' if value < 0 else ''}inf"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    return repr(value)
