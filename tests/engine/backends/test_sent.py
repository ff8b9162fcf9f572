"""Candidates of tokens as servers send them: named and put in order alike in every form."""

import json
import math
import random

import pytest

from engine.backends.sent import of_chat, of_completion
from tests.engine.backends.fake_server import Request, chunk, engine_with

LOGPROBS = (None, 0.0005, 0.0, -0.25, -1.5, -1.5, -7.0, -9998.0, -9999.0, -1e9)


@pytest.mark.parametrize("seed", range(40))
def test_candidates_come_best_first_in_every_form(seed: int) -> None:
    draw = random.Random(seed)
    sent_top = [(f" w{number}", draw.choice(LOGPROBS)) for number in range(draw.choice([0, 1, 1, 2, 6]))]
    best = sorted([(text, logprob) for text, logprob in sent_top if logprob is not None], key=lambda one: -one[1])
    if draw.random() < 0.5:
        sent_top = list(best)
    nats = [-math.inf if logprob <= -9999.0 else min(logprob, 0.0) for _, logprob in best]

    entries = [{"token": text, "logprob": logprob} for text, logprob in sent_top]
    content = [{"token": " w0", "logprob": -1.0, "top_logprobs": entries}]
    columns = {"tokens": [" w0"], "token_logprobs": [-1.0], "top_logprobs": [dict(sent_top)]}
    chat = {"choices": [{"delta": {"content": " w0"}, "logprobs": {"content": content}}]}
    sent = of_chat(json.dumps(chat).encode()), of_completion(json.dumps(chunk(" w0", logprobs=columns)).encode())
    for (token,) in (one.tokens for one in sent):
        assert [(one.piece, one.logprob) for one in token.top] == [(text.encode(), logprob) for text, logprob in best]
        for k in (0, 1, 4, 9):
            names, logprobs = token.named(k)
            assert list(names) == [text for text, _ in best[:k]] and logprobs == nats[:k]


def test_candidates_with_the_name_of_the_drawn_token_have_its_number() -> None:
    def entry(name: str, *others: tuple[str, float]) -> dict[str, object]:
        top = [{"token": text, "logprob": logprob} for text, logprob in others]
        return {"content": [{"token": name, "logprob": -0.5, "top_logprobs": top}]}

    def answer(request: Request) -> None:
        request.events(
            chunk("a", logprobs=entry("a", ("x", -0.4), ("a", -0.5))),
            chunk("y", logprobs=entry("x", ("x", -0.5), ("x", -0.6))),  # named x, and adds y
            chunk("b", finish="length", logprobs=entry("b", ("x", -0.4), ("y", -0.45))),
        )

    with engine_with(answer) as (engine, _):
        steps = engine.submit("Once", max_tokens=3, top_k=2).result(60).steps
    assert [[one.bytes for one in step.top] for step in steps] == [[b"x", b"a"], [b"y", b"y"], [b"x", b"y"]]
    assert [step.rank for step in steps] == [2, 1, None] and steps.text == "ayb"
