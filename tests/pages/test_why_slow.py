"""Why a call took its time: each part that can be the largest, and each reason why its prompt was computed."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.server import ApiServer
from engine.api.openai.traffic import CallRow, Figures
from engine.history import EngineIdentity
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.trial_records import record_of
from engine.workbench.trials import StoredTrial, Trial
from pages.parts.traffic import why_slow
from pages.parts.traffic.why_slow import Break
from tests.pages.test_traffic import ask, page, said_as_captions

SERVER = EngineIdentity("llama-server", "http://localhost:8080/v1", "llama-server")
ROW = CallRow(
    1, datetime.now(UTC), "curl/8", "/v1/completions", "m", "done", Figures(num_prompt=1), 2.0, ("1",), "", b"{}", 2
)
HERE, ELSEWHERE = None, SERVER


def trial_with(
    bench: Workbench,
    request: Request | None = None,
    engine: EngineIdentity | None = HERE,
    messages: tuple[dict[str, str], ...] = (),
    sampling: Sampling | None = None,
    **timings: Any,
) -> StoredTrial:
    """The trial that ships, as if it had been asked and had taken its time so."""
    recorded = bench.trials.recorded()
    assert recorded is not None
    base = dict.fromkeys(("queue_s", "prefill_s", "decode_s"), 0.0) | {"num_cached": 0, **timings}
    completion = replace(recorded.completion, timings=recorded.timings._replace(**base))
    return StoredTrial(
        replace(
            recorded.record,
            completion=completion,
            request=request or Request(),
            engine=engine,
            messages=messages,
            sampling=sampling or Sampling(),
        )
    )


PROMPT = {"num_prompt": 80, "prefill_s": 1.8}
LARGEST: dict[str, tuple[dict[str, Any], str]] = {
    "preparation": (
        {"queue_s": 0.2},
        "preparing the call: reading the request and waiting for a thread to do so.",
    ),
    "preparation of a chat": (
        {"queue_s": 0.2, "messages": ({"role": "user", "content": "Hello"},)},
        "preparing the call: reading the request, rendering its messages and waiting for a thread to do so.",
    ),
    "preparation with a schema": (
        {"queue_s": 0.2, "sampling": Sampling(json_schema="{}")},
        "preparing the call: reading the request, converting its schema and waiting for a thread to do so.",
    ),
    "preparation with a grammar": (
        {"queue_s": 0.2, "sampling": Sampling(grammar='root ::= "a"')},
        "preparing the call: reading the request, checking its grammar and waiting for a thread to do so.",
    ),
    "queue": (
        {"queue_s": 1.8},
        "waiting behind other work. More sequences at once, or another instance, would help.",
    ),
    "queue elsewhere": ({"queue_s": 1.8, "engine": ELSEWHERE}, "waiting behind other work."),
    "prefill": (
        {"num_cached": 39, **PROMPT},
        "computing the prompt. A beginning of 32 tokens or more that an earlier prompt had too is read from the cache, "
        "so put what changes at the end.",
    ),
    "prefill of a rest": (
        {"num_cached": 40, **PROMPT},
        "computing the prompt, though much of it came from the cache. A shorter prompt would help.",
    ),
    "prefill of little": ({**PROMPT, "num_prompt": 32}, "computing the prompt."),
    "prefill as asked": ({"request": Request(reuse_prefix=False), **PROMPT}, "computing the prompt."),
    "prefill elsewhere": ({"engine": ELSEWHERE, **PROMPT}, "waiting for the server's first token."),
    "decode": (
        {"decode_s": 1.8},
        "generating tokens. A lower max_tokens, a stop string or a smaller model would help.",
    ),
}


@pytest.mark.parametrize("kind", LARGEST)
def test_the_largest_part_of_the_time_is_said_in_a_sentence(bench: Workbench, kind: str) -> None:
    asked, end = LARGEST[kind]
    trial = trial_with(bench, **asked)
    assert why_slow.sentence(why_slow.parts(ROW, trial), trial) == f"90 % of the time went into {end}"


@given(
    st.floats(0, 5), st.floats(0, 5), st.floats(0, 5), st.floats(0, 5), st.integers(0, 3), st.integers(1, 2),
    st.sampled_from([HERE, ELSEWHERE]), st.booleans(),
)  # fmt: skip
def test_a_part_is_there_where_it_took_time_and_the_largest_is_named(
    bench: Workbench,
    before: float,
    queue: float,
    prefill: float,
    decode: float,
    num_generated: int,
    num_answers: int,
    engine: EngineIdentity | None,
    reuses: bool,
) -> None:
    timings: dict[str, Any] = {
        "queue_s": queue,
        "prefill_s": prefill,
        "decode_s": decode,
        "num_generated": num_generated,
    }
    trial = trial_with(bench, Request(reuse_prefix=reuses), engine, **timings)
    row = ROW._replace(elapsed_s=before + queue + prefill + decode, trials=("1",) * num_answers)
    found = why_slow.parts(row, trial)
    assert [part.name for part in found] == [name for name in why_slow.SHADES if name in {one.name for one in found}]
    assert ("preparation" in {part.name for part in found}) <= (num_answers == 1)
    assert all(part.seconds >= why_slow.LEAST_S for part in found)
    for part in found:
        assert not re.search(r"\b1 \w*tokens|\b[02-9] (?:prompt )?token\b|\d generated", part.detail)
        assert why_slow.SHADES[part.name] in why_slow.bar(found)
    if found:
        assert_prose(why_slow.sentence(found, trial))


NOTHING, SOME = "Nothing of the prompt came from the cache", "The first 20 tokens of the prompt came from the cache"
COULD_BE = Break(20, "a", "b", other=3, num_alike=40, other_after="c")
BREAKS: dict[str, tuple[Break, str]] = {
    "as asked": (Break(is_refused=True), f"{NOTHING}: the request had cache_prompt set to false."),
    "no call alike": (Break(20, "a", "b"), f"{SOME}. The rest was computed:"),
    "one token": (Break(1, "a", "b"), "The first token of the prompt came from the cache. The rest was computed:"),
    "there they differ": (
        COULD_BE._replace(num_alike=20),
        f"{SOME}. There it departs from the prompt of call 3 of this client:",
    ),
    "one more is alike": (
        COULD_BE._replace(num_alike=21),
        f"{SOME}; call 3 of this client begins with the same 21 tokens. Then they differ:",
    ),
    "only one is alike": (
        COULD_BE._replace(num_cached=0, num_alike=1),
        f"{NOTHING}; call 3 of this client begins with the same token. Then they differ:",
    ),
    "gone": (
        COULD_BE._replace(num_cached=0),
        f"{NOTHING}; call 3 of this client begins with the same 40 tokens, but the cache did not hold them when this "
        "call began. Then they differ:",
    ),
    "partly gone": (
        COULD_BE,
        f"{SOME}; call 3 of this client begins with the same 40 tokens, but the cache did not hold all of them when "
        "this call began. Then they differ:",
    ),
    "scored": (
        COULD_BE._replace(is_scored=True),
        f"{SOME}; call 3 of this client begins with the same 40 tokens, but a prompt that is scored is read from the "
        "cache only as far as it was scored before. Then they differ:",
    ),
    "short": (
        COULD_BE._replace(num_cached=0, num_alike=9, is_short=True),
        f"{NOTHING}; call 3 of this client begins with the same 9 tokens, but fewer than 32 tokens are computed again "
        "rather than read from the cache. Then they differ:",
    ),
    "the same, short": (
        COULD_BE._replace(num_cached=0, num_alike=9, is_short=True, after="", other_after=""),
        f"{NOTHING}; call 3 of this client has the same prompt, but fewer than 32 tokens are computed again rather "
        "than read from the cache.",
    ),
    "the same, gone": (
        COULD_BE._replace(num_cached=0, after="", other_after="", other=1_234),
        f"{NOTHING}; call 1,234 of this client has the same prompt, but the cache did not hold it when this call "
        "began.",
    ),
    "the same, partly gone": (
        COULD_BE._replace(after="", other_after=""),
        f"{SOME}; call 3 of this client has the same prompt, but the cache did not hold all of it when this call "
        "began.",
    ),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_where_the_cached_prefix_ended_is_said_in_a_sentence(kind: str) -> None:
    broken, sentence = BREAKS[kind]
    assert why_slow.break_sentence(broken) == sentence
    assert broken.has_place == sentence.endswith(":")


@given(
    st.integers(0, 60), st.integers(0, 60), st.sampled_from(["", "b"]), st.sampled_from(["", "c"]),
    st.integers(0, 2_000), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_texts_stand_below_a_sentence_that_ends_in_a_colon(
    cached: int,
    more: int,
    after: str,
    other_after: str,
    other: int,
    is_refused: bool,
    is_scored: bool,
    is_short: bool,
) -> None:
    cached = max(cached, 0 if other else 1)
    alike = cached + more + (not cached)
    given = Break(cached, "a", after, other, alike, other_after, is_refused, is_scored, is_short)
    if other == 0:
        given = given._replace(num_alike=0, other_after="", after="b")
    elif alike < cached + 2:  # a prompt that was cached to its end has no such place
        given = given._replace(after="b")
    sentence = why_slow.break_sentence(given)
    assert_prose(sentence)
    assert given.has_place == sentence.endswith(":")
    if given.has_place:
        labels, texts = zip(*(line.split("  ", 1) for line in why_slow.in_context(given).split("\n")), strict=True)
        assert all(text.strip() for text in texts)
        assert set(labels) == ({"both", "this call", f"call {other:,}"} if other else {"cached", "computed"})


def assert_prose(text: str) -> None:
    """Whether a text is made of sentences: capitals, ends, no two marks or spaces behind each other."""
    assert re.fullmatch(r"[A-Z0-9].*[^\s,;:.][.:]", text), text
    assert not re.search(r"  |[,;:.] ?[,;:.]|\. [a-z]|\b(\w+) \1\b|\b1 tokens|\b[02-9] token\b", text), text


def test_a_prompt_that_was_computed_as_asked_is_no_surprise(api: ApiServer, bench: Workbench) -> None:
    api.start(0)
    for _ in range(2):
        ask(api, b'{"prompt": "Once upon a time there was a fox", "max_tokens": 2, "cache_prompt": false}')
    said = said_as_captions(page(call="2"))
    assert "the request had cache_prompt set to false" in said
    assert "Then they differ" not in said and "did not hold" not in said


TALE = "Once upon a time there was a fox who lived in the wood with his wife and many children, and they played. " * 2


@pytest.mark.parametrize("prompt, is_short", [("Once upon a time there was a fox", True), (TALE, False)])
def test_the_same_prompt_again_differs_nowhere(api: ApiServer, bench: Workbench, prompt: str, is_short: bool) -> None:
    """Nothing is said where the cache held it; no place is shown where it did not."""
    api.start(0)
    for _ in range(2):
        ask(api, json.dumps({"prompt": prompt, "max_tokens": 2}).encode())
    row = api.traffic.rows()[0]
    trial = bench.trials.trial(row.trials[0])
    assert (why_slow.prefix_break(bench, api.traffic, row, trial) is None) != is_short
    broken = why_slow.prefix_break(bench, api.traffic, row, uncached(trial))
    assert broken is not None and broken.is_same and not broken.has_place and broken.is_short == is_short
    assert why_slow.break_sentence(broken).startswith(f"{NOTHING}; call 1 of this client has the same prompt, but")


@pytest.mark.parametrize("rest, shown", [("", "(ends here)"), (" ", "␣"), (" owl", " owl")])
def test_each_prompt_goes_on_where_they_part(api: ApiServer, bench: Workbench, rest: str, shown: str) -> None:
    api.start(0)
    for prompt in ("Once upon a time there was a fox who lived in a wood", f"Once upon a time there was a{rest}"):
        ask(api, json.dumps({"prompt": prompt, "max_tokens": 2}).encode())
    row = api.traffic.rows()[0]
    broken = why_slow.prefix_break(bench, api.traffic, row, uncached(bench.trials.trial(row.trials[0])))
    assert broken is not None and broken.has_place
    both, here, there = why_slow.in_context(broken).split("\n")
    assert both.startswith("both") and here == f"this call  {shown}" and "fox" in there


def test_a_call_that_another_model_or_server_answered_is_not_compared(api: ApiServer, bench: Workbench) -> None:
    api.start(0)
    for name in (b"fox", b"king"):
        ask(api, b'{"prompt": "Once upon a time there was a %b", "max_tokens": 2}' % name)
    row = api.traffic.rows()[0]
    trial = uncached(bench.trials.trial(row.trials[0]))
    broken = why_slow.prefix_break(bench, api.traffic, row, trial)
    assert broken is not None and broken.other == 1
    trial.model = replace(trial.model, hash="another")
    assert why_slow.prefix_break(bench, api.traffic, row, trial) is None
    trial.model = bench.trials.trial(trial.id).model
    trial.engine = SERVER
    assert why_slow.prefix_break(bench, api.traffic, row, trial) is None


def uncached(trial: Trial) -> StoredTrial:
    """The same trial as if the cache had held nothing of its prompt."""
    completion = trial.completion
    assert completion is not None
    timings = trial.timings._replace(num_cached=0)
    return StoredTrial(replace(record_of(trial), completion=replace(completion, timings=timings)))
