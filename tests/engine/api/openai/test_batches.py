"""/v1/batches: every line of a file is answered once, in the background, whatever happens to the server meanwhile."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api.openai import batch_runner, batch_work, file_store
from engine.api.openai.batch_store import BatchStore, Record
from engine.api.openai.server import KEY_FILE
from engine.ids import new_id
from tests.engine.api.openai.conftest import KEY, Api, serving
from tests.engine.api.openai.test_files import BOUNDARY, form
from tests.processes import free_port
from tests.waiting import until

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Once", "max_tokens": 3, "seed": 1},
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    EMBEDDINGS: {"input": "a text"},
}


def line(name: str, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": {**BODIES.get(url, {}), **body}}


def written(lines: list[Any]) -> bytes:
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in lines)


class Client:
    """A program that uses files and batches."""

    def __init__(self, api: Api, home: Path | None = None) -> None:
        self.api, self._home = api, home

    @property
    def key(self) -> str:
        return KEY if self._home is None else (self._home / KEY_FILE).read_text("utf-8").strip()

    def ask(self, path: str, body: object = None, status: int = 200, **options: str) -> Any:
        answer = self.api.ask(path, body, key=self.key, **options)
        assert answer.status == status, answer.body
        return answer.json

    def upload(self, lines: list[Any]) -> str:
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        id: str = self.ask("/v1/files", form(written(lines)), content_type=kind)["id"]
        return id

    def start(self, lines: list[Any], endpoint: str = COMPLETIONS, **more: Any) -> Any:
        body = {"input_file_id": self.upload(lines), "endpoint": endpoint, "completion_window": "24h", **more}
        return self.ask("/v1/batches", body)

    def batch(self, id: str) -> Any:
        return self.ask(f"/v1/batches/{id}")

    def ended(self, id: str) -> Any:
        until(lambda: self.batch(id)["status"] in ("completed", "failed", "cancelled"), "the batch does not end")
        return self.batch(id)

    def lines(self, file_id: str | None) -> list[Any]:
        if file_id is None:
            return []
        content = self.api.ask(f"/v1/files/{file_id}/content", key=self.key)
        assert content.status == 200
        return [json.loads(each) for each in content.body.splitlines()]


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    client = Client(api)
    until(lambda: api.ask("/v1/batches").status == 200)
    yield client
    for batch in client.ask("/v1/batches?limit=100")["data"]:
        if batch["status"] not in ("completed", "failed", "cancelled"):
            api.ask(f"/v1/batches/{batch['id']}/cancel", {})
            client.ended(batch["id"])
    for file in client.ask("/v1/files")["data"]:
        client.ask(f"/v1/files/{file['id']}", method="DELETE")


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_every_line_is_answered_as_a_call_would_be(
    client: Client, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setattr(client.api.bench.model.engine, "chat_template", "{{ messages[0].content }}")
    batch = client.start([line(f"n{number}", endpoint, temperature=0) for number in range(5)], endpoint)
    assert batch["object"] == "batch" and batch["status"] in ("validating", "in_progress")
    done = client.ended(batch["id"])
    assert (done["status"], done["request_counts"]) == ("completed", {"total": 5, "completed": 5, "failed": 0})
    assert done["error_file_id"] is None and done["model"] == "story"
    alone = client.ask(endpoint, {**BODIES[endpoint], "temperature": 0})
    found = client.lines(done["output_file_id"])
    assert sorted(one["custom_id"] for one in found) == [f"n{number}" for number in range(5)]
    for one in found:
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
        assert one["response"]["body"]["choices"] == alone["choices"]
        assert client.api.bench.trials.trial(one["response"]["request_id"]).label is not None
    file = client.ask(f"/v1/files/{done['output_file_id']}")
    assert (file["purpose"], file["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")


def test_a_wrong_line_is_answered_for_itself(client: Client) -> None:
    lines = [
        line("good"), b"not json\n", b"\n", line("url", CHAT), {**line("method"), "method": "GET"}, line("good"),
        {**line("x"), "custom_id": ""}, {"custom_id": "only"}, b"\xff\xfe\n", b"[" * 5000 + b"\n",
        line("type", max_tokens="many"), line("model", model="gpt-5"), {**line("body"), "body": [1]},
        line("long", prompt="a " * 5_000), line("also good"),
    ]  # fmt: skip
    done = client.ended(client.start(lines)["id"])
    assert done["status"] == "completed"
    good = client.lines(done["output_file_id"])
    assert {(one["line"], one["custom_id"]) for one in good} == {(1, "good"), (15, "also good")}
    bad = {one["line"]: one for one in client.lines(done["error_file_id"])}
    assert sorted(bad) == [2, *range(4, 15)]  # an empty line is none
    assert {number: bad[number]["response"]["status_code"] for number in (11, 12, 14)} == {11: 400, 12: 404, 14: 400}
    assert bad[11]["response"]["body"]["error"]["param"] == "max_tokens"
    assert bad[6]["error"]["code"] == "duplicate_custom_id" and bad[6]["custom_id"] == "good"
    for number in {*bad} - {11, 12, 14}:
        assert bad[number]["response"] is None and f"line {number}: " in bad[number]["error"]["message"]
        assert bad[number]["error"]["param"] != ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "custom_id": st.text(max_size=5) | JSON,
        "method": st.just("POST") | JSON,
        "url": st.just(COMPLETIONS) | JSON,
        "body": st.just({"prompt": "a", "max_tokens": 1}) | JSON,
    },
)
DRAWN = st.one_of(
    FIELDS.map(lambda each: json.dumps(each).encode()), JSON.map(lambda each: json.dumps(each).encode()),
    st.binary(max_size=40).map(lambda each: each.replace(b"\n", b"")),
)  # fmt: skip


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(DRAWN, min_size=1, max_size=20))
def test_of_drawn_lines_each_is_answered_once(client: Client, drawn: list[bytes]) -> None:
    numbers = [number for number, each in enumerate(drawn, 1) if each.strip()]
    done = client.ended(client.start([each + b"\n" for each in drawn])["id"])
    if not numbers:
        assert (done["status"], done["errors"]["data"][0]["code"]) == ("failed", "empty_file")
        return
    assert done["status"] == "completed"
    found = client.lines(done["output_file_id"]) + client.lines(done["error_file_id"])
    assert sorted(one["line"] for one in found) == numbers
    assert done["request_counts"]["total"] == len(numbers)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": f"file-{new_id()}"}, "input_file_id"), ({"input_file_id": "../x"}, "input_file_id"),
        ({"input_file_id": 5}, "input_file_id"), ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"), ({"metadata": {"a": 5}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"), ({"metadata": {"a" * 65: ""}}, None),
    ],
)  # fmt: skip
def test_a_wrong_batch_is_refused(client: Client, change: dict[str, Any], param: str | None) -> None:
    body = {"input_file_id": client.upload([line("a")]), "endpoint": COMPLETIONS, "completion_window": "24h"}
    answer = client.api.ask("/v1/batches", {**body, **change})
    assert answer.status in (400, 404)
    if param is not None:
        assert answer.json["error"]["param"] == param


def test_ids_that_are_none_are_unknown(client: Client) -> None:
    for id in (f"batch_{new_id()}", "..%2f..%2fetc", "%00", "x" * 5_000, "batch_" + "." * 36):
        for path, body in (("", None), ("/cancel", {})):
            answer = client.api.ask(f"/v1/batches/{id}{path}", body)
            assert answer.status == 404 and len(answer.body) < 1_000


def test_a_batch_is_cancelled_and_keeps_what_it_has(client: Client) -> None:
    lines = [line("quick"), *(line(f"slow{number}", max_tokens=300, ignore_eos=True) for number in range(200))]
    batch = client.start(lines)
    input_id = batch["input_file_id"]
    until(lambda: client.batch(batch["id"])["request_counts"]["completed"] > 0)
    assert client.ask(f"/v1/files/{input_id}", method="DELETE", status=409)["error"]["code"] == "file_in_use"
    client.ask(f"/v1/batches/{batch['id']}/cancel", {})
    done = client.ended(batch["id"])
    assert done["status"] == "cancelled" and 0 < done["request_counts"]["completed"] < 201
    assert len(client.lines(done["output_file_id"])) == done["request_counts"]["completed"]
    assert client.ask(f"/v1/batches/{batch['id']}/cancel", {}, 409)["error"]["code"] == "batch_over"
    assert client.ask(f"/v1/files/{input_id}", method="DELETE")["deleted"]


def test_batches_have_pages(client: Client) -> None:
    ids = [client.start([line("a")])["id"] for _ in range(3)]
    for id in ids:
        client.ended(id)
    first = client.ask("/v1/batches?limit=2")
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (ids[:0:-1], True)
    assert client.ask(f"/v1/batches?limit=1&after={first['last_id']}")["data"][0]["id"] == ids[0]


def test_a_batch_waits_for_a_benchmark_and_says_so(client: Client) -> None:
    with client.api.bench.machine.acquire("A benchmark", "measurement"):
        batch = client.start([line("a")])
        until(lambda: client.batch(batch["id"])["errors"] is not None)
        waiting = client.batch(batch["id"])
        assert waiting["status"] == "validating" and waiting["errors"]["data"][0]["code"] == batch_work.MEASURING
    done = client.ended(batch["id"])
    assert (done["status"], done["errors"]) == ("completed", None)


FATAL = """
    import os
    from engine.llama.sampler import Sampler
    make = Sampler.__init__
    def ends(self, sampling, *arguments, **options):
        if sampling.seed == 666:
            with open({tries!r}, "a") as tries:
                tries.write("x")
            os._exit(3)
        make(self, sampling, *arguments, **options)
    Sampler.__init__ = ends
