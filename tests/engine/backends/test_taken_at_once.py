"""Answers whose events are taken as they come: the same as those that a reader waits for, however they are cut."""

import json
import random
import select
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from engine.backends import answer_stream, wire
from engine.jobs import Job
from tests.engine.backends.fake_server import Request, chunk, columns, engine_with
from tests.engine.backends.test_link import begin_chunks
from tests.waiting import until

BAD = ("{", "[1]", '{"choices": [{"text": " a", "logprobs": {"tokens": [7]}}]}', '{"error": {"message": "too hot"}}')
WORDS = (" a", " b", " É", "c")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether events were taken as they came, for each read of a stream, growing."""
    seen, takes = list[bool](), answer_stream._Reader.takes

    def noted(reader: Any, together: Sequence[bytes]) -> bool:
        found = False
        try:
            found = takes(reader, together)
        finally:
            seen.append(found)
        return found

    monkeypatch.setattr(answer_stream._Reader, "takes", noted)
    return seen


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what connections have received, growing."""
    sizes, receive = list[int](), wire._Connection.data_received

    def seen(connection: wire._Connection, data: bytes) -> None:
        receive(connection, data)
        sizes.append(len(data))

    monkeypatch.setattr(wire._Connection, "data_received", seen)
    return sizes


def drawn(draw: random.Random) -> list[str]:
    """Events of an answer of one or two tokens each, with one that is bad among them, or none."""
    events = []
    for _ in range(12):
        texts = [draw.choice(WORDS) for _ in range(draw.choice([0, 1, 1, 1, 2]))]
        tokens = [columns(text, -0.5, **{draw.choice(WORDS): -0.7, " d": -2.0}) for text in texts]
        logprobs = {name: [value for one in tokens for value in one[name]] for name in columns("", 0.0)}
        events.append(json.dumps(chunk("".join(texts), logprobs=logprobs)))
    if draw.random() < 0.5:
        events.insert(draw.randrange(12), draw.choice(BAD))
    else:
        events.append(json.dumps(chunk("", finish=draw.choice(["stop", "length"]))))
    return events


def found_in(job: Job) -> object:
    """What an answer has brought, but for its times: how it ended, and its steps."""
    error = job.exception(60)
    ended = job.result().finish_reason if error is None else (type(error), str(error))
    steps = [
        (one.id, one.bytes, one.logprob, one.rank, [(top.id, top.bytes, top.logprob) for top in one.top])
        for one in job.steps
    ]
    return ended, steps


@pytest.mark.parametrize("seed", range(12))
def test_an_answer_is_the_same_however_it_is_cut(seed: int, arrived: list[int], taken: list[bool]) -> None:
    draw = random.Random(seed)
    events = drawn(draw)
    content = b"".join(b": a comment\n\n" * draw.randint(0, 1) + b"data: %b\n\n" % text.encode() for text in events)
    content += b"data: [DONE]\n\n"
    chunks = cut(content, draw, draw.choice([2, 8, 20]))
    parts = cut(b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n", draw, 12)

    with engine_with(lambda request: request.events(*events)) as (engine, _):  # without chunks
        whole = found_in(engine.submit("Once", max_tokens=50, top_k=3))
        assert not taken
    with engine_with(lambda request: write_apart(request, parts, arrived)) as (engine, _):
        assert found_in(engine.submit("Once", max_tokens=50, top_k=3)) == whole


def in_chunks(events: Sequence[str]) -> list[bytes]:
    """Each event as a chunk."""
    return [b"%x\r\n%b\r\n" % (len(one), one) for one in (b"data: %b\n\n" % text.encode() for text in events)]


def write_apart(request: Request, parts: Sequence[bytes], arrived: list[int]) -> None:
    """Answer with the parts of a stream in chunks, each after the one before it is there; end where the client does."""
    begin_chunks(request)
    with suppress(OSError):
        for part in parts:
            num_arrived = len(arrived)
            request.wfile.write(part)
            while len(arrived) == num_arrived:
                ready, _, _ = select.select([request.connection], [], [], 0.001)
                if ready:
                    return


def cut(content: bytes, draw: random.Random, num: int) -> list[bytes]:
    """A content in parts, cut at random places."""
    places = sorted(draw.sample(range(1, len(content)), num - 1))
    return [content[start:end] for start, end in zip([0, *places], [*places, len(content)], strict=True)]


def test_events_are_taken_as_they_come_up_to_a_bad_one(arrived: list[int], taken: list[bool]) -> None:
    parts = in_chunks([json.dumps(chunk(" a"))] * 5 + [BAD[0]])
    with engine_with(lambda request: write_apart(request, parts, arrived)) as (engine, _):
        job = engine.submit("Once")
        assert "is not JSON" in str(job.exception(60)) and job.steps.text == " a" * 5
    assert any(taken) and not taken[-1]


def test_a_server_waits_while_what_it_sent_is_not_delivered(
    taken: list[bool], arrived: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_stream, "MOST_UNDELIVERED", 5)
    may_go, may_send = threading.Event(), threading.Event()
    parts = in_chunks([json.dumps(one) for one in (*[chunk(" a")] * 40, chunk("", finish="length"))])

    def slowly(request: Request) -> None:
        may_send.wait(60)
        write_apart(request, [*parts, b"0\r\n\r\n"], arrived)

    with engine_with(slowly) as (engine, _):
        job = engine.submit("Once", max_tokens=50)
        job.add_listener(lambda: may_go.wait(60) and None)
        may_send.set()
        until(lambda: False in taken)
        may_go.set()
        assert job.result(60).text == " a" * 40
