"""The API in front of an external engine: what that does not tell is null or absent, never 0 or made up."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from engine.api.openai.generation import UNKNOWN_MAX_TOKENS
from engine.backends.known import KnownEngine
from engine.settings import Settings
from engine.specs import UNKNOWN_CTX
from engine.workbench.trials import Draft
from engine.workbench.workbench import Workbench
from tests.engine.api.openai.conftest import Api, served
from tests.engine.api.openai.test_openapi import described
from tests.engine.backends.fake_server import Request, chunk, fake_server
from tests.waiting import until

USAGE = {"prompt_tokens": 7, "completion_tokens": 2}
NATIVE = {
    "content": " a", "tokens": [6], "stop": True, "stop_type": "eos", "tokens_evaluated": 3, "tokens_predicted": 1,
}  # fmt: skip
NO_IDS: dict[str, object] = {
    "/v1/completions": lambda request: request.events(
        chunk(" a"), chunk(" time", finish="stop"), {"choices": [], "usage": USAGE}
    )
}
CONTEXT = "default_generation_settings"
WITHOUT_CONTEXT: dict[str, object] = {
    "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_vocab": 100}}]},
    "/props": {CONTEXT: {}, "total_slots": 1, "chat_template": "{{ messages }}"},
    "/tokenize": {"tokens": [{"id": 5, "piece": "a"}]},
    "/detokenize": {"content": "a"},
    "/apply-template": {"prompt": "a"},
    "/completion": lambda request: request.events(NATIVE),
}
"""llama-server, if it did not tell the size of its context."""
STATUSES = [status for status in HTTPStatus if status > 400 and status != HTTPStatus.TOO_MANY_REQUESTS]


@contextmanager
def upstream(answers: Mapping[str, object], home: Path) -> Iterator[Api]:
    """The API before a server with these answers."""
    with fake_server(answers) as (address, _), upstream_of(address, home) as made:
        yield made


@contextmanager
def upstream_of(address: str, home: Path) -> Iterator[Api]:
    """The API before the server at this address."""
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    bench.model_manager.connect(KnownEngine(name="other", url=address))
    until(lambda: not bench.model.is_loading)
    bench.model.loaded()
    with served(bench) as made:
        yield made


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API before a server that tells neither ids nor the size of its context."""
    with upstream(NO_IDS, tmp_path_factory.mktemp("api")) as made:
        yield made


def test_the_prompt_tokens_that_the_server_counts_are_reported(api: Api) -> None:
    answer = api.ask("/v1/completions", {"prompt": "Once upon"}).json
    assert answer["choices"][0]["text"] == " a time"
    assert answer["usage"]["prompt_tokens"] == 7


def test_a_context_of_unknown_size_is_null(api: Api) -> None:
    assert api.ask("/v1/models").json["data"][0]["max_model_len"] is None
    assert api.ask("/tokenizer_info").json["model_max_length"] is None


def test_a_client_does_not_learn_that_all_ids_are_known(api: Api) -> None:
    assert api.ask("/v1/models").json["data"][0]["owned_by"] == "upstream"
    answer = api.ask("/vocabulary")
    assert answer.status == 404 and "does not report its whole vocabulary" in answer.json["error"]["message"]


def test_ids_and_chats_are_answered_where_the_context_is_of_unknown_size(home: Path) -> None:
    asked: list[int] = []

    def completion(request: Request) -> None:
        asked.append(request.body["n_predict"])
        request.events(NATIVE)

    with upstream({**WITHOUT_CONTEXT, "/completion": completion}, home) as api:
        assert api.ask("/v1/completions", {"prompt": [5, 5, 5]}).json["choices"][0]["text"] == " a"
        answer = api.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        assert answer.json["choices"][0]["message"]["content"] == " a"
        assert asked == [16, UNKNOWN_MAX_TOKENS]
        assert api.ask("/tokenize", {"prompt": "a"}).json["max_model_len"] is None


@pytest.mark.parametrize(("n_ctx", "noted"), [(None, UNKNOWN_CTX), (1 << 20, 1 << 20), (1 << 25, UNKNOWN_CTX - 1)])
def test_a_large_context_is_not_taken_for_an_unknown_one(n_ctx: int | None, noted: int, home: Path) -> None:
    props = {CONTEXT: {"n_ctx": n_ctx}, "total_slots": 1}
    with upstream({**WITHOUT_CONTEXT, "/props": props}, home) as api:
        assert api.bench.model.loaded()[0].spec.n_ctx == noted
        assert api.ask("/v1/models").json["data"][0]["max_model_len"] == n_ctx
        trial = api.bench.trials.submit(Draft("a"))
        trial.job.result(60)
        assert (trial.status()["n_ctx"] is None) == (n_ctx is None)


def test_the_error_of_an_engine_says_whether_another_try_may_succeed(home: Path) -> None:
    status = HTTPStatus.OK

    def completions(request: Request) -> None:
        if status == HTTPStatus.OK:
            request.events(chunk(" a", finish="stop"))
        else:
            request.json({"error": {"message": "a reason"}}, status)

    with upstream({"/v1/completions": completions}, home) as api:
        for status in STATUSES:
            answer = api.ask("/v1/completions", {"prompt": "a"})
            described("post", "/v1/completions", answer)
            is_away = status in (502, 503, 504)
            said = (503, "engine_unreachable") if is_away else (502, "engine_failed")
            assert (answer.status, answer.json["error"]["code"]) == said, status
            assert "a reason" in answer.json["error"]["message"]
            assert ("retry-after" in answer.headers) == is_away


def breaks(request: Request) -> None:
    request.close_connection = True


@pytest.mark.parametrize(
    "answering",
    [breaks, lambda request: request.events(chunk(" a"), cut=True), lambda request: request.events("{")],
    ids=["nothing", "half an answer", "no JSON"],
)
def test_an_engine_that_breaks_off_may_be_asked_again(answering: Callable[[Request], object], home: Path) -> None:
    is_broken = False

    def completions(request: Request) -> None:
        if is_broken:
            answering(request)
        else:
            request.events(chunk(" a", finish="stop"))

    with upstream({"/v1/completions": completions}, home) as api:
        is_broken = True
        answer = api.ask("/v1/completions", {"prompt": "a"})
        described("post", "/v1/completions", answer)
        assert (answer.status, answer.json["error"]["code"]) == (503, "engine_failed")
        assert int(answer.headers["retry-after"]) > 0
        is_broken = False
        assert api.ask("/v1/completions", {"prompt": "a"}).status == 200


def test_an_engine_that_is_gone_may_be_asked_when_it_is_back(home: Path) -> None:
    with ExitStack() as server, upstream_of(server.enter_context(fake_server(NO_IDS))[0], home) as api:
        server.close()
        answer = api.ask("/v1/completions", {"prompt": "a"})
        described("post", "/v1/completions", answer)
        assert (answer.status, answer.json["error"]["code"]) == (503, "engine_unreachable")
        assert int(answer.headers["retry-after"]) > 0
