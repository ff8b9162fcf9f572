"""Calls whose task is cancelled: what they started ends with them, and what others wait for goes on."""

import asyncio
import json
import threading
from typing import Any

import pytest

from engine.api.openai.calls import Caller, Vectors
from engine.api.openai.embeddings import Embedded, Embedder
from engine.api.openai.generation import QUICK_TRIALS, Generator
from engine.api.openai.traffic import Traffic
from engine.specs import Origin
from tests.engine.api.openai.conftest import Api
from tests.waiting import in_loop, until


@pytest.mark.parametrize("num_before", [0, 1, 5])
def test_none_of_its_answers_goes_on_when_it_is_cancelled_while_they_are_started(
    api: Api, monkeypatch: pytest.MonkeyPatch, num_before: int
) -> None:
    trials, traffic = api.bench.trials, Traffic()
    caller = Caller(Generator(api.bench), Embedder(api.bench), traffic)
    submit, submitted = trials.submit, list[Any]()
    is_reached, goes_on = threading.Event(), threading.Event()

    def slow(*given: Any) -> Any:
        if len(submitted) == num_before:
            is_reached.set()
            assert goes_on.wait(60)
        submitted.append(submit(*given))
        return submitted[-1]

    async def cancelled() -> None:
        body = json.dumps({"prompt": "Once", "n": QUICK_TRIALS + 4, "max_tokens": 450, "ignore_eos": True}).encode()
        begins = asyncio.create_task(caller.begin("/v1/completions", body, "curl", Origin(lane="batch", client="curl")))
        await asyncio.to_thread(is_reached.wait, 60)
        begins.cancel()
        await asyncio.wait({begins})
        assert begins.cancelled()
        goes_on.set()

    monkeypatch.setattr(trials, "submit", slow)
    in_loop(cancelled())  # returns when its threads have ended
    assert len(submitted) == num_before + 1
    until(lambda: all(trial.job.done() for trial in submitted), "an answer goes on")
    assert {trial.job.result().finish_reason for trial in submitted} == {"cancelled"}
    assert traffic.rows(1)[0].state == "stopped"


def test_a_reader_of_events_that_leaves_does_not_stop_the_vectors(api: Api) -> None:
    async def left() -> None:
        embedded: asyncio.Future[Embedded | None] = asyncio.get_running_loop().create_future()
        is_over = threading.Event()
        call = Traffic().add("curl", "/v1/embeddings", "m", b"{}")
        vectors = Vectors(call, embedded, is_over)
        reader, waiter = (asyncio.ensure_future(one) for one in (anext(vectors.chunks()), vectors.result()))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait({reader})
        assert not is_over.is_set() and not waiter.done()
        embedded.set_result(Embedded(b"[]", 3))
        assert await waiter == b"[]" and call.row().state == "done"

    in_loop(left())
