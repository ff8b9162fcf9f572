"""/v1/jobs: calls go on without their client, and tell their state, chunks and result later."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.openai import jobs
from engine.api.openai.server import PAGES, server_of
from engine.ids import new_id
from engine.specs import Request
from engine.workbench.trials import Draft
from tests.engine.api.openai.conftest import KEY, Answer, Api, serving
from tests.waiting import until

GREEDY = {"prompt": "Once upon", "temperature": 0, "max_tokens": 8}
LONG = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "temperature": 0}

BEARER = f"Authorization: Bearer {KEY}"


def begin(api: Api, body: dict[str, Any], endpoint: str = "/v1/completions") -> Any:
    answer = api.ask("/v1/jobs", {"endpoint": endpoint, "body": body})
    assert answer.status == 202, answer.body
    assert answer.headers["location"] == f"/v1/jobs/{answer.json['id']}"
    return answer.json


def ended(api: Api, id: str) -> Any:
    found = api.ask(f"/v1/jobs/{id}?wait=30")
    assert found.status == 200, found.body
    assert found.json["status"] in ("completed", "failed", "cancelled")
    return found.json


def events(answer: Answer) -> list[tuple[str, Any]]:
    assert answer.status == 200, answer.body
    *parts, last, end = answer.body.decode().split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    found = [part.partition("\ndata: ") for part in parts]
    return [(id.removeprefix("id: "), json.loads(data)) for id, _, data in found]


@pytest.fixture
def engine_is_idle(api: Api) -> Iterator[None]:
    yield
    engine = api.bench.model.loaded()[0]
    until(lambda: engine.num_open == 0, "a job goes on")


def test_a_job_has_the_response_of_its_endpoint(api: Api) -> None:
    for endpoint, body in (
        ("/v1/completions", GREEDY | {"n": 2, "logprobs": 2}),
        ("/v1/completions", GREEDY | {"stream": True}),
    ):
        begun = begin(api, body, endpoint)
        found = ended(api, begun["id"])
        assert (found["status"], found["error"], found["endpoint"]) == ("completed", None, endpoint)
        assert begun["trials"][0] == begun["id"] and begun["trials"] == found["trials"]
        whole = api.ask(endpoint, body | {"stream": False}).json
        assert found["response"]["choices"] == whole["choices"]
        assert found["created_at"] <= found["finished_at"]


def test_any_call_is_a_job_where_its_client_prefers_not_to_wait(api: Api) -> None:
    answer = api.ask("/v1/completions", GREEDY, prefer="respond-async, wait=5")
    assert (answer.status, answer.headers["preference-applied"]) == (202, "respond-async")
    assert ended(api, answer.headers["location"].rpartition("/")[2])["response"]["choices"]
    assert api.ask("/v1/completions", GREEDY, prefer="handling=lenient").status == 200


def test_a_job_of_which_one_answer_fails_has_failed_and_can_be_read_at_any_moment(api: Api) -> None:
    """The other answers are still being stopped when it is over."""
    body = {"prompt": "Once upon a time", "n": 8, "max_tokens": 400, "ignore_eos": True}
    is_over = threading.Event()
    statuses: list[int] = []

    def read() -> None:
        while not is_over.is_set():
            statuses.append(api.ask("/v1/jobs").status)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for seed in range(4):
            id = begin(api, body | {"grammar": 'root ::= [^.]* "."', "seed": seed})["id"]
            until(lambda id=id: api.ask(f"/v1/jobs/{id}").json["finished_at"], "it did not end")  # type: ignore[misc]
            found = ended(api, id)
            assert (found["status"], found["response"]) == ("failed", None)
            assert "grammar" in found["error"]["message"]
    finally:
        is_over.set()
        reader.join()
    assert set(statuses) == {200}


def test_a_job_is_listed_and_stored_as_a_trial(api: Api) -> None:
    id = begin(api, GREEDY)["id"]
    ended(api, id)
    listed = api.ask("/v1/jobs").json["data"]
    assert listed[0]["id"] == id and "response" not in listed[0]
    history = api.bench.history
    assert history is not None
    until(lambda: history.trial(id) is not None, "the trial was not stored")


@pytest.mark.parametrize("n", [1, 3])
def test_the_events_go_on_after_any_that_a_client_has_seen(api: Api, n: int) -> None:
    body = GREEDY | {"n": n, "stream_options": {"include_usage": True}, "logprobs": 1, "echo": True}
    id = begin(api, body)["id"]
    every = events(api.ask(f"/v1/jobs/{id}/events"))
    chunks = [chunk["choices"][0] for _, chunk in every if chunk["choices"]]
    texts = ["".join(one["text"] for one in chunks if one["index"] == at) for at in range(n)]
    assert texts == [choice["text"] for choice in ended(api, id)["response"]["choices"]]
    assert every[-1][1]["usage"]["completion_tokens"] == 8 * n
    for place, (last, _) in enumerate(every):
        rest = [one for _, one in events(api.ask(f"/v1/jobs/{id}/events", last_event_id=last))]
        left = [one for _, one in every[place + 1 :]]
        assert sorted(map(json.dumps, rest)) == sorted(map(json.dumps, left))


@pytest.mark.usefixtures("engine_is_idle")
def test_a_job_goes_on_when_its_readers_leave_and_ends_when_it_is_cancelled(api: Api) -> None:
    id = begin(api, LONG)["id"]
    for path in (f"/v1/jobs/{id}/events", f"/v1/jobs/{id}?wait=60"):
        connection = api.connect()
        connection.request("GET", path, headers={"authorization": "Bearer a key for tests"})
        connection.close()
    assert api.ask(f"/v1/jobs/{id}").json["status"] in ("queued", "in_progress", "completed")
    cancelled = api.ask(f"/v1/jobs/{id}", method="DELETE").json
    assert cancelled["status"] in ("cancelled", "completed")
    again = api.ask(f"/v1/jobs/{id}", method="DELETE").json
    assert again == cancelled
    assert len(events(api.ask(f"/v1/jobs/{id}/events"))) >= 1


@pytest.mark.slow
def test_nothing_is_written_to_clients_that_reset_their_connection(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    id = begin(api, LONG | {"n": 8, "logprobs": 5})["id"]
    ended(api, id)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", api.port)) as client:
            client.sendall(f"GET /v1/jobs/{id}/events HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\n\r\n".encode())
            assert client.recv(1).startswith(b"H")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets it
    assert api.ask("/health").status == 200
    assert not caplog.records


def test_a_call_that_is_refused_is_no_job(api: Api) -> None:
    before = api.ask("/v1/jobs").json["data"]
    for body, param, status in (
        ({"prompt": 5}, "prompt", 400),
        ({"prompt": "a", "model": "gpt-5"}, "model", 404),
        ({"prompt": "a", "n": 10_000}, "n", 400),
    ):
        answer = api.ask("/v1/jobs", {"endpoint": "/v1/completions", "body": body})
        assert (answer.status, answer.json["error"]["param"]) == (status, param)
    for asked, param in (
        ({"endpoint": "/v1/files", "body": {}}, "endpoint"),
        ({"endpoint": 5, "body": {}}, "endpoint"),
        ({"body": {}}, "endpoint"),
        ({"endpoint": "/v1/completions"}, "body"),
    ):
        answer = api.ask("/v1/jobs", asked)
        assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert api.ask("/v1/jobs").json["data"] == before


def test_a_call_that_fails_later_says_why(api: Api) -> None:
    found = ended(api, begin(api, {"prompt": "word " * 5_000})["id"])
    assert (found["status"], found["response"]) == ("failed", None)
    assert found["error"]["code"] == "context_length_exceeded"
    sent = api.ask(f"/v1/jobs/{found['id']}/events").events
    assert sent[0]["error"] == found["error"]


def test_an_unknown_job_and_wrong_parameters_are_refused(api: Api) -> None:
    for id in (new_id(), "..%2f..%2fetc%2fpasswd", "%00", "x" * 5_000):
        for path, method in (("", "GET"), ("", "DELETE"), ("/events", "GET")):
            answer = api.ask(f"/v1/jobs/{id}{path}", method=method)
            assert answer.status == 404 and len(answer.body) < 1_000
    id = begin(api, GREEDY)["id"]
    for wait in ("-1", "61", "nan", "1e9", "", "x" * 1_000, "%D9%A3"):
        answer = api.ask(f"/v1/jobs/{id}?wait={wait}")
        assert (answer.status, answer.json["error"]["param"]) == (400, "wait")
    for last in ("1", "a.b", "1.-1", "1.1.1", "9" * 5_000, "1." + "9" * 30):
        answer = api.ask(f"/v1/jobs/{id}/events", last_event_id=last)
        assert (answer.status, answer.json["error"]["param"]) == (400, "Last-Event-ID")


def test_the_oldest_jobs_are_forgotten(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [ended(api, begin(api, GREEDY)["id"])["id"] for _ in range(3)]
    monkeypatch.setattr(jobs, "MOST_KEPT", 2)
    assert [one["id"] for one in api.ask("/v1/jobs").json["data"]] == [ids[2], ids[1]]
    assert api.ask(f"/v1/jobs/{ids[0]}").status == 410
    monkeypatch.setattr(jobs, "KEPT_S", 0.0)
    assert api.ask("/v1/jobs").json["data"] == []


def forgotten(answer: Answer, id: str) -> None:
    assert (answer.status, answer.json["error"]["code"]) == (410, "job_forgotten"), answer.body
    assert answer.headers["x-logitbench-trial"] == id
    assert answer.json["error"]["message"].endswith(f": {PAGES}?trial={id}")
    assert answer.headers["link"] == f'<{PAGES}?trial={id}>; rel="describedby"'


def test_a_job_that_was_forgotten_names_its_trial(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, unkept = (ended(api, begin(api, GREEDY | {"n": 2, "store": store})["id"])["id"] for store in (True, False))
    page = api.bench.trials.submit(Draft("Once", request=Request(max_tokens=1)))
    page.job.result()
    monkeypatch.setattr(jobs, "KEPT_S", 0.0)
    for path, method in (("", "GET"), ("?wait=1", "GET"), ("", "DELETE"), ("/events", "GET")):
        forgotten(api.ask(f"/v1/jobs/{kept}{path}", method=method), kept)
        for other in (unkept, page.id):
            assert api.ask(f"/v1/jobs/{other}{path}", method=method).status == 404


def test_after_a_restart_a_job_names_its_trial_until_that_is_deleted(tmp_path: Path, story_model: Path) -> None:
    with serving(tmp_path, story_model) as first:
        id = begin(first, GREEDY)["id"]
        ended(first, id)
    with serving(tmp_path, story_model) as second:
        forgotten(second.ask(f"/v1/jobs/{id}"), id)
        second.bench.trials.delete(id)
        assert second.ask(f"/v1/jobs/{id}").status == 404


@pytest.mark.parametrize("wide", [{"user": "u" * 100_000}, {"logprobs": 20, "max_tokens": 64, "ignore_eos": True}])
def test_jobs_that_are_over_are_forgotten_by_their_size_but_for_the_latest(
    api: Api, monkeypatch: pytest.MonkeyPatch, wide: dict[str, Any]
) -> None:
    monkeypatch.setattr(jobs, "MOST_KEPT_BYTES", 50_000)
    ids = [ended(api, begin(api, GREEDY | wide)["id"])["id"] for _ in range(3)]
    assert [one["id"] for one in api.ask("/v1/jobs").json["data"]] == ids[2:]
    assert ended(api, ids[2])["response"]["choices"]


def test_a_clock_that_is_set_forgets_no_job(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    id = ended(api, begin(api, GREEDY)["id"])["id"]
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 1e6)
    assert api.ask(f"/v1/jobs/{id}").json["status"] == "completed"


def test_without_a_key_there_are_no_jobs(story_model: Path, api: Api) -> None:
    server = server_of(api.bench)
    assert server.port is not None
    server.stop()
    server.start(api.port, "")
    try:
        assert api.ask("/v1/jobs").status == api.ask(f"/v1/jobs/{new_id()}").status == 403
        assert api.ask("/v1/completions", GREEDY, prefer="respond-async").status == 200
    finally:
        server.stop()
        server.start(api.port, "a key for tests")


def test_the_figures_of_a_long_job_are_there_at_its_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic, found, settled = server_of(api.bench).traffic, list[int](), list[int]()
    number, settle = traffic.num_calls + 1, traffic.settle
    monkeypatch.setattr(traffic, "on_end", lambda figures: found.append(figures.num_generated))

    def settle_all() -> None:
        settle()
        settled.append(traffic.num_calls)

    monkeypatch.setattr(traffic, "settle", settle_all)
    with api.bench.model.loaded()[0].held():
        begin(api, GREEDY)
        until(lambda: number in settled, "nothing is settled after the response")
    until(lambda: bool(found), "nothing settles the call of a job")
    call = traffic._calls[number]
    assert found == [8] and not call._live and not call.is_open
