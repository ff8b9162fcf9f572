"""POST /v1/completions: texts, figures and streams equal the engine's own."""

import gc
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.api.openai import answers
from engine.api.openai.calls import NAMED_TRIALS
from engine.api.openai.logprobs import Shown, TokenTexts, legacy
from engine.api.openai.server import PAGES, server_of
from engine.results import Completion, Timings
from engine.specs import Sampling
from engine.steps import StepTable
from tests.engine.api.openai.conftest import Api
from tests.fake_engine import VOCABULARY
from tests.waiting import until

GREEDY = {"temperature": 0, "max_tokens": 6}


def complete(api: Api, **asked: Any) -> Any:
    answer = api.ask("/v1/completions", {"model": "story", **asked})
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.parametrize("given", [{}, {"stream": True, "echo": True, "prompt": "a " * 300}])
def test_many_tokens_are_written_down_beside_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """Other calls would stand still for as long, which may be minutes."""
    threads = set[str]()

    def seen(texts: TokenTexts, tokens: Sequence[Shown], *rest: Any) -> dict[str, Any]:
        if len(tokens) > 1:
            threads.add(threading.current_thread().name)
        return legacy(texts, tokens, *rest)

    monkeypatch.setattr(answers, "legacy", seen)
    body = {"prompt": "Once upon", "max_tokens": 30, "ignore_eos": True, "logprobs": 20, "n": 2, **given}
    assert api.ask("/v1/completions", body).status == 200
    assert threads and "logitbench-api" not in threads


def test_the_text_and_the_figures_are_those_of_the_engine(api: Api) -> None:
    engine = api.bench.model.loaded()[0]
    own = engine.submit("Once upon", Sampling(temperature=0), max_tokens=6, top_k=20, prompt_logprobs=True).result(60)
    found = complete(api, prompt="Once upon", logprobs=3, echo=True, **GREEDY)
    (choice,) = found["choices"]
    assert choice["text"] == "Once upon" + own.text
    assert choice["finish_reason"] == own.finish_reason
    steps = [*own.prompt_steps, *own.steps]
    given = choice["logprobs"]
    assert given["tokens"] == [engine.vocabulary.text(step.id) for step in steps]
    assert given["token_logprobs"][0] is given["top_logprobs"][0] is None
    assert given["token_logprobs"][1:] == pytest.approx([step.logprob for step in steps[1:]], abs=1e-5)
    ends = [*given["text_offset"][1:], len(choice["text"])]
    texts = [choice["text"][start:end] for start, end in zip(given["text_offset"], ends, strict=True)]
    assert [one.strip() for one in texts[1:]] == [one.strip() for one in given["tokens"][1:]]
    assert found["usage"]["prompt_tokens"] == len(own.prompt_ids)
    assert found["usage"]["total_tokens"] == len(own.prompt_ids) + len(own.ids)


@pytest.mark.parametrize("given", [{}, {"json_schema": {}}, {"logit_bias": {}}, {"grammar": ""}, {"top_k": 5}])
def test_a_request_that_is_sent_again_is_answered_in_the_same_way(api: Api, given: dict[str, Any]) -> None:
    found = [complete(api, prompt="Once upon", max_tokens=5, seed=seed, **given) for seed in (7, 8, 7)]
    texts = [one["choices"][0]["text"] for one in found]
    assert texts[0] == texts[2]
    assert texts[0] != texts[1] or "json_schema" in given


