"""Engines of a plan: what runs a configuration, by its name in the plan."""

from pathlib import Path

from engine.backends.address import checked_address
from engine.backends.known import KnownEngine, find_known, read_known
from engine.backends.managed_programs import MANAGED
from engine.errors import ConfigError, ModelError, quoted
from engine.models.folders import is_model_folder
from engine.models.gguf import ModelFile
from engine.models.reading import read_model
from engine.protocol import EXTERNAL
from engine.settings import Settings
from engine.validation import plain_text

POOL, TRANSFORMERS = "pool", "transformers"
LLAMA_SERVER, LLAMA_CPP_SERVER = MANAGED
"""Servers that are started for a run, and ended with it."""
SINGLE = ("create_completion", "loop", "llama-bench")
"""Programs that answer one request at a time."""
ENGINES = (POOL, *MANAGED, TRANSFORMERS, *SINGLE)
MOST_USERS_ELSEWHERE = 16
"""Requests that another machine gets at once."""
MOST_FOLDERS = 200
"""Folders beside a GGUF file that are looked at."""

_OWN_LABELS = {POOL: "this pool", "loop": "the bare loop"}
_NETWORK = ("architecture", "n_layer", "n_embd", "n_ff", "n_head", "n_head_kv")


def is_external(engine: str) -> bool:
    """Return True for a known engine."""
    return engine.startswith(EXTERNAL)


def is_server(engine: str) -> bool:
    """Return True for an engine that answers over HTTP, started here or not."""
    return engine in MANAGED or is_external(engine)


def checked_engine(value: object) -> str:
    """Return the name of an engine, known on this machine or not. Raises ConfigError for anything else."""
    if isinstance(value, str) and (value in ENGINES or (is_external(value) and value != EXTERNAL)):
        return plain_text("engine", value, 100)
    raise ConfigError(f"arm = {quoted(value)}: it takes {ALLOWED}")


OF_A_PERSON = f"{EXTERNAL}NAME for an engine that you have added"
ALLOWED = f"one of {', '.join(ENGINES)}, or {OF_A_PERSON}"


def label_of(engine: str) -> str:
    """Return the name of an engine for people: "this pool", "llama-server", "desk (external)"."""
    if is_external(engine):
        return f"{engine.removeprefix(EXTERNAL)} (external)"
    return _OWN_LABELS.get(engine, engine)


def known_engines() -> tuple[KnownEngine, ...]:
    """Return the engines that a person has added on this machine; none where their file is damaged."""
    try:
        return read_known(Settings.from_environment().home)
    except ConfigError:
        return ()


def known_engine(engine: str) -> KnownEngine:
    """Return the known engine of a name in a plan. Raises ConfigError where there is none on this machine."""
    return find_known(Settings.from_environment().home, engine.removeprefix(EXTERNAL))


def is_remote(engine: str) -> bool:
    """Return True for a known engine on another machine."""
    if not is_external(engine):
        return False
    try:
        return not checked_address(known_engine(engine).url).is_loopback
    except ConfigError:
        return False


def folder_beside(file: ModelFile) -> Path | None:
    """Return the folder of safetensors beside a GGUF file whose network has the same sizes; None where there is none.

    The one with the longest common beginning of its name, where there are several.
    """
    try:
        around = sorted(path for path in file.path.parent.iterdir() if path.is_dir())[:MOST_FOLDERS]
    except OSError:
        return None
    found = [path for path in around if is_model_folder(path) and _is_same_network(path, file)]
    return max(found, key=lambda path: _num_common(path.name, file.path.name), default=None)


def _is_same_network(folder: Path, file: ModelFile) -> bool:
    try:
        other = read_model(folder)
    except ModelError:
        return False
    return all(getattr(other, name) == getattr(file, name) for name in _NETWORK)


def _num_common(name: str, other: str) -> int:
    return next((place for place, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), len(name))
