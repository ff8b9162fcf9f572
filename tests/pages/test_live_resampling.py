"""The web socket where a page samples a trial again: what it answers, whom it refuses, and that the newest wins."""

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from engine.errors import WorkerDied
from engine.llama.frozen import Resampler
from engine.workbench.resampling import SLIDERS, SampledAgain, sample_again
from engine.workbench.trials import StoredTrial
from pages.parts import live
from pages.parts.live_ask import MAX_JOBS
from tests.pages.harness import ScriptedBench, ScriptedTrial, Server, serving

PATIENCE_S = 60.0
CHANGED = {"temperature": 1.1, "min_p": 0.02}


class GatedBench(ScriptedBench):
    """A workbench that answers no page before its gate is open, and counts what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.is_asked = threading.Event(), threading.Event()
        self.asked: list[dict[str, float]] = []
        self.fault: Exception | None = None

    def resample(self, trial_id: str, changed: Mapping[str, float], shown: int | None = None) -> SampledAgain:
        """As live.Trials."""
        self.asked.append(dict(changed))
        self.is_asked.set()
        assert self.gate.wait(PATIENCE_S)
        if self.fault is not None:
            raise self.fault
        return super().resample(trial_id, changed, shown)


@pytest.fixture(scope="module")
def bench() -> GatedBench:
    return GatedBench()


@pytest.fixture(scope="module")
def server(bench: GatedBench) -> Iterator[Server]:
    with serving(bench) as running:
        yield running


@pytest.fixture
def trial(bench: GatedBench) -> StoredTrial:
    """The trial that ships, recorded with the real model."""
    bench.asked.clear()
    bench.is_asked.clear()
    bench.gate.set()
    bench.fault = None
    return bench.record()


@pytest.fixture
def socket(server: Server, trial: StoredTrial) -> Iterator[ClientConnection]:
    address = f"ws://{server.host}{live.SOCKET_PATH}"
    with connect(address, origin=Origin(f"http://{server.host}"), max_size=None) as made:
        yield made


def ask(socket: ClientConnection, changed: dict[str, Any], shown: int | None = None, job: str = "recorded") -> None:
    socket.send(json.dumps({"jobs": {}, "resample": {"job": job, "changed": changed, "shown": shown}}))


def receive(socket: ClientConnection) -> dict[str, Any]:
    """The next answer, without the trial's own messages."""
    while True:
        message: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))
        if "resampled" in message:
            return message


def test_the_answer_is_what_the_chain_draws(socket: ClientConnection, trial: StoredTrial) -> None:
    resampler = Resampler()
    expected = sample_again(resampler, trial, CHANGED, 3).result
    resampler.close()
    ask(socket, CHANGED, 3)
    message = receive(socket)
    assert message["job"] == "recorded"
    answer = message["resampled"]
    assert (answer["changed"], answer["shown"]) == (CHANGED, 3)
    differing = [[i, new] for i, (new, old) in enumerate(zip(expected.ids, trial.steps.ids, strict=True)) if new != old]
    assert answer["other"] == differing and differing
    assert (answer["open"], answer["idle"], answer["num_candidates"]) == ([], [], 256)
    assert answer["own"] == {name: getattr(trial.draft.sampling, name) for name in SLIDERS}
    p_final = memoryview(expected.p_final).cast("f").tolist()
    step = answer["step"]
    assert (step["index"], step["id"], step["kept"]) == (3, expected.ids[3], expected.num_kept)
    place = trial.steps.top_ids[3].tolist().index(step["id"])
    assert step["p"] == pytest.approx(p_final[place], abs=1e-6)
    assert step["logprob"] == pytest.approx(float(trial.steps.top_logprobs[3, place]), abs=1e-5)
    assert step["top_p"] == pytest.approx(p_final[: len(step["top_p"])], abs=1e-6)
    assert not any(p_final[len(step["top_p"]) : 50])


def test_the_text_of_every_token_is_sent_with_the_answer(socket: ClientConnection, trial: StoredTrial) -> None:
    ask(socket, {"temperature": 1.6})
    answer = receive(socket)["resampled"]
    assert answer["step"] is None
    texts = {token: text for token, text, _hex, _kind in answer["words"]}
    assert {new: texts[new] for _index, new in answer["other"]} == {
        new: trial.steps.vocabulary.text(new) for _index, new in answer["other"]
    }


def test_steps_that_the_candidates_do_not_decide_are_open(socket: ClientConnection, trial: StoredTrial) -> None:
    ask(socket, {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1.5}, 0)
    answer = receive(socket)["resampled"]
    assert answer["open"] == list(range(len(trial.steps)))
    assert answer["other"] == []


