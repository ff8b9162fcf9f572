"""Settings: the table, its defaults, its refusals."""

from dataclasses import fields
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.settings import SETTINGS, Settings, is_checkout, shipped_folder, writable_folder


def test_the_table_names_every_field_of_settings() -> None:
    named = {field.name for field in fields(Settings)} - {"model_folders"} | {"models"}
    assert {setting.name for setting in SETTINGS} == named
    assert all(setting.help for setting in SETTINGS)


def test_defaults_of_a_checkout() -> None:
    settings = Settings.from_environment({})
    assert is_checkout()
    assert settings.home == writable_folder() == shipped_folder() == Path(__file__).resolve().parents[2] / "data"
    assert settings.history == settings.home / "history.duckdb"
    assert settings.model_folders == (settings.models,) == (settings.home / "models",)
    assert settings.model is None
    assert (settings.recorded_top_k, settings.shown_top_k) == (256, 10)
    assert (settings.prefill_share, settings.max_queue) == (32, 256)


def test_home_moves_everything_written(tmp_path: Path) -> None:
    settings = Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path / "elsewhere")})
    assert settings.home == tmp_path / "elsewhere"
    assert settings.history == tmp_path / "elsewhere" / "history.duckdb"
    assert not settings.home.exists()


def test_a_path_may_be_given_alone(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {"LOGITBENCH_HISTORY": str(tmp_path / "h.duckdb"), "LOGITBENCH_MODEL": "~/model.gguf"}
    )
    assert settings.history == tmp_path / "h.duckdb"
    assert settings.model == Path.home() / "model.gguf"
    assert settings.home == writable_folder()


def test_several_folders_of_models(tmp_path: Path) -> None:
    settings = Settings.from_environment({"LOGITBENCH_MODELS": f"{tmp_path / 'first'}: :~/second:"})
    assert settings.model_folders == (tmp_path / "first", Path.home() / "second")
    assert settings.models == tmp_path / "first"


@pytest.mark.parametrize("text", ["0", "1025", "-1", "many", "1.5"])
def test_a_bad_number_is_refused_with_its_range(text: str) -> None:
    with pytest.raises(ConfigError, match=r"LOGITBENCH_RECORDED_TOP_K = .* from 1 to 1,024"):
        Settings.from_environment({"LOGITBENCH_RECORDED_TOP_K": text})


@pytest.mark.parametrize("text", ["no\0where", "~no-such-person-of-this-machine/x"])
def test_a_bad_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="LOGITBENCH_MODELS = .* path"):
        Settings.from_environment({"LOGITBENCH_MODELS": text})


def test_origins_of_web_pages() -> None:
    text = "HTTP://localhost:3000/  https://chat.example http://[::1]:8501"
    origins = Settings.from_environment({"LOGITBENCH_API_ORIGINS": text}).api_origins
    assert origins == ("http://localhost:3000", "https://chat.example", "http://[::1]:8501")
    assert Settings.from_environment({}).api_origins == ()


@pytest.mark.parametrize(
    "text", ["*", "null", "localhost:3000", "http://a/b", "ftp://a", "http://a:999999", "http://é"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="LOGITBENCH_API_ORIGINS = .* must be a scheme, a host and a port"):
        Settings.from_environment({"LOGITBENCH_API_ORIGINS": f"http://localhost:3000 {text}"})


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Settings.from_environment({"LOGITBENCH_MAX_QUEUE": " "}) == Settings.from_environment({})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"LOGITBENCH_RECORDED_TOPK; did you mean LOGITBENCH_RECORDED_TOP_K"):
        Settings.from_environment({"LOGITBENCH_RECORDED_TOPK": "8"})
    with pytest.raises(ConfigError, match="known after LOGITBENCH_: HOME, HISTORY"):
        Settings.from_environment({"LOGITBENCH_QXZ": "8"})


def test_other_variables_are_left_alone() -> None:
    assert Settings.from_environment({"PATH": "", "LOGITBENCHMARK": "1"}) == Settings.from_environment({})
