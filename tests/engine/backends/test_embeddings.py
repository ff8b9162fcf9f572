"""Texts embedded by external engines: real servers give the vectors of a pool, bad ones are refused."""

import base64
import json
import math
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import EmbeddingPool, EmbedSpec, embed
from engine.backends.embedding_replies import MOST_DIM, MOST_TEXTS, reply_of, unit_vectors
from engine.backends.embedding_server import MOST_REQUEST_BYTES, PATH, ServerEmbedder
from engine.backends.known import KnownEngine, add_known
from engine.embedding.agreement import agreement
from engine.embedding.embedder import Embedder
from engine.embedding.models import EMBEDDED_NAME
from engine.embedding.sentences import shipped_sentences
from engine.errors import ConfigError, EngineError, PoolClosed, PromptTooLong, ServerFailed
from engine.opening import open_embedder
from engine.step_parts import Floats
from tests.engine.backends.embedding_answers import DIM, answer, vector_of
from tests.engine.backends.fake_server import Request, fake_server
from tests.minilm_gguf import write_minilm
from tests.servers import embedding_llama_cpp_server, llama_server, our_server

DESK = EmbedSpec(backend="external:desk")


def recording(bodies: list[dict[str, Any]]) -> Callable[[Request], None]:
    """Answer, and keep the bodies of the requests."""

    def answered(request: Request) -> None:
        bodies.append(request.body)
        answer(request)

    return answered


def add(home: Path, address: str, **given: str) -> None:
    add_known(home, KnownEngine(name="desk", url=address, **given))


def opened_with(home: Path, answering: object, spec: EmbedSpec = DESK) -> Embedder:
    """An embedder whose server is in order for the first text, and then answers like this."""
    is_first = [True]

    def handled(request: Request) -> None:
        if is_first and is_first.pop():
            answer(request)
        elif callable(answering):
            answering(request)
        else:
            request.json(answering)

    server = fake_server({PATH: handled})
    address, seen = server.__enter__()
    add(home, address)
    opened = open_embedder(spec)
    opened.__dict__.update(seen=seen, server=server)
    return opened


def failure(home: Path, answering: object, texts: list[str] | None = None) -> EngineError:
    with opened_with(home, answering) as opened, pytest.raises(EngineError) as failed:
        opened.embed(texts or ["a", "b"], timeout=60)
    opened.__dict__["server"].__exit__(None, None, None)
    return failed.value


def test_vectors_have_the_order_of_the_texts_and_length_one(home: Path) -> None:
    texts = [f"{number} " + "word " * random.Random(number).randrange(30) for number in range(3 * MOST_TEXTS)]
    bodies: list[dict[str, Any]] = []
    with fake_server({PATH: recording(bodies)}) as (address, _seen):
        add(home, address)
        with open_embedder(EmbedSpec(backend="external:desk", workers=3)) as opened:
            result = opened.submit(texts).result(60)
    sizes = [len(body["input"]) for body in bodies]
    wanted = np.array([vector_of(text) for text in texts])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(result.vectors, wanted, atol=1e-6)
    assert result.vectors.dtype == np.float32 and result.num_tokens == len(texts) and not result.num_cut
    assert sizes[0] == 1 and max(sizes) == MOST_TEXTS and sum(sizes) == len(texts) + 1


def test_the_vectors_of_a_server_may_be_kept_as_they_are(home: Path) -> None:
    with fake_server({PATH: answer}) as (address, _seen):
        add(home, address)
        found = embed("a", backend="external:desk", normalise=False)
    np.testing.assert_allclose(found, vector_of("a"), rtol=1e-6)


def entry(index: int, embedding: object) -> dict[str, object]:
    return {"index": index, "embedding": embedding}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [{"index": 0, "embedding": [1, NaN]}]}', "not JSON"),
        ('{"data": [{"index": 0, "embedding": [1, Infinity]}]}', "not JSON"),
        ('{"data": [{"index": 0, "embedding": [1, 1e999]}]}', "not finite|not JSON|out of range"),
        ('{"data": [{"index": 0, "embedding": [1, 1e39]}]}', "not finite"),
        ({"data": []}, "0 vectors for 1 texts"),
        ({"data": [entry(0, [1.0]), entry(1, [1.0])]}, "2 vectors for 1 texts"),
        ({"data": [entry(1, [1.0])]}, "of another one"),
        ({"data": [entry(0, [])]}, "vectors of 0 numbers"),
        ({"data": [entry(0, [[1.0, 2.0]])]}, "another form"),
        ({"data": [entry(0, [1.0, None])]}, "another form"),
        ({"data": [entry(0, ["1"])]}, "another form"),
        ({"data": [entry(-1, [1.0])]}, "another form"),
        ({"data": [entry(0, [0.5] * (MOST_DIM + 1))]}, "another form"),
        ({"data": [entry(0, "AAAA" * (2 * MOST_DIM))]}, "another form"),
        ({"data": [entry(0, "AAA")]}, "neither numbers nor float32"),
        ({"data": [entry(0, "AAAA")]}, "neither numbers nor float32"),
        ({"data": [entry(0, "é===")]}, "neither numbers nor float32"),
        ({"data": [entry(0, base64.b64encode(np.array([1, math.nan], "<f4").tobytes()).decode())]}, "not finite"),
        ({"data": {"0": [1.0]}}, "another form"),
        ({"embeddings": [[1.0]]}, "another form"),
        ([], "another form"),
        ("[" * 100_000, "not JSON|another form"),
    ],
)
def test_replies_of_another_form_are_refused(content: Any, message: str) -> None:
    raw = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(ServerFailed, match=message):
        reply_of(raw.encode(), 1)


