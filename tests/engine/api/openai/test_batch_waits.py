"""A batch loses no line to what passes: an external engine that is away, a queue that others fill, a model in use."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engine.api.openai import embeddings, errors
from engine.api.openai.server import server_of
from engine.settings import PREFIX
from tests.engine.api.openai.conftest import Api
from tests.engine.api.openai.test_batches import COMPLETIONS, EMBEDDINGS, Client, line
from tests.engine.api.openai.test_upstream import upstream_of
from tests.engine.backends.fake_server import Request, chunk, fake_server
from tests.waiting import until

LINES = 6
OFTEN = 5 * LINES
"""Times that lines are asked in vain: more than three each."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are asked again at once."""
    for name in ("QUEUE_RETRY_S", "BUSY_RETRY_S", "LOADING_RETRY_S"):
        monkeypatch.setattr(errors, name, 0.02)
    monkeypatch.setattr(embeddings, "BUSY_RETRY_S", 0.02)


def num_failed(api: Api) -> int:
    return sum(row.state == "failed" for row in server_of(api.bench).traffic.rows(500))


@contextmanager
def waiting(api: Api, endpoint: str, code: str) -> Iterator[None]:
    """Within this, every line was asked often, and its batch says what it waits for; after it, all are answered."""
    client = Client(api)
    until(lambda: api.ask("/v1/batches").status == 200)
    before = num_failed(api)
    batch = client.start([line(f"n{number}", endpoint) for number in range(LINES)], endpoint)
    until(lambda: num_failed(api) >= before + OFTEN, "the lines are not asked again")
    now = client.batch(batch["id"])
    assert (now["status"], now["errors"]["data"][0]["code"]) == ("in_progress", code)
    assert (now["request_counts"]["completed"], now["request_counts"]["failed"]) == (0, 0)
    yield
    done = client.ended(batch["id"])
    assert done["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert (done["status"], done["errors"]) == ("completed", None)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_engine_that_is_not_ready_is_waited_for(status: int, home: Path) -> None:
    is_away = False

    def completions(request: Request) -> None:
        if is_away:
            request.json({"error": {"message": "Loading model", "type": "unavailable_error"}}, status)
        else:
            request.events(chunk(" a", finish="stop"))

    with fake_server({COMPLETIONS: completions}) as (address, _), upstream_of(address, home) as api:
        is_away = True
        with waiting(api, COMPLETIONS, "queue_full" if status == 429 else "engine_unreachable"):
            is_away = False


def test_an_engine_that_is_gone_is_waited_for(home: Path) -> None:
    answers = {COMPLETIONS: lambda request: request.events(chunk(" a", finish="stop"))}
    with ExitStack() as first, ExitStack() as second:
        address, _ = first.enter_context(fake_server(answers))
        with upstream_of(address, home) as api:
            first.close()
            with waiting(api, COMPLETIONS, "engine_unreachable"):
                second.enter_context(fake_server(answers, int(address.rpartition(":")[2])))


def test_a_batch_that_waits_can_be_cancelled(home: Path) -> None:
    answers = {COMPLETIONS: lambda request: request.events(chunk(" a", finish="stop"))}
    with ExitStack() as server, upstream_of(server.enter_context(fake_server(answers))[0], home) as api:
        server.close()
        client = Client(api)
        until(lambda: api.ask("/v1/batches").status == 200)
        batch = client.start([line(f"n{number}") for number in range(LINES)])
        until(lambda: num_failed(api) >= OFTEN, "the lines are not asked again")
        client.ask(f"/v1/batches/{batch['id']}/cancel", {})
        done = client.ended(batch["id"])
        assert (done["status"], done["request_counts"]["failed"], done["errors"]) == ("cancelled", 0, None)


def test_a_line_on_which_the_engine_breaks_off_is_answered_with_that_error_in_the_end(home: Path) -> None:
    def completions(request: Request) -> None:
        if request.body["prompt"] == "bad":
            request.events(chunk(" a"), cut=True)
        else:
            request.events(chunk(" a", finish="stop"))

    with fake_server({COMPLETIONS: completions}) as (address, seen), upstream_of(address, home) as api:
        seen.clear()
        client = Client(api)
        until(lambda: api.ask("/v1/batches").status == 200)
        done = client.ended(client.start([line("good"), line("bad", prompt="bad"), line("also good")])["id"])
        assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        (bad,) = client.lines(done["error_file_id"])
        assert bad["response"]["body"]["error"]["code"] == "engine_failed"
        assert sum(request.body["prompt"] == "bad" for request in seen) == 3


def test_an_embedding_model_that_a_page_uses_is_waited_for(
    api: Api, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX + "HOME", str(exported))
    monkeypatch.setattr(api.bench.embedding, "is_free_for", lambda _spec: False)
    with waiting(api, EMBEDDINGS, "model_busy"):
        monkeypatch.undo()
        monkeypatch.setenv(PREFIX + "HOME", str(exported))
