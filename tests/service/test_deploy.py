"""What lies in deploy/ fits the program: its commands, its paths, a unit that systemd reads."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.places import ROOT
from typer.main import get_command

from efface.cli import app

DEPLOY = ROOT / "deploy"
ANALYZE = shutil.which("systemd-analyze")


def assert_parses(words: list[str]) -> None:
    """The command is there and takes these options; it is not run."""
    name, *options = words
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(options))


def unit() -> str:
    return (DEPLOY / "efface.service").read_text()


def test_the_unit_starts_a_command_of_ours() -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit(), re.MULTILINE)
    program, *words = shlex.split(line)
    assert program.endswith("/efface")
    assert_parses(words)


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze on this system")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = shutil.which("true")  # ours is not installed where the unit expects it
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", unit(), flags=re.MULTILINE)
    (tmp_path / "efface.service").write_text(text)
    words = [str(ANALYZE), "verify", str(tmp_path / "efface.service")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "efface.service" in line]
    assert (done.returncode, ours) == (0, [])


def test_the_containers_start_commands_of_ours() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "worker"}
    for service in services.values():
        assert_parses(service["command"])
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve().is_file()
        assert service["volumes"] == ["./data:/srv/efface"]
    assert "--no-worker" in services["server"]["command"]
    assert services["worker"]["ports"] == []


def test_the_image_copies_what_there_is() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [
        word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()
    ]
    assert {"constraints.txt", "pyproject.toml", "src"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    (words,) = re.findall(r'^CMD (\["serve".*\])$', text, re.MULTILINE)
    assert_parses(yaml.safe_load(words))
