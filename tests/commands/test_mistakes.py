"""Mistakes: one line with a fix, the right exit code, and nothing half done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from tests.shell import efface, values_of
from typer.testing import CliRunner

from efface.cli import guarded
from efface.errors import GuaranteeError, LedgerError
from efface.workspace import Workspace
from efface.workspace.published import load


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("train",), "no data given"),
        (("train", "no-such-data"), "no-such-data"),
        (("train", "digits", "--mu", -1), "user.mu"),
        (("train", "digits", "--solver", "newton"), "user.solver"),
        (("train", "digits", "--user", "other"), "user.kind"),
        (("train", "digits", "--backbone", "resnet"), "resnet"),
        (("train", "digits", "--linearize", "nowhere"), "nowhere"),
        (("train", "digits", "--core-fraction", 2), "data.core_fraction"),
        (("train", "digits", "--config", "missing.toml"), "missing.toml"),
        (("evaluate", "no-model", "digits"), "there is no no-model."),
        (("predict", "no-model", "x.png"), "there is no no-model."),
        (("forget", "no-model", "--owner", "u17"), "there is no no-model."),
        (("forget", ".", "--owner", "u17"), ". is not a workspace."),
        (("verify", "no-model"), "there is no no-model."),
        (("check", "resnet"), "resnet"),
    ],
)
def test_a_mistake_is_one_line_with_a_fix(words: tuple[object, ...], named: str) -> None:
    result = efface(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert named in result.stderr
    assert " Fix: " in result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("predict", "MODEL", "missing.png"), "missing.png"),
        (("predict", "MODEL", "digits", "--split", "train"), "train"),
        (("evaluate", "MODEL", "digits", "--split", "val"), "val"),
        (("evaluate", "MODEL", "no-such-data"), "no-such-data"),
    ],
)
def test_mistakes_with_a_model(
    trained: tuple[Path, dict], words: tuple[str, ...], named: str
) -> None:
    result = efface(*(trained[0] if word == "MODEL" else word for word in words))
    assert result.exit_code == 2
    assert named in result.stderr


def test_a_damaged_image_is_named(trained: tuple[Path, dict], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"not an image")
    result = efface("predict", trained[0], tmp_path / "bad.png")
    assert result.exit_code == 2
    assert "bad.png" in result.stderr


def image_folder(root: Path) -> Path:
    """Two classes of 8 × 8 images, 4 to train on and 1 to test on each, and one broken file."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 1)):
        for name, base in (("dark", 40), ("light", 200)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(base - 30, base + 30, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    (root / "train" / "dark" / "broken.png").write_bytes(b"\x89PNG but no more")
    return root


def test_bad_images_stop_training_unless_they_are_skipped(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos")
    stopped = efface("train", folder, "--core-fraction", 0.5, "--dry-run")
    assert stopped.exit_code == 2
    assert "broken.png" in stopped.stderr
    words = ("train", folder, "--core-fraction", 0.5, "--skip-bad")
    values = values_of(efface(*words, "--out", tmp_path / "m", "--json"))
    assert values["skipped"] == 1
    assert values["records"] == {"core": 4, "user": 4, "test": 2}


def test_no_core_records_for_an_untrained_network(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos")
    result = efface("train", folder, "--skip-bad", "--out", tmp_path / "m")
    assert result.exit_code == 2
    assert "--core-fraction" in result.stderr
    assert not (tmp_path / "m").exists()


def test_no_core_records_for_a_pretrained_network(pretrained: str, tmp_path: Path) -> None:
    """Head of zeros, scales from the network's own statistics; then forgotten and verified as ever."""
    data = image_folder(tmp_path / "photos")
    words = ("--backbone", pretrained, "--core-fraction", 0, "--skip-bad", "--channels", "rgb")
    nameless = efface("train", data, *words, "--out", tmp_path / "m")
    assert nameless.exit_code == 2
    assert "--classes" in nameless.stderr
    words += ("--classes", "dark,light")
    result = efface("train", data, *words, "--out", tmp_path / "m", "--json")
    assert "no core records" in result.stderr
    values = values_of(result)
    assert values["records"]["core"] == 0
    assert values["part"]["calibration"] == "the network's normalisation statistics"
    user, rows = load(tmp_path / "m").user, Workspace(tmp_path / "m").data.rows.whole()
    assert values["part"]["saturated"] == user.num_saturated(rows)
    assert values["part"]["values"] == rows.features.size + rows.targets.size
    shown = efface("train", data, *words, "--out", tmp_path / "n").stdout
    assert "bases and scales from the network's normalisation statistics" in shown
    owner = efface("forget", tmp_path / "m", "--id", Workspace(tmp_path / "m").records.ids[0])
    assert owner.exit_code == 0, owner.stderr
    assert efface("verify", tmp_path / "m", "--retrain").exit_code == 0


def test_public_images_for_scales(pretrained: str, tmp_path: Path) -> None:
    data = image_folder(tmp_path / "photos")
    public = tmp_path / "public" / "things"
    public.mkdir(parents=True)
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(public / f"{i}.png")
    words = ("--backbone", pretrained, "--skip-bad", "--channels", "rgb", "--json")
    words += ("--classes", "dark,light")
    out = ("--calibration", public.parent, "--out", tmp_path / "m")
    values = values_of(efface("train", data, *words, *out))
    assert values["part"]["calibration"] == "given records"
    result = efface("train", data, *words, "--calibration", data, "--out", tmp_path / "n")
    assert result.exit_code == 2
    assert "are user records" in result.stderr


@pytest.mark.parametrize("words", [("--ownr", "u1"), ("--epsilon", "much"), ()])
def test_words_that_are_no_options_are_json_too(words: tuple[str, ...]) -> None:
    values = values_of(efface("forget", "nowhere", "--json", *words), code=2)
    assert values["exit_code"] == 2
    assert values["error"]
    assert values["fix"]


def test_a_name_that_is_no_text_is_no_bug(folder: Path) -> None:
    """What a shell in another encoding hands over."""
    result = efface("forget", folder / "compact", "--owner", "Jos\udce9", "--dry-run")
    assert result.exit_code == 2
    assert "is no name" in result.stderr


def test_lists_of_classes(tmp_path: Path) -> None:
    many = ",".join(f"class-number-{i}" for i in range(300))  # too long for the name of a file
    result = efface("train", "digits", "--dry-run", "--classes", many)
    assert "and 295 more" in result.stderr
    (tmp_path / "list.txt").write_bytes(b"\xff\xfea\n")
    result = efface("train", "digits", "--dry-run", "--classes", tmp_path / "list.txt")
    assert result.exit_code == 2
    assert "list.txt is no list of classes" in result.stderr


@pytest.mark.parametrize("text", [b"a = " + b"[" * 50_000, b"\xff"])
def test_a_config_that_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "run.toml").write_bytes(text)
    result = efface("train", "--config", tmp_path / "run.toml")
    assert result.exit_code == 2
    assert "run.toml is not TOML" in result.stderr


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[" * 50_000, b"{}", b'{"ids": 7}'])
def test_a_file_of_requests_that_is_none(folder: Path, tmp_path: Path, line: bytes) -> None:
    (tmp_path / "requests.jsonl").write_bytes(line + b"\n")
    result = efface("forget", folder / "compact", "--from", tmp_path / "requests.jsonl")
    assert result.exit_code == 2
    assert "bug" not in result.stderr


def test_unknown_options_are_usage_errors() -> None:
    assert efface("train", "digits", "--bogus").exit_code == 2
    assert efface("bogus").exit_code == 2


def exit_code(problem: BaseException) -> int:
    """The exit code of a command that raises ``problem``."""
    small = typer.Typer(pretty_exceptions_enable=False)

    @small.command()
    @guarded
    def command() -> None:
        raise problem

    return CliRunner().invoke(small, []).exit_code


def test_exit_codes_are_those_of_the_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EFFACE_DEBUG", raising=False)
    assert exit_code(GuaranteeError("not reached.")) == 3
    assert exit_code(LedgerError("does not check.")) == 4
    assert exit_code(RuntimeError("a bug")) == 1
    assert exit_code(typer.Exit(7)) == 7
    assert exit_code(typer.BadParameter("no")) == 2