def test_a_greedy_token_equals_the_best_of_its_candidates(api: Api) -> None:
    """lm-eval compares them exactly to tell whether an answer is the greedy one."""
    for prompt in ("Once upon a time", "The king", "She said"):
        given = complete(api, prompt=prompt, logprobs=1, max_tokens=12, temperature=0)["choices"][0]["logprobs"]
        for token, logprob, top in zip(
            *(given[name] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True
        ):
            assert top[token] == logprob == max(top.values())


def test_a_token_that_is_not_among_the_best_is_added_to_them(api: Api) -> None:
    given = complete(api, prompt="Once", logprobs=1, max_tokens=24, temperature=2, seed=3)["choices"][0]["logprobs"]
    sizes = {len(top) for top in given["top_logprobs"]}
    assert sizes == {1, 2}
    assert all(token in top for token, top in zip(given["tokens"], given["top_logprobs"], strict=True))


def test_an_echo_without_generation_scores_the_prompt(api: Api) -> None:
    (choice,) = complete(api, prompt="Once upon a time", logprobs=0, echo=True, max_tokens=0)["choices"]
    assert choice["text"] == "Once upon a time"
    given = choice["logprobs"]
    assert len(given["tokens"]) == 5 and all(logprob < 0 for logprob in given["token_logprobs"][1:])
    assert all(len(top) == 1 for top in given["top_logprobs"][1:])


@pytest.mark.parametrize("prompt", ["Once upon", ["Once upon"], [1, 2404, 636], [[1, 2404, 636]]])
def test_prompts_of_all_forms(api: Api, prompt: object) -> None:
    (choice,) = complete(api, prompt=prompt, **GREEDY)["choices"]
    assert choice["text"] == complete(api, prompt="Once upon", **GREEDY)["choices"][0]["text"]


def test_several_prompts_with_several_answers_each(api: Api) -> None:
    found = complete(api, prompt=["Once", "The king"], n=2, seed=5, max_tokens=8)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["choices"][0]["text"] != found["choices"][1]["text"]
    alone = complete(api, prompt="The king", seed=6, max_tokens=8, cache_prompt=False)["choices"][0]["text"]
    again = complete(api, prompt="The king", seed=6, max_tokens=8, cache_prompt=False)["choices"][0]["text"]
    assert alone == again


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stop", [None, ["a time", "zzz"]])
def test_a_stream_has_the_text_and_the_figures_of_the_whole(api: Api, n: int, stop: list[str] | None) -> None:
    asked = {
        "prompt": "Once upon",
        "n": n,
        "seed": 1,
        "logprobs": 2,
        "stop": stop,
        "max_tokens": 12,
        "echo": True,
        "temperature": 0,
    }
    whole = complete(api, **asked)
    events = api.ask("/v1/completions", {**asked, "stream": True, "stream_options": {"include_usage": True}}).events
    *chunks, last = events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        parts = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]
        for name in ("tokens", "text_offset"):
            assert [one for part in parts for one in part["logprobs"][name]] == choice["logprobs"][name]


def test_every_call_is_a_trial_unless_it_is_not_to_be_stored(api: Api) -> None:
    answer = api.ask("/v1/completions", {"prompt": "Once", "max_tokens": 3})
    (id,) = answer.headers["x-logitbench-trial"].split(",")
    assert answer.headers["link"] == f'<{PAGES}?trial={id}>; rel="describedby"'
    assert id in answer.json["id"]
    history = api.bench.history
    assert history is not None
    until(lambda: history.trial(id) is not None, "the trial was not stored")
    trial = history.trial(id)
    assert trial is not None
    assert (trial.label, trial.prompt, trial.completion.steps.k) == ("api", "Once", 20)
    assert trial.completion.text == answer.json["choices"][0]["text"]
    hidden = api.ask("/v1/completions", {"prompt": "Once", "max_tokens": 3, "store": False})
    time.sleep(0.5)
    assert history.trial(hidden.headers["x-logitbench-trial"]) is None


def test_the_headers_of_many_answers_are_short(api: Api) -> None:
    """aiohttp refuses a header of more than 8,190 bytes, some proxies one of more than 4 KB."""
    answer = api.ask("/v1/completions", {"prompt": ["a"] * 256, "max_tokens": 1})
    assert len(answer.json["choices"]) == 256
    named = answer.headers["x-logitbench-trial"].split(",")
    assert len(named) == NAMED_TRIALS == len(set(named)) and sum(map(len, answer.headers.values())) < 4_000


def test_an_answer_that_was_stopped_is_not_complete(api: Api) -> None:
    """OpenAI has no word for it; programs read "length" as a text that was cut off."""
    traffic = server_of(api.bench).traffic
    for stream in (False, True):
        asked = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True, "stream": stream}
        with ThreadPoolExecutor() as threads:
            waits = threads.submit(api.ask, "/v1/completions", asked)
            until(lambda: [row.state for row in traffic.rows(1)] == ["running"], "it does not run")
            traffic.stop_running()
            answer = waits.result()
        last = answer.events[-1] if stream else answer.json
        assert traffic.rows(1)[0].state == "stopped"
        assert last["choices"][0]["finish_reason"] == "length"


def test_a_server_counts_its_tokens_itself() -> None:
    """One of its steps may be several of them."""
    timings = Timings(0.0, 0.0, 0.1, 0.1, 0.2, num_prompt=9, num_cached=4, num_generated=8)
    nothing = StepTable(VOCABULARY, 0)
    usage = answers._usage([Completion("ab", nothing, nothing, (), "stop", timings, 1, "j", False)] * 2, 2)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (9, 16, 25)


def test_a_client_that_leaves_stops_its_job(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    engine = api.bench.model.loaded()[0]
    for stream in (False, True):
        connection = api.connect()
        body = f'{{"prompt": "Once", "max_tokens": 400, "n": 4, "ignore_eos": true, "stream": {str(stream).lower()}}}'
        connection.request("POST", "/v1/completions", body, {"authorization": "Bearer a key for tests"})
        until(lambda: engine.num_open == 4, "it did not start")
        connection.close()
        until(lambda: engine.num_open == 0, "it goes on")
    gc.collect()  # a future whose error nobody has seen is reported when it goes
    assert not caplog.records
