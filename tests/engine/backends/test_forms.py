"""Forms of answers that servers in order send, each read as its server means it."""

from typing import Any

import pytest

from engine.calls import connect
from tests.engine.backends.fake_server import COMPLETIONS, Request, chunk, columns, engine_with, fake_server


def legacy(texts: list[str], logprob: float = -0.5) -> dict[str, Any]:
    """The legacy columns of tokens that a server calls by these texts."""
    return {
        "tokens": texts,
        "token_logprobs": [logprob] * len(texts),
        "top_logprobs": [{text: logprob} for text in texts],
        "text_offset": [0] * len(texts),
    }


def test_chunks_that_name_the_ids_of_the_prompt_without_any_are_read() -> None:
    def as_vllm(request: Request) -> None:
        event = chunk(" a", finish="length", logprobs=columns(" a", -0.5, b=-1.5))
        event["choices"][0] |= {"prompt_token_ids": None, "token_ids": None}
        request.events(event)

    with fake_server({COMPLETIONS: as_vllm}) as (address, _), connect(address) as engine:
        done = engine.submit("Once", top_k=2).result(60)
    assert (done.text, done.steps[0].logprob, len(done.prompt_steps)) == (" a", -0.5, 0)
    assert engine.found.form.path == COMPLETIONS


@pytest.mark.parametrize(
    "answered",
    [
        {"error": {"message": "not supported here"}},
        {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]},
    ],
)
def test_the_next_form_is_tried_where_one_gives_no_token(answered: dict[str, Any]) -> None:
    def chat(request: Request) -> None:
        request.events({"choices": [{"index": 0, "delta": {"content": " a"}, "finish_reason": "length"}]})

    answers = {COMPLETIONS: lambda request: request.events(answered), "/v1/chat/completions": chat}
    with fake_server(answers) as (address, _), connect(address) as engine:
        assert engine.found.form.path == "/v1/chat/completions"


@pytest.mark.parametrize("names", [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")])
def test_what_a_model_thinks_before_its_answer_is_part_of_the_text(names: tuple[str, ...]) -> None:
    def thinking(request: Request) -> None:
        deltas: list[dict[str, str | None]] = [dict.fromkeys(names, "Hm"), {"content": " a"}]
        request.events(
            *[{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas],
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        )

    with fake_server({"/v1/chat/completions": thinking}) as (address, _), connect(address) as engine:
        assert engine.submit("Once").result(60).text == "Hm a"


@pytest.mark.parametrize(
    ("chunks", "pieces"),
    [
        ([(["<|im_end|>"], "")], [b""]),
        ([([" a", "<|im_end|>"], " a")], [b" a", b""]),
        ([(["\ufffd"], ""), (["\ufffd"], "É")], [b"", "É".encode()]),
        ([([" a", "\ufffd", "\ufffd", " b"], " aÉ b")], [b" a", b"", b"", "É b".encode()]),
        ([(["\ufffd"], ""), (["\ufffd"], "É"), (["<|im_end|>"], "")], [b"", "É".encode(), b""]),
    ],
)
def test_the_text_is_what_the_server_sends_not_what_it_calls_its_tokens(
    chunks: list[tuple[list[str], str]], pieces: list[bytes]
) -> None:
    events = [chunk(text, logprobs=legacy(texts)) for texts, text in chunks]
    events[-1]["choices"][0]["finish_reason"] = "stop"
    with engine_with(lambda request: request.events(*events)) as (engine, _):
        done = engine.submit("Once", top_k=1).result(60)
    vocabulary = done.steps.vocabulary
    steps = list(done.steps)
    if pieces[-1]:  # the server sends no token for the end
        assert vocabulary.is_end(steps.pop().id)
    else:
        assert [vocabulary.is_end(step.id) for step in steps] == [False] * (len(steps) - 1) + [True]
    assert [step.bytes for step in steps] == pieces
    assert done.text.encode() == b"".join(pieces)
    assert all((step.rank, step.top[0].id) == (1, step.id) for step in steps)


@pytest.mark.parametrize(("num_counted", "is_full"), [(8, False), (5, True), (None, True)])
def test_the_context_is_full_where_the_server_has_generated_fewer_tokens_than_asked_for(
    num_counted: int | None, is_full: bool
) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": num_counted}}
    with engine_with(lambda request: request.events(chunk(" a b"), chunk(" c", finish="length"), usage)) as (engine, _):
        done = engine.submit("Once", max_tokens=8).result(60)
    assert (len(done.steps), done.is_context_full) == (2, is_full)
    assert done.timings.num_generated == (num_counted or 2)
