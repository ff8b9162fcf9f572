"""Outgoing messages over a real socket pair: order, a reader that comes late, a closed end, a defect."""

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from engine.process.channel import Channel
from engine.process.outgoing import Outgoing

WITHIN_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a channel."""
    first, second = socket.socketpair()
    with first, second:
        yield Channel(first, list[int | bytes]), Channel(second, list[int | bytes])


def in_threads(outgoing: Outgoing, sizes: list[list[int]]) -> None:
    """Send messages of these sizes, those of each thread numbered; returns when every thread has sent its own."""

    def send(thread: int) -> None:
        for number, size in enumerate(sizes[thread]):
            outgoing.send([thread, number, bytes(size)])

    threads = [threading.Thread(target=send, args=(index,), daemon=True) for index in range(len(sizes))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(WITHIN_S)
        assert not one.is_alive()  # although nobody reads


@pytest.mark.parametrize("seed", range(4))
def test_messages_of_all_sizes_arrive_whole_and_in_order_and_no_sender_waits(
    pair: tuple[Channel, Channel], seed: int
) -> None:
    near, far = pair
    rng = random.Random(seed)
    outgoing = Outgoing(near, pytest.fail)
    for _ in range(3):  # once what was late is sent, the next messages go directly again
        sizes = [[int(2 ** rng.uniform(0, 20)) for _ in range(rng.randint(1, 20))] for _ in range(3)]
        in_threads(outgoing, sizes)
        num = sum(map(len, sizes))
        found = [far.receive_one() for _ in range(num)]
        for thread, expected in enumerate(sizes):
            own = [(number, len(block)) for one, number, block in found if one == thread]
            assert own == list(enumerate(expected))
    outgoing.close()


def test_a_closed_end_and_a_defect_raise_nothing_in_the_thread_that_sends(
    pair: tuple[Channel, Channel], caplog: pytest.LogCaptureFixture
) -> None:
    near, far = pair
    defects: list[str] = []
    outgoing = Outgoing(near, lambda: defects.append("defect"))
    outgoing.send([object()])
    assert defects == ["defect"]
    assert "could not be written" in caplog.text
    far.socket.close()
    for _ in range(3):
        outgoing.send([bytes(1 << 20)])
    outgoing.close()
    outgoing.close()


def test_a_socket_with_a_timeout_is_refused_as_its_sender_would_wait(pair: tuple[Channel, Channel]) -> None:
    near, far = pair
    outgoing = Outgoing(near, pytest.fail)
    near.set_deadline(time.monotonic() + WITHIN_S)
    with pytest.raises(RuntimeError, match="a socket with a timeout"):
        outgoing.send([1])
    near.set_deadline(None)
    outgoing.send([2])
    assert far.receive_one() == [2]
    outgoing.close()