@pytest.mark.parametrize(
    ("job", "changed", "shown", "error"),
    [
        ("nobody", {}, None, "no such trial"),
        ("recorded", {"temperature": -1}, None, "temperature = -1.0: must be a number from 0 to 100"),
        ("recorded", {"temperature": 1e308}, None, "temperature = 1e+308"),
        ("recorded", {"top_k": 2.5}, None, "top_k = 2.5"),
        ("recorded", {"mirostat": 1}, None, "mirostat: cannot be changed"),
        ("recorded", {"__class__": 1}, None, "__class__: cannot be changed"),
        ("recorded", {}, 128, "no such token"),
    ],
)
def test_what_cannot_be_answered_is_reported(
    socket: ClientConnection, job: str, changed: dict[str, Any], shown: int | None, error: str
) -> None:
    ask(socket, changed, shown, job)
    message = receive(socket)
    assert message["job"] == job and error in message["resampled"]["error"]
    ask(socket, {})
    assert receive(socket)["resampled"]["other"] == []


@pytest.mark.parametrize(
    "change",
    [
        '{"job": "recorded"}',
        '{"job": "recorded", "changed": {"temperature": NaN}}',
        '{"job": "recorded", "changed": {"temperature": Infinity}}',
        '{"job": "recorded", "changed": {"temperature": 1e999}}',
        '{"job": "recorded", "changed": {"temperature": "1"}}',
        '{"job": "recorded", "changed": {"temperature": null}}',
        '{"job": "recorded", "changed": {}, "shown": -1}',
        '{"job": "recorded", "changed": {}, "shown": 1.5}',
        '{"job": "recorded", "changed": [], "shown": 1}',
        f'{{"job": "recorded", "changed": {{"{"x" * 65}": 1}}}}',
        json.dumps({"job": "recorded", "changed": {str(number): 1 for number in range(8)}}),
    ],
)
def test_an_unreadable_request_closes_the_socket(socket: ClientConnection, change: str) -> None:
    socket.send(f'{{"jobs": {{}}, "resample": {change}}}')
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(PATIENCE_S)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == live.POLICY_VIOLATION


def test_of_a_burst_only_the_first_and_the_newest_are_answered(bench: GatedBench, socket: ClientConnection) -> None:
    bench.gate.clear()
    temperatures = [round(0.5 + number / 100, 2) for number in range(200)]
    ask(socket, {"temperature": temperatures[0]})
    assert bench.is_asked.wait(PATIENCE_S)
    for value in temperatures[1:]:
        ask(socket, {"temperature": value})
    # what follows on the same socket is read after the burst: its answer comes only when all of that has been read
    socket.send(json.dumps({"jobs": {"recorded": 0}}))
    while "end" not in json.loads(socket.recv(PATIENCE_S)):
        pass
    bench.gate.set()
    answered = [receive(socket)["resampled"]["changed"]["temperature"] for _ in range(2)]
    assert answered == [temperatures[0], temperatures[-1]]
    assert bench.asked == [{"temperature": value} for value in answered]


def test_strips_that_show_other_trials_are_answered_too(bench: GatedBench, socket: ClientConnection) -> None:
    for name in ("a", "b"):
        bench.trials[name] = trial = ScriptedTrial()
        trial.go_on(12)
        trial.finish()
    bench.gate.clear()
    ask(socket, {"temperature": 1.1})
    assert bench.is_asked.wait(PATIENCE_S)
    for value in (0.5, 0.6):
        for name in ("a", "b"):
            ask(socket, {"temperature": value}, job=name)
    bench.gate.set()
    messages = [receive(socket) for _ in range(3)]
    assert [(one["job"], one["resampled"]["changed"]["temperature"]) for one in messages] == [
        ("recorded", 1.1), ("a", 0.6), ("b", 0.6),
    ]  # fmt: skip


def test_more_trials_than_a_page_may_follow_do_not_pile_up(bench: GatedBench, socket: ClientConnection) -> None:
    bench.gate.clear()
    ask(socket, {})
    assert bench.is_asked.wait(PATIENCE_S)
    for number in range(3 * MAX_JOBS):
        ask(socket, {}, job=f"trial {number}")
    ask(socket, {"temperature": 1.1})
    socket.send(json.dumps({"jobs": {"recorded": 0}}))
    while "end" not in json.loads(socket.recv(PATIENCE_S)):
        pass
    bench.gate.set()
    answered = [receive(socket)["job"] for _ in range(1 + MAX_JOBS)]
    assert answered == ["recorded", *(f"trial {number}" for number in range(MAX_JOBS))]
    ask(socket, {})
    assert receive(socket)["job"] == "recorded"


@pytest.mark.parametrize(
    ("fault", "message"),
    [(WorkerDied("the process was killed"), "The process was killed"), (KeyError("a fault of ours"), "internal error")],
)
def test_a_failure_is_reported_and_the_next_request_is_answered(
    bench: GatedBench, socket: ClientConnection, fault: Exception, message: str
) -> None:
    bench.fault = fault
    ask(socket, CHANGED)
    assert message in receive(socket)["resampled"]["error"]
    bench.fault = None
    ask(socket, CHANGED)
    assert receive(socket)["resampled"]["other"]
