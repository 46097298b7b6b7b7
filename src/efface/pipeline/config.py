"""One TOML file that says everything about a training run: ``Config``, read and written.

A key that does not exist is an error that names it: a misspelt setting must not look like a default. The
settings themselves are in ``sections.py``.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from efface.errors import FormatError
from efface.pipeline.core_section import CoreConfig, StageConfig
from efface.pipeline.options import ConfigSection, Misplaced, options_of
from efface.pipeline.preset import preset_values
from efface.pipeline.sections import DataConfig, OutputConfig, UserConfig
from efface.pipeline.solvers import SOLVERS


class Config(ConfigSection):
    """``[data]``, ``[core]``, ``[user]``, ``[output]``."""

    data: DataConfig
    core: CoreConfig = CoreConfig()
    user: UserConfig = UserConfig()
    output: OutputConfig = OutputConfig()


# Reading.


def load_config(
    path: Path | str | None,
    overrides: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> Config:
    """The file's settings (none: all defaults) with ``overrides`` on top, over those of a ``preset``.

    ``overrides`` maps dotted keys to values, ``{"user.mu": 0.1}``; None means "not given". Paths in
    the settings are relative to the working directory.
    """
    values: dict[str, Any] = preset_values(preset)
    for section, given in ({} if path is None else _read(Path(path))).items():
        both = isinstance(given, dict) and section in values
        values[section] = {**values[section], **given} if both else given
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
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
        name, text = f"{name}.kind", "should be 'cg', 'dual', 'sgd' or 'cholesky'"
        return FormatError(f"{where}: {name} {text}{more}.", "use one of these.")
    given = "" if first["type"] == "missing" else f", not {first['input']!r}"
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, Misplaced):
        fix = f"leave {_typed(name)} out, or ask for {reason.beside}, too."
        return FormatError(f"{where}: {name} {text}{more}.", fix)
    return FormatError(f"{where}: {name} {text}{given}{more}.", "correct this value.")


def _typed(name: str) -> str:
    """A setting as one types it: its option, and its key in a file."""
    found = [option.name for option in options_of(Config).values() if name in option.keys]
    return f"--{found[0].replace('_', '-')} ({name} in a config)" if found else name


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
    if section[:2] == ["core", "stages"]:
        return list(StageConfig.model_fields)
    if section[:2] == ["user", "solver"]:
        return list(SOLVERS[kind].model_fields)
    if not section:
        return list(Config.model_fields)
    table = Config.model_fields[section[0]].annotation
    return list(getattr(table, "model_fields", ()))


# Writing.


def to_toml(config: Config) -> str:
    """The resolved settings; ``load_config`` of this text gives an equal ``Config``."""
    return _table_text(config.model_dump(exclude_none=True), ())


def _table_text(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """Plain values first, then sub-tables: in TOML a key after a header belongs to that header."""
    plain = {k: v for k, v in values.items() if not _is_table(v) and not _is_table_list(v)}
    text = "".join(f"{key} = {toml_value(value)}\n" for key, value in plain.items())
    if path and (plain or not values):
        text = f"[{'.'.join(path)}]\n{text}\n"
    for key, value in values.items():
        if _is_table(value):
            text += _table_text(value, (*path, key))
        elif _is_table_list(value):
            text += "".join(_list_entry_text(entry, (*path, key)) for entry in value)
    return text if path else text.rstrip("\n") + "\n"


def _list_entry_text(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    lines = "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())
    return f"[[{'.'.join(path)}]]\n{lines}\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_table, value))


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else f"{'-' if value < 0 else ''}inf"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)
