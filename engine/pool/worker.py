"""Worker: a child program with one model, which computes the jobs that its pool sends.

It sets its CPU affinity before loading, reports when it is ready, answers between decode steps, and exits when the
other end of the socket is closed. It never opens the history database.
"""

import gc
import os
import select
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import psutil

from engine.errors import ConfigError, EngineError
from engine.llama.context import Context, Decoder
from engine.llama.model import Model
from engine.llama.phase import IDLE, LOADING, SENDING, TOKENISING, Stamp
from engine.llama.runner import QueuedRequest, Runner
from engine.llama.sequence import Sequence
from engine.pool import messages as m
from engine.process.channel import Channel, Message
from engine.process.pulse import Pulse
from engine.specs import PoolSpec

_TO_WORKER: Any = m.ToWorker

GATHER_PROMPTS_S = 0.0005
"""After an idle wait, how long to wait for further prompts before the first decode: a burst is computed together."""

GATHER_MOST_S = 0.01
"""How long messages are received before the next decode, so that a flood of calls does not keep a prompt waiting."""

GATHER_STEPS_S = 0.025
"""Steps produced faster than this are sent together: a reader sees no difference, and each message takes CPU time from
the decode, in the worker and in the pool's process. The first token of a job is sent at once."""


class Outbox:
    """The runner's Reporter: gathers the steps of all jobs and sends them as one message.

    is_urgent: they have the first token of a job.
    """

    def __init__(self, channel: Channel, stamp: Stamp) -> None:
        self._channel, self._stamp = channel, stamp
        self._rows: dict[tuple[int, bool], list[bytes]] = {}
        self._without_token = set[int]()
        self.is_urgent = False

    def started(self, job: int, prompt_ids: list[int], num_cached: int, seed: int, queue_s: float) -> None:
        self._without_token.add(job)
        self._send(m.Started(job, prompt_ids, num_cached, seed, queue_s))

    def steps(self, job: int, steps: Iterable[bytes], *, is_prompt: bool) -> None:
        self._rows.setdefault((job, is_prompt), []).extend(steps)
        if not is_prompt and job in self._without_token:
            self._without_token.remove(job)
            self.is_urgent = True

    def ended(self, sequence: Sequence) -> None:
        times = (sequence.prefill_s, sequence.decode_s)
        reason = sequence.finish_reason or "stop"
        threads = (sequence.threads, sequence.threads_batch)
        self._without_token.discard(sequence.job)
        self._send(*self._gathered(), m.Ended(sequence.job, reason, sequence.text_bytes, *times, "", "", *threads))

    def cancelled(self, job: int) -> None:
        self._without_token.discard(job)
        self._send(m.Ended(job, "cancelled", 0, 0.0, 0.0, "", ""))

    def failed(self, job: int, error: EngineError) -> None:
        self._without_token.discard(job)
        self._send(*self._gathered(), m.Ended(job, "", 0, 0.0, 0.0, type(error).__name__, str(error)))

    def flush(self) -> None:
        """Send the steps gathered so far, those of each job together: each delivery wakes who reads it."""
        if gathered := self._gathered():
            self._send(*gathered)

    def _gathered(self) -> list[Message]:
        """Return the message with the steps gathered so far, if there are any; they are gathered no more."""
        self.is_urgent = False
        rows, self._rows = self._rows, {}
        return [m.Decoded([m.Steps(*key, b"".join(steps)) for key, steps in rows.items()])] if rows else []

    def _send(self, *messages: Message) -> None:
        self._stamp(SENDING)
        self._channel.send(*messages)


class Opened(NamedTuple):
    """A loaded model: its vocabulary and tokenizer, what decodes its batches, and the parameters that both use."""

    model: Model
    context: Decoder
    spec: PoolSpec


OpenModel = Callable[[m.LoadModel, Callable[[float], None]], Opened]
"""Function that loads the model of an order, reporting its progress from 0 to 1. Raises EngineError."""


