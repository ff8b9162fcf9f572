"""Known engines: servers that a person has named once, in a file without their keys."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.backends.address import MOST_CHARACTERS, checked_address, checked_variable, is_address
from engine.backends.managed_programs import MANAGED
from engine.errors import ConfigError, quoted
from engine.files import decoded_json, read_regular, write_private
from engine.units import counted
from engine.validation import Spec, plain_text

FILE, LOCK = "engines.json", "engines.lock"
MOST_ENGINES, MOST_NAME, MOST_MODEL = 100, 60, 300
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class KnownEngine(Spec):
    """A server with an OpenAI-compatible API, as a person named it.

    url: its address. model: name of one of its models, "" for its first. api_key_env: name of the environment variable
    that has the key, "" for none; the key itself is stored nowhere.
    """

    name: str
    url: str
    model: str = ""
    api_key_env: str = ""

    def __post_init__(self) -> None:
        name = plain_text("name", self.name, MOST_NAME)
        if not name or name != name.strip() or not name.isprintable() or is_address(name):
            raise ConfigError(f"name = {quoted(name)}: must be a short text on one line, and no address")
        self._set("url", checked_address(plain_text("url", self.url, MOST_CHARACTERS)).root)
        model = plain_text("model", self.model, MOST_MODEL)
        if not model.isprintable():
            raise ConfigError(f"model = {quoted(model)}: must be a name on one line")
        checked_variable(self.api_key_env)


def read_known(home: Path) -> tuple[KnownEngine, ...]:
    """Return the known engines, in the order in which they were added. Raises ConfigError for a damaged file."""
    path = home / FILE
    try:
        kept = decoded_json(read_regular(path, _MOST_BYTES), dict[str, list[dict[str, Any]]])
        return tuple(KnownEngine.from_dict(each) for each in kept["engines"][:MOST_ENGINES])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"{path}: the known engines cannot be read ({error}): mend or remove the file") from None


def find_known(home: Path, name: str) -> KnownEngine:
    """Return the known engine of a name. Raises ConfigError where there is none."""
    known = read_known(home)
    for one in known:
        if one.name == name:
            return one
    names = ", ".join(quoted(one.name) for one in known) or "none so far"
    raise ConfigError(f"There is no engine {quoted(name)}; known: {names}. `engines add` adds one.")


def check_new(home: Path, name: str) -> tuple[KnownEngine, ...]:
    """Return the known engines. Raises ConfigError where one of this name cannot be added: as add_known."""
    known = read_known(home)
    if name in MANAGED:
        raise ConfigError(f"name = {quoted(name)}: is that of a server that is started here; choose another name")
    if any(one.name == name for one in known):
        raise ConfigError(f"There is an engine {quoted(name)} already: remove it first, or choose another name")
    if len(known) >= MOST_ENGINES:
        raise ConfigError(f"There are {counted(len(known), 'engine')} already, the most that are kept: remove one")
    return known


def add_known(home: Path, engine: KnownEngine) -> None:
    """Keep an engine.

    Raises ConfigError for a name that is taken or that of a managed server, too many engines, and a file that cannot be
    written.
    """
    with _locked(home):
        _write(home, [*check_new(home, engine.name), engine])


def remove_known(home: Path, name: str) -> None:
    """Forget an engine. Raises ConfigError where there is none of that name."""
    with _locked(home):
        find_known(home, name)
        _write(home, [one for one in read_known(home) if one.name != name])


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Let nobody else change the engines meanwhile: neither another thread nor another process."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"{home / LOCK}: the engines cannot be saved ({error.strerror})") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _write(home: Path, engines: Sequence[KnownEngine]) -> None:
    content = msgspec.json.format(msgspec.json.encode({"engines": [one.to_dict() for one in engines]}), indent=1)
    try:
        write_private(home / FILE, content + b"\n")
    except OSError as error:
        raise ConfigError(f"{home / FILE}: the engines cannot be saved ({error.strerror})") from error