"""


def test_a_line_that_ends_its_worker_is_asked_once_and_the_others_are_answered(
    tmp_path: Path, story_model: Path, fault: Callable[[str], None]
) -> None:
    tries = tmp_path / "tries"
    fault(FATAL.format(tries=str(tries)))
    with serving(tmp_path / "home", story_model) as api:
        client = Client(api)
        until(lambda: api.ask("/v1/batches").status == 200)
        lines = [line(f"n{number}", seed=666 if number == 5 else number) for number in range(12)]
        done = client.ended(client.start(lines)["id"])
        assert done["request_counts"] == {"total": 12, "completed": 11, "failed": 1}
        (bad,) = client.lines(done["error_file_id"])
        assert (bad["custom_id"], bad["response"]["status_code"]) == ("n5", 422)
        assert tries.read_text() == "x"
        error = client.ask(COMPLETIONS, {**BODIES[COMPLETIONS], "seed": 666}, 422)["error"]
        assert error["code"] == "request_ended_worker" and "is not retried" in error["message"]


def test_a_browser_is_served_before_a_batch(client: Client) -> None:
    batch = client.start([line(f"n{number}", max_tokens=100, ignore_eos=True) for number in range(300)])
    until(lambda: client.batch(batch["id"])["request_counts"]["completed"] > 0)
    assert client.ask(COMPLETIONS, BODIES[COMPLETIONS])["choices"]
    assert client.batch(batch["id"])["status"] == "in_progress"


def test_a_full_disk_is_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "DISK_RETRY_S", 0.05)
    body = {"input_file_id": client.upload([line("a")]), "endpoint": COMPLETIONS, "completion_window": "24h"}
    fsync, is_full = os.fsync, [True]

    def full(file: int) -> None:
        if is_full[0] and threading.current_thread() is not threading.main_thread():
            raise OSError(28, os.strerror(28))
        fsync(file)

    with client.api.bench.machine.acquire("A benchmark", "measurement"):
        batch = client.ask("/v1/batches", body)
        monkeypatch.setattr(os, "fsync", full)
    until(lambda: "storage_full" in json.dumps(client.batch(batch["id"])["errors"]))
    is_full[0] = False
    done = client.ended(batch["id"])
    assert (done["status"], done["errors"], done["request_counts"]["completed"]) == ("completed", None, 1)


def test_a_cancel_is_not_confirmed_before_it_is_on_the_disk(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    save, is_full = BatchStore.save, [True]

    def full(store: BatchStore, record: Record) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(store, record)

    with client.api.bench.machine.acquire("A benchmark", "measurement"):
        batch = client.start([line("a")])
        path = f"/v1/batches/{batch['id']}/cancel"
        monkeypatch.setattr(batch_runner, "DISK_RETRY_S", 0.05)
        monkeypatch.setattr(BatchStore, "save", full)
        assert client.ask(path, {}, 507)["error"]["code"] == "storage_full"
        # 409 where its end, which is tried again and again, has begun
        assert client.api.ask(path, {}, key=client.key).status in (409, 507)
        is_full[0] = False
    assert client.ended(batch["id"])["status"] == "cancelled"


def test_the_number_of_batches_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "MOST_OPEN", 1)
    with client.api.bench.machine.acquire("A benchmark", "measurement"):
        first = client.start([line("a")])
        body = {"input_file_id": first["input_file_id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
        assert client.ask("/v1/batches", body, 429)["error"]["code"] == "rate_limit_exceeded"
        monkeypatch.setattr(file_store, "MOST_FILES", 0)
        monkeypatch.setattr(batch_runner, "MOST_OPEN", 5)
        assert client.ask("/v1/batches", body, 413)["error"]["code"] == "storage_full"
    client.ended(first["id"])


@contextmanager
def program(home: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """`serve` in a process of its own, which is killed at the end."""
    command = [sys.executable, "-m", "engine", "serve", "--port", str(port), "--n-ctx", "512", "--parallel", "4"]
    environment = {**os.environ, "LOGITBENCH_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: is_ready(port), "the server is not ready")
            yield process
        finally:
            process.kill()


def is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


@pytest.mark.slow
def test_killed_servers_lose_no_line_and_answer_none_twice(tmp_path: Path) -> None:
    num, port = 400, free_port()
    client = Client(Api(port, None), tmp_path)  # type: ignore[arg-type]
    with program(tmp_path, port) as process:
        id = client.start([line(f"n{number}", max_tokens=20, ignore_eos=True) for number in range(num)])["id"]
        until(lambda: client.batch(id)["request_counts"]["completed"] > 10)
        process.send_signal(signal.SIGKILL)
    answered = [0]
    for _ in range(4):
        with program(tmp_path, port) as process:
            until(lambda: client.batch(id)["request_counts"]["completed"] > answered[-1])
            answered.append(client.batch(id)["request_counts"]["completed"])
            process.send_signal(signal.SIGKILL)
    with program(tmp_path, port):
        done = client.ended(id)
        assert (done["status"], done["request_counts"]) == ("completed", {"total": num, "completed": num, "failed": 0})
        found = client.lines(done["output_file_id"])
        assert sorted(one["custom_id"] for one in found) == sorted(f"n{number}" for number in range(num))


@pytest.mark.slow
def test_of_two_servers_of_one_home_one_runs_the_batches_and_the_other_takes_them_over(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    first, second = (Client(Api(port, None), tmp_path) for port in ports)  # type: ignore[arg-type]
    with program(tmp_path, ports[0]) as process, program(tmp_path, ports[1]):
        id = first.start([line(f"n{number}", max_tokens=50, ignore_eos=True) for number in range(150)])["id"]
        body = {"input_file_id": first.batch(id)["input_file_id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
        assert second.ask("/v1/batches", body, 503)["error"]["code"] == "batches_elsewhere"
        until(lambda: first.batch(id)["request_counts"]["completed"] > 10)
        process.send_signal(signal.SIGKILL)
        done = second.ended(id)
        assert (done["status"], done["request_counts"]["completed"]) == ("completed", 150)
        assert len({one["custom_id"] for one in second.lines(done["output_file_id"])}) == 150
