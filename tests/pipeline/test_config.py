"""The config: what is written is read back, what is wrong is named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efface.errors import FormatError
from efface.pipeline.config import Config, load_config, to_toml
from efface.pipeline.core_section import CoreConfig, StageConfig
from efface.pipeline.sections import DataConfig, OutputConfig, UserConfig
from efface.pipeline.solvers import CholeskyConfig, ConjugateGradientConfig, SGDConfig

positive = st.floats(min_value=1e-300, max_value=1e300)
# TOML is UTF-8 text, which has no lone surrogates
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
stages = st.builds(
    StageConfig,
    train=st.sampled_from(["head", "tail", "all"]),
    epochs=st.integers(1, 10**6),
    lr=positive,
)
solvers = st.one_of(
    st.builds(ConjugateGradientConfig, tolerance=positive, absolute=st.none() | positive),
    st.builds(SGDConfig, milestones=st.lists(st.integers()).map(tuple), replacement=st.booleans()),
    st.builds(CholeskyConfig, max_weights=st.integers(1, 10**9)),
)
configs = st.builds(
    Config,
    data=st.builds(
        DataConfig,
        spec=words,
        core_fraction=st.none() | st.floats(0, 1),
        seed=st.integers(),
        channels=st.sampled_from([None, "gray", "rgb"]),
        skip_bad=st.booleans(),
    ),
    core=st.builds(CoreConfig, backbone=words, stages=st.lists(stages, max_size=3).map(tuple)),
    user=st.builds(
        UserConfig,
        mu=positive,
        replay_core=st.booleans(),
        solver=solvers,
        calibration=st.none() | words,
    ),
    output=st.builds(OutputConfig, dir=words, cache=st.none() | words),
)


@given(config=configs)
def test_toml_reads_back_to_the_same_config(config: Config) -> None:
    assert Config.model_validate(tomllib.loads(to_toml(config))) == config


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_needs_only_what_differs_from_the_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, '[data]\nspec = "digits"\n[user]\nsolver = "sgd"\n')
    config = load_config(path)
    assert config == Config(data=DataConfig(spec="digits"), user=UserConfig(solver=SGDConfig()))


def test_overrides_win_and_none_is_not_given(tmp_path: Path) -> None:
    path = write(tmp_path, '[data]\nspec = "digits"\nseed = 3\n[user]\nmu = 0.5\n')
    config = load_config(path, {"user.mu": 0.25, "data.seed": None, "output.dir": "here"})
    assert (config.user.mu, config.data.seed, config.output.dir) == (0.25, 3, "here")


@pytest.mark.parametrize(("asked", "passes"), [("cg", 7), (None, 7)])
def test_naming_the_files_solver_keeps_its_options(
    tmp_path: Path, asked: str | None, passes: int
) -> None:
    path = write(tmp_path, '[data]\nspec = "d"\n[user.solver]\nmax_passes = 7\n')
    solver = load_config(path, {"user.solver": asked}).user.solver
    assert isinstance(solver, ConjugateGradientConfig)
    assert solver.max_passes == passes


def test_another_solver_drops_the_files_options(tmp_path: Path) -> None:
    path = write(tmp_path, '[data]\nspec = "d"\n[user.solver]\nkind = "cg"\nmax_passes = 7\n')
    assert load_config(path, {"user.solver": "cholesky"}).user.solver == CholeskyConfig()


@pytest.mark.parametrize(
    ("text", "named", "fix"),
    [
        ("[core]\nlinearise = 'all'", "'core.linearise'", "'linearize'"),
        ("[cor]\nlinearize = 'all'", "'cor'", "'core'"),
        ("[user]\nzzz = 1", "'user.zzz'", "mu"),
        ("[user.solver]\nkind = 'sgd'\nmax_passes = 3", "'user.solver.max_passes'", "epochs"),
        ("[[core.stages]]\nepoch = 3", "'core.stages.0.epoch'", "'epochs'"),
        ("[user]\nsolver = 'newton'", "user.solver.kind", "one of"),
        ("[user]\nmu = 0", "user.mu", ""),
        ("[core]\nseed = 'x'", "core.seed", ""),
    ],
)
def test_a_mistake_is_named_with_its_fix(tmp_path: Path, text: str, named: str, fix: str) -> None:
    path = write(tmp_path, f'{text}\n[data]\nspec = "digits"\n')
    with pytest.raises(FormatError) as caught:
        load_config(path)
    assert named in caught.value.message
    assert "run.toml" in caught.value.message
    assert fix in caught.value.fix


def test_no_data_says_where_to_give_it() -> None:
    with pytest.raises(FormatError, match="no data given"):
        load_config(None)


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not TOML"):
        load_config(write(tmp_path, "[data\n"))
    with pytest.raises(FormatError, match="cannot be read"):
        load_config(tmp_path / "missing.toml")


def test_settings_build_what_they_say() -> None:
    from efface.network.training import Stage
    from efface.parts.tangent.cg import ConjugateGradient
    from efface.parts.tangent.dense import Cholesky
    from efface.parts.tangent.sgd import SGD

    assert ConjugateGradientConfig(max_passes=9).build() == ConjugateGradient(max_passes=9)
    assert SGDConfig().build() == SGD()
    assert CholeskyConfig(max_weights=5).build() == Cholesky(max_weights=5)
    assert StageConfig().build() == Stage()
    core = CoreConfig(leaky_slope=0, linearize="head", seed=4).build(["a", "b"])
    assert (core.leaky_slope, core.linearize, core.seed) == (None, "head", 4)
    assert CoreConfig(calibrate_to=0).fit_options() == {"stages": None, "calibrate_to": None}


def test_the_image_size_can_be_set_and_travels_with_the_model(tmp_path: Path) -> None:
    from efface.network.core import Core

    core = CoreConfig(resize=10, crop=8).build(("a", "b"))
    assert (core.backbone.preprocess.resize, core.backbone.preprocess.crop) == (10, 8)
    assert core.backbone.preprocess.channels == 1  # the rest is the backbone's own
    core.save(tmp_path)
    assert Core.load(tmp_path).backbone.preprocess == core.backbone.preprocess


def test_the_compact_part_gets_its_options() -> None:
    from efface.network.core import Core

    model = UserConfig(features=77, bits=12, bases="random").build(Core(classes=("a", "b")))
    settings = model.user.settings
    assert (settings["kind"], settings["features"], settings["bits"]) == ("compact", 77, 12)
    assert settings["bases"] == "random"
    assert settings["mu"] is None


def test_an_unknown_power_is_refused_before_anything_is_trained() -> None:
    assert load_config(None, {"data.spec": "digits", "user.power": 0.25}).user.power == 0.25
    with pytest.raises(FormatError, match=r"user\.power.*0\.25, 0\.5, 0\.75, 1"):
        load_config(None, {"data.spec": "digits", "user.power": 0.3})
