"""The command line, called from tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from efface.cli import app
from efface.data.records import Records


def efface(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def values_of(result: Result, code: int = 0) -> dict[str, Any]:
    """The one JSON object on stdout."""
    assert result.exit_code == code, result.stderr
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def write(path: Path, *sets: Records) -> Path:
    """The records as an .npz file, which gives them the digests they have."""
    records = [record for records in sets for record in records]
    np.savez(
        path,
        images=np.stack([record.image()[:, :, 0] for record in records]),
        labels=np.array([record.label for record in records]),
        ids=np.array([record.id for record in records]),
        owners=np.array([record.owner for record in records]),
        cohorts=np.array([record.cohort for record in records]),
        splits=np.array([str(record.split) for record in records]),
        classes=np.array(["a", "b", "c"]),
    )
    return path


def program(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real program, in a process of its own."""
    command = [sys.executable, "-m", "efface", *map(str, words)]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


HEAVY = frozenset(
    {
        *("torch", "transformers", "sklearn", "scipy", "matplotlib", "jinja2", "cryptography"),
        *("PIL.Image", "importlib.metadata"),
    }
)
LIGHT = """
import sys
from efface.cli import build
build({words!r}[:1])({words!r}, standalone_mode=False)
loaded = {heavy!r} & set(sys.modules)
assert not loaded, loaded
"""


def light(*words: object, needs: frozenset[str] = frozenset()) -> None:
    """The command in a process of its own; an error if it has loaded a package that takes long to load
    (``HEAVY``) and is not one that it needs."""
    script = LIGHT.format(words=[str(word) for word in words], heavy=set(HEAVY - needs))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
