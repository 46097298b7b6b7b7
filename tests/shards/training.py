"""Training by the command, small, and what comes out."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from efface.cli import app
from efface.workspace import Workspace

OPTIONS = ("--core-fraction", "0.3", "--features", "60", "--seed", "1")


def efface(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def failing(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code != 0, result.output
    return " ".join(result.output.split())


def weights(path: Path) -> str:
    certificate = Workspace.open(path).certificate
    assert certificate is not None
    return certificate.weights_digest  # type: ignore[attr-defined,no-any-return]
