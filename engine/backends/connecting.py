"""Connecting to servers: by their addresses, as the known engines that a person has named, or to one started here."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.backends.address import checked_address, key_of
from engine.backends.known import KnownEngine, find_known, read_known
from engine.backends.managed_programs import ManagedServer
from engine.embedding.embedder import Embedder
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError
from engine.settings import Settings

if TYPE_CHECKING:
    from engine.backends.managed import ManagedEngine
    from engine.backends.openai_server import ServerEngine

ExternalEngine = KnownEngine | ManagedServer
"""What the model bar can connect to."""
OnOpening = Callable[[Callable[[], None]], object]
"""Called with a function that ends a connection which is being opened, from any thread; it raises PoolClosed then."""


def connect_to(
    url: object,
    model: str,
    api_key_env: object,
    num_sequences: int | None = None,
    on_opening: OnOpening = lambda _abort: None,
) -> "ServerEngine":
    """Return the engine on a server; engine.connect documents parameters and errors."""
    from engine.backends.openai_server import ServerEngine  # its HTTP client takes a tenth of the engine's import

    return ServerEngine.connect(checked_address(url), model, key_of(api_key_env), num_sequences, on_opening)


def open_known(
    engine: KnownEngine, num_sequences: int | None = None, on_opening: OnOpening = lambda _abort: None
) -> "ServerEngine":
    """Connect to a known engine. Raises ConfigError where its key is missing, ServerFailed."""
    return connect_to(engine.url, engine.model, engine.api_key_env, num_sequences, on_opening)


def start_managed(server: ManagedServer, on_opening: OnOpening = lambda _abort: None) -> "ManagedEngine":
    """Start a server and connect to it; open_managed documents the errors."""
    from engine.backends.managed import open_managed  # its HTTP client, as above

    return open_managed(server.kind, str(server.path), server.spec, on_opening=on_opening)


def embed_by(spec: EmbedSpec, on_opening: Callable[[Callable[[], object]], object] = lambda _abort: None) -> Embedder:
    """Connect to the external engine that embeds texts; ServerEmbedder documents the errors."""
    return embed_by_known(find_known(Settings.from_environment().home, spec.engine), spec, on_opening)


def embed_by_known(
    engine: KnownEngine,
    spec: EmbedSpec,
    on_opening: Callable[[Callable[[], object]], object] = lambda _abort: None,
) -> Embedder:
    """The same for an engine that may not be kept yet."""
    from engine.backends.embedding_server import ServerEmbedder  # its HTTP client, as above

    return ServerEmbedder(engine, spec, on_opening)


def known_at(address: str) -> KnownEngine:
    """Return the known engine at an address: its name, or its URL.

    Raises ConfigError where there is none: an address that nobody added here, such as one of an import, is not asked.
    """
    known = read_known(Settings.from_environment().home)
    url = checked_address(address).root
    for one in known:
        if one.url == url:
            return one
    raise ConfigError(f"{url} is not one of your engines: add it first, in the model bar or by `engines add`")