def test_two_vectors_of_one_text_and_vectors_of_two_lengths_are_refused() -> None:
    twice = {"data": [entry(0, [1.0]), entry(0, [2.0])]}
    with pytest.raises(ServerFailed, match="twice"):
        reply_of(json.dumps(twice).encode(), 2)
    mixed = {"data": [entry(0, [1.0]), entry(1, [1.0, 2.0])]}
    with pytest.raises(ServerFailed, match="1 and 2 numbers"):
        reply_of(json.dumps(mixed).encode(), 2)
    with pytest.raises(ServerFailed, match="1 and 3 numbers"):
        reply_of(json.dumps({"data": [entry(0, [1.0])]}).encode(), 1, dim=3)


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": "7"}, {"prompt_tokens": -1}, {"prompt_tokens": 10**30}, []]
)
def test_tokens_that_are_not_reported_are_none(usage: object) -> None:
    reply = reply_of(json.dumps({"data": [entry(0, [3.0, 4.0])], "usage": usage, "model": 7}).encode(), 1)
    assert (reply.num_tokens, reply.model) == (None, "")
    np.testing.assert_allclose(unit_vectors(reply.vectors), [[0.6, 0.8]])


def test_the_length_of_very_large_and_very_small_numbers_is_one() -> None:
    vectors = np.array([[3e38, 3e38], [1e-45, 0.0]], np.float32)
    np.testing.assert_allclose(np.linalg.norm(unit_vectors(vectors), axis=1), 1, rtol=1e-6)
    with pytest.raises(ServerFailed, match="zeros"):
        unit_vectors(np.zeros((1, 3), np.float32))


def too_long(request: Request) -> None:
    request.json({"error": {"message": "9 tokens", "type": "x", "code": "context_length_exceeded"}}, 400)


def late(request: Request) -> None:
    request.json({"error": {"message": "busy"}}, 429)


@pytest.mark.parametrize(
    ("answering", "kind", "message"),
    [
        ({"data": [entry(0, [1.0]), entry(1, [1.0])]}, ServerFailed, "1 and 6 numbers"),
        ({"data": [entry(0, [0.0] * DIM), entry(1, [1.0] * DIM)]}, ServerFailed, "zeros"),
        (too_long, PromptTooLong, "Of the 2 texts in this request, text 2 is the longest, with 40 bytes"),
        (lambda request: request.json({"error": {"message": "no"}}, 400), ConfigError, "text 2 is the longest"),
        (lambda request: request.json({"error": {"message": "who?"}}, 401), ServerFailed, "refuses the key"),
        (late, EngineError, "too many requests"),
        (lambda request: request.text("<html>", 200), ServerFailed, "not with JSON"),
        (lambda request: request.events(), ServerFailed, "no vectors"),
    ],
)
def test_what_goes_wrong_later_fails_the_job(home: Path, answering: Any, kind: type[EngineError], message: str) -> None:
    error = failure(home, answering, ["short", "long " * 8])
    assert isinstance(error, kind) and re.search(message, str(error)), error


def test_a_server_without_embeddings_is_reported_with_its_models(home: Path) -> None:
    with fake_server({}) as (address, _seen):
        add(home, address)
        with pytest.raises(ServerFailed, match=r"no embeddings at .*/v1/embeddings by 'm'.*it lists 'm'"):
            embed(["a"], backend="external:desk")


