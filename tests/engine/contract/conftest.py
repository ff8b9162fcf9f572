"""Every engine that the contract is asked of: the pool, with llama.cpp and with transformers in its workers, the fake
of the tests, two servers as external engines, and llama_cpp.server as the workbench starts it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.managed import open_managed
from engine.calls import connect
from engine.opening import open_engine
from engine.protocol import Engine
from engine.specs import PoolSpec, Sampling
from tests.fake_engine import open_fake
from tests.servers import llama_server, our_server

GREEDY = Sampling(temperature=0)
SPEC = PoolSpec(parallel=2, n_ctx=256, threads=1)
Open = Callable[[PoolSpec], Engine]


def never_ending(engine: Engine) -> Sampling:
    """Greedy sampling that never chooses a token that ends an answer."""
    ends = [token for token in range(len(engine.vocabulary)) if engine.vocabulary.is_end(token)]
    return Sampling(temperature=0, logit_bias=tuple((token, float("-inf")) for token in ends))


def unusable(engine: Engine) -> list[int] | str:
    """A prompt whose job ends with an error: an id beyond the vocabulary, or a text beyond the context."""
    return [len(engine.vocabulary) + 5] if engine.capabilities.has_ids else "long " * 600


@pytest.fixture(scope="session")
def server_of(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Function that returns the address of a server by its name; each is started once, for two requests at a time."""
    addresses: dict[str, str] = {}
    with ExitStack() as running:

        def address(name: str) -> str:
            if name not in addresses:
                server = (
                    llama_server(story_model, "-c", "512", "-np", "2", "-t", "1")
                    if name == "llama-server"
                    else our_server(
                        story_model, tmp_path_factory.mktemp("served"), "--n-ctx", "256", "--parallel", "2",
                        "--threads", "1",
                    )
                )  # fmt: skip
                addresses[name] = running.enter_context(server)
            return addresses[name]

        yield address


@pytest.fixture(params=["pool", "transformers", "fake", "serve", "llama-server", "llama_cpp.server"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """The kind of engine that is asked."""
    found: str = request.param
    return found


@pytest.fixture
def open_one(engine_kind: str, story_model: Path, story_folder: Path, server_of: Callable[[str], str]) -> Open:
    """Opens an engine of this kind."""
    match engine_kind:
        case "pool":
            return lambda spec: open_engine(str(story_model), spec)
        case "transformers":
            return lambda spec: open_engine(str(story_folder), spec)
        case "llama_cpp.server":
            return lambda spec: open_managed("llama_cpp.server", str(story_model), replace(spec, parallel=1))
        case "fake":
            return lambda spec: open_fake(str(story_model), spec)
        case server:
            url = server_of(server)
            return lambda spec: connect(url, num_sequences=spec.parallel)


@pytest.fixture(scope="module")
def transformers_engine(story_folder: Path) -> Iterator[Engine]:
    """One for all tests of a file, as PyTorch takes seconds to start."""
    with open_engine(str(story_folder), SPEC) as opened:
        yield opened


@pytest.fixture(scope="session")
def managed_engine(story_model: Path) -> Iterator[Engine]:
    """One for all tests, as it takes seconds to start; it answers one request at a time."""
    with open_managed("llama_cpp.server", str(story_model), replace(SPEC, parallel=1)) as opened:
        yield opened


@pytest.fixture
def engine(engine_kind: str, open_one: Open, request: pytest.FixtureRequest) -> Iterator[Engine]:
    shared = {"transformers": "transformers_engine", "llama_cpp.server": "managed_engine"}
    if engine_kind in shared:
        yield request.getfixturevalue(shared[engine_kind])
        return
    with open_one(SPEC) as opened:
        yield opened