class Worker:
    """Worker process: loads the model, then serves requests until the socket closes."""

    def __init__(self, channel: Channel, stamp: Stamp, open_model: OpenModel) -> None:
        self._channel, self._stamp, self._open = channel, stamp, open_model
        self._outbox = Outbox(channel, stamp)
        self._loop_s = self._measuring_s = 0.0
        self._is_held = False
        self._sent_at = 0.0
        self._in_use = (0, 0)
        self._inbox = select.poll()
        self._inbox.register(channel.socket, select.POLLIN)

    def load(self, load: m.LoadModel) -> None:
        """Set the affinity, load the model, create the context and send Ready; raises EngineError on failure."""
        if load.protocol != m.PROTOCOL:
            raise ConfigError(f"pool speaks protocol {load.protocol}, this worker {m.PROTOCOL}")
        if load.cpus:
            os.sched_setaffinity(0, load.cpus)
        self._epoch = time.monotonic()
        reported = 0.0

        def progress(fraction: float) -> None:
            nonlocal reported
            if fraction - reported >= 0.01 or fraction == 1:
                reported = fraction
                self._channel.send(m.Loading(fraction))

        self._model, context, spec = self._open(load, progress)
        self._runner = Runner(
            self._model,
            context,
            spec,
            threads=load.threads,
            threads_batch=load.threads_batch,
            prefill_share=load.prefill_share,
            reporter=self._outbox,
            stamp=self._stamp,
        )
        self._in_use = self._runner.threads.in_use
        self._channel.send(self._ready(time.monotonic() - self._epoch))
        gc.freeze()

    def _ready(self, load_s: float) -> m.Ready:
        vocabulary = self._model.vocabulary
        return m.Ready(
            protocol=m.PROTOCOL,
            pid=os.getpid(),
            load_s=load_s,
            n_ctx=self._runner.context.n_ctx,
            pieces=list(vocabulary.pieces),
            kinds=vocabulary.kinds,
            names=vocabulary.names,
            bos=vocabulary.bos,
            add_bos=vocabulary.add_bos,
            add_space_prefix=vocabulary.add_space_prefix,
            chat_template=self._model.chat_template,
            description=self._model.description,
            is_recurrent=self._model.is_recurrent,
        )

    def serve(self) -> None:
        """Run the loop: receive between decode steps, wait when there is nothing to decode; ends with EOFError."""
        while True:
            self._listen()
            if self._is_held:
                continue
            began = time.perf_counter()
            self._runner.step()
            now = time.perf_counter()
            if self._runner.is_idle or self._outbox.is_urgent or now - self._sent_at >= GATHER_STEPS_S:
                self._outbox.flush()
                self._sent_at = now
            if self._in_use != self._runner.threads.in_use:
                self._in_use = self._runner.threads.in_use
                self._stamp(SENDING)
                self._channel.send(m.InUse(*self._in_use))
            self._loop_s += time.perf_counter() - began

    def _listen(self) -> None:
        """Receive messages: with nothing to decode, wait for one and for the prompts that arrive with it; otherwise
        only poll. Returns after GATHER_MOST_S at most, so that further messages do not delay what has arrived."""
        waits = self._is_held or self._runner.is_idle
        if waits:
            self._stamp(IDLE)
        if not self._inbox.poll(None if waits else 0):
            return
        ends = time.monotonic() + GATHER_MOST_S
        while True:
            for message in self._channel.receive():
                self._handle(message)
            if waits and not self._runner.is_idle:
                time.sleep(GATHER_PROMPTS_S)
            if time.monotonic() >= ends or not self._inbox.poll(0):
                return

    def _handle(self, message: m.ToWorker) -> None:
        match message:
            case m.AddRequest():
                self._runner.submit(self._queued(message))
            case m.Cancel():
                self._runner.cancel(message.job)
            case m.Hold():
                self._is_held = message.is_held
                self._outbox.flush()
            case m.ReadClock():
                self._channel.send(m.Clock(time.monotonic() - self._epoch))
            case m.Tokenize() | m.Measure():
                self._stamp(TOKENISING)
                answer = self._answer(message)
                self._stamp(SENDING)
                self._channel.send(answer)
            case m.LoadModel():
                raise ConfigError("a worker loads only once")

    def _queued(self, order: m.AddRequest) -> QueuedRequest:
        submitted = self._epoch + order.submitted
        return QueuedRequest(order.job, order.prompt, order.sampling, order.request, submitted)

    def _answer(self, call: m.Tokenize | m.Measure) -> m.Answer:
        try:
            match call:
                case m.Tokenize():
                    ids = self._model.tokenize(call.text, add_bos=call.add_bos, special=call.special)
                    return m.Answer(call.call, ids=ids)
                case m.Measure():
                    return m.Answer(call.call, figures=self._figures())
        except EngineError as error:
            return m.Answer(call.call, text=str(error), error=type(error).__name__)

    def _figures(self) -> dict[str, float]:
        began = time.thread_time()
        process = psutil.Process()
        memory = process.memory_full_info()
        cpu = process.cpu_times()
        figures = {
            "pid": process.pid,
            "decode_s": self._runner.decode_s,
            "prefill_s": self._runner.prefill_s,
            "decode_cpu_s": self._runner.decode_cpu_s,
            "tokenise_s": self._runner.tokenise_s,
            "distribution_s": self._runner.scratch.distribution_s,
            "sample_s": self._runner.scratch.sample_s,
            "loop_s": self._loop_s,
            "cpu_s": cpu.user + cpu.system,
            "thread_s": began - self._measuring_s,
            "num_decodes": self._runner.num_decodes,
            "num_tokens": self._runner.num_tokens,
            "pss_bytes": getattr(memory, "pss", float("nan")),
            "private_bytes": memory.uss,
        }
        self._measuring_s += time.thread_time() - began
        return figures


def main(end: socket.socket) -> None:
    """Load the GGUF file named in the first message, then serve."""
    serve_pool(end, _open)


def _open(load: m.LoadModel, on_progress: Callable[[float], None]) -> Opened:
    model = Model(load.model, load.spec, on_progress=on_progress)
    return Opened(model, Context(model, load.spec, load.threads, load.threads_batch), load.spec)


def serve_pool(end: socket.socket, open_model: OpenModel) -> None:
    """Have `open_model` load the model that the first message names, then serve until the socket closes.

    Where the pool is on another machine, its messages take the connection that came with the heartbeat page, and `end`
    leads to the program that started this one.
    """
    channel = Channel(end, _TO_WORKER)
    try:
        pulse, far = Pulse.received_with_far(end)
        if far is not None:
            channel = Channel(far, _TO_WORKER)
        pulse.stamp(LOADING)
        pulse.keep_beating()
        worker = Worker(channel, pulse.stamp, open_model)
        for load in channel.receive():
            worker.load(load)
        worker.serve()
    except EngineError as error:
        channel.send(m.Failed(type(error).__name__, str(error)))
    except (EOFError, BrokenPipeError, ConnectionError, TimeoutError):
        return
