"""Nodes that answer with what none of ours would: an error that names the node, and no progress that is none."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster import file_sending, remote_node
from engine.cluster import messages as c
from engine.cluster.file_sending import send_model
from engine.cluster.listener import Listener
from engine.cluster.model_files import Have, ModelOffer, State, model_offer
from engine.cluster.remote_node import RemoteNode
from engine.errors import ConfigError, EngineError, WorkerDied
from engine.models import read_model
from tests.engine.cluster.nodes import lost
from tests.waiting import until

MOST_CALLS = 40
numbers = st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-2, 3)
answers = st.builds(
    Have, st.sampled_from(get_args(State)), share=st.floats(), path=st.text(), index=numbers, offset=numbers
)
HELLO = c.Hello(c.PROTOCOL, {}, 1, "a processor", 2, 1 << 30, 1 << 29, {})
TICK_S = 1.0
events = st.lists(st.just("asks") | st.just("waits") | st.integers(0, 5), max_size=20)
"""What happens to a node: it is asked, time passes, it answers a question that was asked or none."""
NESTED = b"\x93\xa6Answer\x01" + b"\x91" * 100_000
"""An Answer whose value is deeper than a decoder goes."""


class Rogue:
    """A node that gives these answers in turn, again and again, until it is lost."""

    name = "b"

    def __init__(self, answers: list[Have]) -> None:
        self._answers, self._num_calls = answers, 0

    def call(self, method: str, *_arguments: Any) -> "Future[Have]":
        future = Future[Have]()
        if self._num_calls >= MOST_CALLS:
            future.set_exception(lost())
        else:
            future.set_result(self._answers[self._num_calls % len(self._answers)])
        self._num_calls += 1
        return future


@pytest.fixture(scope="module")
def offer(story_model: Path) -> ModelOffer:
    return model_offer(read_model(story_model))


@settings(deadline=None)
@given(answered=st.lists(answers, min_size=1, max_size=4))
def test_a_transfer_ends_whatever_a_node_answers(offer: ModelOffer, answered: list[Have]) -> None:
    shares: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_sending, "POLL_S", 0.0)
        try:
            assert send_model(offer, Rogue(answered), lambda share, _doing: shares.append(share)) in [
                one.path for one in answered
            ]
        except EngineError as error:
            assert "ode b" in str(error)
    assert all(0 <= share <= 1 for share in shares)


def test_a_place_outside_of_the_model_is_refused(offer: ModelOffer) -> None:
    size = offer.files[0].size
    for index, offset in ((1, 0), (-1, 0), (0, -1), (0, size + 1)):
        with pytest.raises(EngineError, match=f"Node b asked for byte {offset} of file {index}, which"):
            send_model(offer, Rogue([Have("wanted", index=index, offset=offset)]), lambda _share, _doing: None)


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "little") + content


@contextmanager
def greeted(hello: bytes) -> Iterator[tuple[RemoteNode, socket.socket]]:
    """A node whose agent has sent this message, and the agent's end of the connection."""
    near, far = socket.socketpair()
    with far, closing(Listener("127.0.0.1")) as listener:
        far.sendall(framed(hello))
        yield RemoteNode(c.Found("id", "b", "127.0.0.1", 4), "b", near, listener, lambda _node: None), far


@pytest.mark.parametrize("content", [NESTED, b"\xc1", b"\x91\xa5Hello"], ids=["nested", "no value", "no field"])
def test_an_agent_that_sends_what_is_no_message_ends_its_node(content: bytes) -> None:
    with greeted(msgspec.msgpack.encode(HELLO)) as (node, far):
        far.sendall(framed(content))
        until(lambda: node.is_lost, "it is still used")
        assert node.loss.startswith("its agent sent what is no message")


@settings(deadline=None)
@given(happened=events)
def test_every_question_ends_by_its_answer_or_its_deadline_and_is_kept_no_longer(happened: list[str | int]) -> None:
    asked: list[Future[Have]] = []
    with pytest.MonkeyPatch.context() as patch, greeted(msgspec.msgpack.encode(HELLO)) as (node, _far):
        patch.setattr(remote_node, "ANSWER_S", 3 * TICK_S)
        answered = set[int]()
        for event in (*happened, *["waits"] * (3 * (len(happened) + 1))):
            match event:
                case "asks":
                    asked.append(node.call("offer"))
                case "waits":
                    node.silent_s = 0.0  # its agent reports
                    node.tick(TICK_S)
                case int() as number:
                    is_awaited = number < len(asked) and not asked[number].done()
                    node._handle(c.Answer(number + 1, None))
                    answered |= {number} if is_awaited else set()
            assert len(node._asked) == sum(not future.done() for future in asked)
        assert not node._asked and not node.is_lost
        for number, future in enumerate(asked):
            error = future.exception(0)
            assert (error is None) == (number in answered)
            assert error is None or (isinstance(error, WorkerDied) and "node b has not answered" in str(error))


def test_each_of_several_questions_has_the_time_of_those_before_it() -> None:
    with greeted(msgspec.msgpack.encode(HELLO)) as (node, _far):
        first, second = node.call("block"), node.call("block")
        for is_second_over in (False, True):
            node.silent_s = -remote_node.ANSWER_S  # its agent reports
            node.tick(remote_node.ANSWER_S)
            assert first.done() and second.done() == is_second_over and not node.is_lost
        with pytest.raises(WorkerDied, match="node b has not answered for 120 s"):
            second.result(0)


@pytest.mark.parametrize("cores", [None, 0, -1])
def test_an_agent_that_greets_with_what_is_no_message_is_refused(cores: int | None) -> None:
    hello = NESTED if cores is None else msgspec.msgpack.encode(msgspec.structs.replace(HELLO, cores=cores))
    with pytest.raises(ConfigError, match="node b has another version of Logitbench"), greeted(hello):
        pass
