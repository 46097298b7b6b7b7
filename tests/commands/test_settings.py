"""An option is declared once, at its field in the config: help, type, default and way into the config."""

from __future__ import annotations

import re
import tomllib
from typing import Annotated

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner, Result

from efface.cli import app
from efface.commands.settings import Given, takes_settings
from efface.errors import FormatError
from efface.pipeline.config import Config, load_config, to_toml
from efface.pipeline.options import ConfigSection, Flag, options_of
from efface.pipeline.sections import UserConfig


class Grown(UserConfig):
    """The user section with new settings: nothing else is said about them anywhere."""

    shine: Annotated[int, Flag("How bright. Default: {default}.")] = Field(default=3, le=9)
    dull: Annotated[bool, Flag("Not bright.", switch=True)] = False
    quiet: float = 0.5


class GrownConfig(Config):
    user: Grown = Grown()


def program(*texts: dict[str, str]) -> tuple[typer.Typer, list[Given]]:
    """A small program with the options of ``GrownConfig``, and what it was given."""
    small, seen = typer.Typer(), []

    @small.command()
    @takes_settings(*texts, config=GrownConfig)
    def run(
        given: Given, config: Annotated[str | None, typer.Option(help="A file.")] = None
    ) -> None:
        seen.append(given)

    return small, seen


def invoke(command: typer.Typer, *words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], env={"COLUMNS": "200"})


def test_a_field_with_a_flag_is_an_option_with_its_help_and_default() -> None:
    small, seen = program()
    shown = invoke(small, "--help").stdout
    assert re.search(r"--shine\W+<?(int|INTEGER)>?\W+How bright\. Default: 3\.", shown)
    assert "--dull" in shown
    assert "--no-dull" not in shown
    assert "--quiet" not in shown  # a setting for the file alone
    assert invoke(small, "digits", "--shine", 5, "--dull").exit_code == 0
    assert seen == [{"data.spec": "digits", "user.shine": 5, "user.dull": True}]


def test_what_is_typed_reaches_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efface.pipeline.config.Config", GrownConfig)
    small, seen = program()
    invoke(small, "digits", "--shine", 5)
    config = load_config(None, seen[0])
    assert config.user.shine == 5  # type: ignore[attr-defined]
    assert "shine = 5" in to_toml(config)
    invoke(small, "digits", "--shine", 10)
    with pytest.raises(FormatError, match=r"user\.shine should be less than or equal to 9, not 10"):
        load_config(None, seen[1])
    with pytest.raises(FormatError) as caught:
        load_config(None, {"data.spec": "digits", "user.shin": 1})
    assert caught.value.fix == "write 'shine'."


def test_a_command_may_take_some_of_them_with_words_of_its_own() -> None:
    small, seen = program({"user.shine": "As elsewhere ({default}).", "data.spec": "Data."})
    shown = invoke(small, "--help").stdout
    assert "As elsewhere (3)." in shown
    assert "--mu" not in shown
    assert invoke(small, "--mu", 1).exit_code == 2
    assert invoke(small, "--shine", 1).exit_code == 0
    assert seen == [{"user.shine": 1}]


def test_one_option_may_set_two_keys_but_two_meanings_need_two_names() -> None:
    assert options_of(Config)["seed"].keys == ("data.seed", "core.seed")

    class One(ConfigSection):
        seed: Annotated[int, Flag("Of one.")] = 0

    class Other(ConfigSection):
        seed: Annotated[int, Flag("Of the other.")] = 0

    class Both(ConfigSection):
        one: One = One()
        other: Other = Other()

    with pytest.raises(TypeError, match=r"one\.seed and other\.seed both want --seed"):
        options_of(Both)


@pytest.mark.parametrize("name", sorted(options_of(Config)))
def test_train_has_every_option_of_the_config(name: str) -> None:
    option = options_of(Config)[name]
    shown = " ".join(re.sub(r"[│\s]+", " ", invoke(app, "train", "--help").stdout).split())
    assert option.help() in shown
    assert option.flag.argument or f"--{name.replace('_', '-')}" in shown


def test_data_is_needed_where_no_file_could_name_it() -> None:
    result = invoke(app, "compare")
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr
    assert "no data given" in invoke(app, "trial").stderr


def test_a_preset_gives_settings_that_options_win_over() -> None:
    words = ("train", "photos/", "--print-config", "--preset")
    config = tomllib.loads(invoke(app, *words, "paper").stdout)
    user = config["user"]
    assert (user["kind"], user["mu"], user["loss"]) == ("tangent", 1e-5, "paper")
    config = tomllib.loads(invoke(app, *words, "paper", "--mu", 0.75).stdout)
    assert config["user"]["mu"] == 0.75
    wrong = invoke(app, *words, "fine")
    assert "no preset 'fine'" in f"{wrong.output}{wrong.exception}"
