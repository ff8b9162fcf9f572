"""Settings of this machine: one table, read from environment variables with the prefix LOGITBENCH_."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import platformdirs

from engine.errors import ConfigError
from engine.files import check_database_path, check_utf8, named_path
from engine.specs import MAX_RECORDED

PREFIX = "LOGITBENCH_"
_PACKAGE = Path(__file__).resolve().parent
_PACKED_DATA = _PACKAGE / "_data"
_ORIGIN = re.compile(r"https?://[a-z0-9.-]{1,253}(:[0-9]{1,5})?|https?://\[[0-9a-f:.]{2,45}\](:[0-9]{1,5})?")


@dataclass(frozen=True)
class Setting:
    """Definition of one setting; the type of `default` determines the values.

    A number: an integer from `low` to `high`. A text: a path; with is_many several paths, separated as in PATH; with
    `choices` one of these words; with are_origins origins of web pages, separated by spaces.
    """

    name: str
    default: int | str
    help: str
    low: int = 0
    high: int = 0
    is_many: bool = False
    choices: tuple[str, ...] = ()
    are_origins: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.upper()


SETTINGS = (
    Setting(
        "home", "", "folder for everything that is written; empty: data/ of a checkout, else the user's data folder"
    ),
    Setting("history", "", "the history database; empty: history.duckdb in the home folder"),
    Setting("model", "", "GGUF file opened at start-up; empty: the shipped model"),
    Setting(
        "models",
        "",
        f"folders of GGUF files, separated by {os.pathsep} (new files go into the first); empty: models/ in the home "
        "folder",
        is_many=True,
    ),
    Setting("llama_bench", "", "llama.cpp's llama-bench; empty: the one built here, else the one in PATH"),
    Setting("llama_server", "", "llama.cpp's llama-server; empty: the one built here, else the one in PATH"),
    Setting("recorded_top_k", 256, "candidates saved with each step of a trial", 1, MAX_RECORDED),
    Setting("shown_top_k", 10, "candidates shown for a token by default", 1, 50),
    Setting(
        "prefill_share",
        32,
        "prompt tokens a step, for each prompt of a burst, while streams decode",
        1,
        1 << 16,
    ),
    Setting(
        "max_queue",
        256,
        "jobs that may wait in one lane of a pool; in a full lane each client may still queue an eighth of that before "
        "submit rejects more",
        1,
        1 << 20,
    ),
    Setting(
        "api_port",
        0,
        "port on which the OpenAI-compatible API starts with the pages; 0: the Traffic page starts it",
        0,
        65_535,
    ),
    Setting(
        "api_requests",
        128,
        "requests that one client of the API may have open at once; any more are refused with status 429",
        1,
        65_536,
    ),
    Setting(
        "api_history_mb",
        2_000,
        "megabytes of the history that trials of API calls may take, of which the oldest without marks are deleted "
        "beyond it; 0: they are not kept",
        0,
        1_000_000,
    ),
    Setting(
        "api_origins",
        "",
        "web pages whose scripts may call the API, by their origins (such as http://localhost:3000), separated by "
        "spaces; empty: none",
        are_origins=True,
    ),
    Setting(
        "access",
        "",
        "who may open the workbench in a browser; empty: the user who started it and root, with a token where users "
        "cannot be told apart; token: anyone with the token; open: everyone on this machine",
        choices=("", "token", "open"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Values of all settings; paths are absolute. Created by `from_environment`, which fills in the defaults.

    `model_folders` is the setting `models`: at least one. `model` None means the model that ships, `llama_bench` and
    `llama_server` None the programs built by the workbench or those in PATH; `access` is "", "token" or "open".
    """

    home: Path
    history: Path
    model: Path | None
    model_folders: tuple[Path, ...]
    llama_bench: Path | None
    llama_server: Path | None
    recorded_top_k: int
    shown_top_k: int
    prefill_share: int
    max_queue: int
    api_port: int
    api_requests: int
    api_history_mb: int
    api_origins: tuple[str, ...]
    access: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the LOGITBENCH_* variables; an empty one counts as not set. Creates no folder.

        Raises ConfigError for a value that is out of range or malformed, and for an unknown setting.
        """
        _refuse_unknown(environment)
        values: dict[str, Any] = {setting.name: _read(setting, environment) for setting in SETTINGS}
        home = values["home"] = values["home"] or writable_folder()
        values["history"] = values["history"] or home / "history.duckdb"
        check_database_path(values["history"], ConfigError)
        values["model_folders"] = values.pop("models") or (home / "models",)
        return cls(**values)

    @property
    def models(self) -> Path:
        """Folder for models created or downloaded by the workbench."""
        return self.model_folders[0]


def is_checkout() -> bool:
    """Return True when the package runs from its source tree, False when it was installed from a wheel."""
    return not _PACKED_DATA.is_dir()


def shipped_folder() -> Path:
    """Return the folder of data that ships, read-only: data/ of a checkout, engine/_data of a wheel."""
    return _PACKAGE.parent / "data" if is_checkout() else _PACKED_DATA


def writable_folder() -> Path:
    """Return the default folder for written data, which LOGITBENCH_HOME overrides; it may not exist yet."""
    return _PACKAGE.parent / "data" if is_checkout() else Path(platformdirs.user_data_dir("logitbench"))


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = [setting.name.upper() for setting in SETTINGS]
    for variable in environment:
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known after {PREFIX}: {', '.join(known)}"
            raise ConfigError(f"There is no setting {variable}; {hint}")


def _read(setting: Setting, environment: Mapping[str, str]) -> int | str | Path | tuple[str | Path, ...] | None:
    """Return a checked integer, a choice, origins, one or several absolute paths, or None for a path not set."""
    text = environment.get(setting.variable, "").strip()
    if setting.choices:
        return _choice(setting, text)
    if setting.are_origins:
        return tuple(_origin(setting, part) for part in text.split())
    if setting.is_many:
        return tuple(_path(setting, part.strip()) for part in text.split(os.pathsep) if part.strip())
    if isinstance(setting.default, str):
        return _path(setting, text) if text else None
    if not text:
        return setting.default
    try:
        value = int(text)
    except ValueError:
        value = setting.low - 1
    if not setting.low <= value <= setting.high:
        raise ConfigError(
            f"{setting.variable} = {text!r}: must be a whole number from {setting.low:,} to {setting.high:,}"
        )
    return value


def _choice(setting: Setting, text: str) -> str:
    if text not in setting.choices:
        known = " or ".join(choice or "empty" for choice in setting.choices)
        raise ConfigError(f"{setting.variable} = {text!r}: must be {known}")
    return text


def _origin(setting: Setting, text: str) -> str:
    origin = text.lower().removesuffix("/")
    if not _ORIGIN.fullmatch(origin):
        raise ConfigError(
            f"{setting.variable} = {text[:100]!r}: must be a scheme, a host and a port, such as http://localhost:3000"
        )
    return origin


def _path(setting: Setting, text: str) -> Path:
    try:
        path = named_path(text)
        check_utf8(path, ConfigError)
        return path
    except ConfigError as error:
        raise ConfigError(f"{setting.variable} = {error}") from error
