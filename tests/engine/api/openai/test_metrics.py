"""GET /metrics: what was asked and answered, in Prometheus' text form."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.api.openai.server import ApiServer
from tests.engine.api.openai.conftest import KEY, Api
from tests.waiting import until

PATH = "/v1/completions"


def samples(api: Api, key: str = KEY) -> dict[tuple[str, ...], float]:
    """Return all values by name and labels."""
    answer = api.ask("/metrics", key=key)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.body.decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


@pytest.fixture
def second(api: Api) -> Iterator[Api]:
    """Another server in this process, of the same workbench, without a key."""
    server = ApiServer(api.bench)
    server.start(0, "")
    assert server.port is not None
    yield Api(server.port, api.bench)
    server.stop()


def test_requests_tokens_and_times_are_counted(api: Api) -> None:
    before = samples(api)
    usage = api.ask(PATH, {"prompt": "Once upon", "max_tokens": 6}).json["usage"]
    assert api.ask(PATH, {"prompt": 5}).status == 400
    assert api.ask(PATH, {"prompt": "a"}, key="wrong").status == 401
    assert api.ask("/v1/models/story").status == api.ask("/v1/models/none").status - 204 == 200
    after = samples(api)

    def more(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    assert [more("logitbench_requests_total", PATH, status) for status in ("200", "400", "401")] == [1, 1, 1]
    assert [more("logitbench_requests_total", "/v1/models/{id}", status) for status in ("200", "404")] == [1, 1]
    assert more("logitbench_request_duration_seconds_count", PATH) == 3
    assert more("logitbench_time_to_first_token_seconds_count") == 1
    assert (
        0 < more("logitbench_time_to_first_token_seconds_sum") < more("logitbench_request_duration_seconds_sum", PATH)
    )
    assert more("logitbench_prompt_tokens_total") == usage["prompt_tokens"]
    assert more("logitbench_prompt_tokens_cached_total") == usage["prompt_tokens_details"]["cached_tokens"]
    assert more("logitbench_generation_tokens_total") == usage["completion_tokens"] == 6


def test_what_runs_now_is_shown(api: Api) -> None:
    connection = api.connect()
    body = '{"prompt": "Once", "max_tokens": 450, "ignore_eos": true, "stream": true, "n": 6}'
    connection.request("POST", PATH, body, {"authorization": f"Bearer {KEY}"})
    seen: list[dict[tuple[str, ...], float]] = []

    def runs() -> bool:
        seen.append(samples(api))
        return seen[-1]["logitbench_generation_tokens_per_second",] > 0

    until(runs, "it does not run")
    assert 0 < seen[-1]["logitbench_num_requests_running",] <= 6
    connection.close()
    until(lambda: samples(api)["logitbench_num_requests_running",] == 0, "it goes on")
    assert samples(api)["logitbench_num_requests_waiting",] == 0


def test_no_text_of_a_client_becomes_a_label(api: Api) -> None:
    for path in ("/secret-path", "/v1/models/secret-model", "/v1/secret?key=secret", "/metrics/secret"):
        api.ask(path, user_agent="secret-agent")
        api.ask(path, key="secret-key", method="PUT")
    assert b"secret" not in api.ask("/metrics").body


def test_two_servers_count_for_themselves(api: Api, second: Api) -> None:
    key = ("logitbench_requests_total", PATH, "200")
    before = samples(api).get(key, 0.0)
    assert second.ask(PATH, {"prompt": "a", "max_tokens": 1}).status == 200
    assert samples(api).get(key, 0.0) == before


def test_without_a_key_nothing_is_listed(second: Api) -> None:
    for path in ("/metrics", "/v1/files", "/v1/files/f", "/v1/batches", "/v1/jobs", "/v1/jobs/j/events"):
        answer = second.ask(path)
        assert (answer.status, answer.json["error"]["code"]) == (403, "key_required")
    assert second.ask("/v1/models").status == second.ask("/health").status == 200