def test_the_key_reaches_its_server_and_never_follows_a_redirect(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1234")
    with fake_server({PATH: answer}) as (elsewhere, stolen):

        def redirected(request: Request) -> None:
            request.text("", 307, Location=f"{elsewhere}{PATH}")

        with fake_server({PATH: redirected}) as (address, seen):
            add(home, address, api_key_env="MY_KEY")
            with pytest.raises(ServerFailed, match="redirects to") as failed:
                embed(["a"], backend="external:desk")
            assert {one.headers["Authorization"] for one in seen} == {"Bearer sk-1234"}
        assert stolen == []
    assert "sk-1234" not in str(failed.value)


def test_model_names_reach_the_server(home: Path) -> None:
    asked: list[dict[str, Any]] = []
    with fake_server({PATH: recording(asked)}) as (address, _seen):
        add(home, address, model="own")
        embed(["a"], backend="external:desk")
        embed(["a"], backend="external:desk", model="bge-small-en-v1.5", is_query=True)
    assert [body["model"] for body in asked] == ["own", "own", "bge-small-en-v1.5", "bge-small-en-v1.5"]
    assert asked[-1]["input"] == ["Represent this sentence for searching relevant passages: a"]


def test_texts_beyond_a_request_and_token_ids_are_refused(home: Path) -> None:
    with opened_with(home, answer) as opened:
        with pytest.raises(ConfigError, match=r"text 2 of 2 is larger than the 1,048,576 bytes"):
            opened.submit(["a", "b" * (MOST_REQUEST_BYTES + 8)])
        with pytest.raises(ConfigError, match="token ids; an external engine takes texts"):
            opened.submit([[1, 2]])
        assert opened.max_tokens is None and opened.measure() is None
    opened.__dict__["server"].__exit__(None, None, None)


def test_closing_ends_what_waits_for_a_silent_server(home: Path) -> None:
    is_asked, may_go = threading.Event(), threading.Event()

    def silent(_request: Request) -> None:
        is_asked.set()
        may_go.wait(60)

    opened = opened_with(home, silent)
    jobs = [opened.submit(["a"]), opened.submit(["b"])]
    assert is_asked.wait(60)
    jobs[1].cancel()
    opened.close("over")
    with pytest.raises(PoolClosed):
        jobs[0].result(60)
    assert jobs[1].result(60).is_cancelled
    with pytest.raises(PoolClosed):
        opened.submit(["c"])
    may_go.set()
    opened.__dict__["server"].__exit__(None, None, None)


def test_a_cancelled_request_makes_room_for_the_next(home: Path) -> None:
    is_asked, may_go = threading.Event(), threading.Event()

    def silent_once(request: Request) -> None:
        if not is_asked.is_set():
            is_asked.set()
            may_go.wait(120)
        answer(request)

    with opened_with(home, silent_once) as opened:
        first = opened.submit(["a"])
        assert is_asked.wait(60)
        first.cancel()
        try:
            assert opened.submit(["b"]).result(60).num_tokens == 1
        finally:
            may_go.set()
    assert first.result(60).is_cancelled
    opened.__dict__["server"].__exit__(None, None, None)


@pytest.mark.parametrize(
    "given",
    [
        {"backend": "external:"},
        {"backend": "external:a\nb"},
        {"backend": "external:desk", "threads": 2},
        {"backend": "external:desk", "tokens_per_batch": 64},
        {"backend": "external:desk", "workers": 17},
        {"backend": "external:desk", "model": "a\nb"},
        {"backend": "external:desk", "model": "m" * 301},
    ],
)
def test_parameters_that_an_engine_does_not_take_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EmbedSpec(**given)


def test_an_unknown_engine_and_a_pool_of_one_are_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match="no engine 'desk'"):
        embed(["a"], backend="external:desk")
    with pytest.raises(ConfigError, match="not a pool"):
        EmbeddingPool(DESK)


# real servers


def same_as(own: Floats, address: str, home: Path, **spec: Any) -> ServerEmbedder:
    add(home, address, model="story")
    with open_embedder(EmbedSpec(backend="external:desk", **spec)) as opened:
        found = agreement(opened.compute(shipped_sentences(), timeout=300).vectors, own)
    assert found.worst_cosine > 0.9999 and found.rank_correlation > 0.9999
    assert isinstance(opened, ServerEmbedder)
    return opened


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_minilm(tmp_path_factory.mktemp("gguf") / "all-MiniLM-L6-v2.F16.gguf", "F16")


@pytest.fixture(scope="module")
def of_gguf(minilm: Path) -> Floats:
    return embed(shipped_sentences(), model=minilm)


@pytest.mark.slow
def test_our_api_gives_the_vectors_of_its_pool(
    story_model: Path, home: Path, tmp_path: Path, quick_embedding: None
) -> None:
    own = embed(shipped_sentences())
    with our_server(story_model, tmp_path / "served") as address:
        opened = same_as(own, address, home, workers=4)  # though the engine was added with a model that generates
        assert opened.name == EMBEDDED_NAME
        with open_embedder(DESK) as again, pytest.raises(PromptTooLong, match="text 1 is the longest"):
            again.embed(["word " * 2000], timeout=300)


@pytest.mark.slow
def test_llama_cpp_server_gives_the_vectors_of_the_pool(minilm: Path, of_gguf: Floats, home: Path) -> None:
    with embedding_llama_cpp_server(minilm) as address:
        same_as(of_gguf, address, home)


@pytest.mark.slow
def test_llama_server_gives_the_vectors_of_the_pool(minilm: Path, of_gguf: Floats, home: Path) -> None:
    with llama_server(minilm, "--embedding", "--pooling", "mean", "-ub", "512", "-c", "2048") as address:
        same_as(of_gguf, address, home, workers=2)
