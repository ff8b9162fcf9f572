"""Fork server: a child program that loads one embedding model and forks workers that share it.

For each socket that it receives, it forks a worker that serves this socket: workers share weights, libraries and all
imports, and a dead one is replaced within milliseconds. Fork server and workers end when the other end of their socket
is closed.
"""

import gc
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.embedding import messages as m
from engine.embedding.backends import Backend, Tokens, open_backend
from engine.embedding.batching import batches, beginnings
from engine.errors import ConfigError, EngineError
from engine.llama.phase import IDLE, LOADING
from engine.process.channel import Channel
from engine.process.limits import allow_deep_recursion
from engine.process.parent_death import end_with_parent
from engine.process.pulse import Pulse

_SMALLEST_NORM = 1e-12
_LOAD: Any = m.ToProgram


def main(end: socket.socket) -> None:
    """Load the model named in the first message, then fork a worker for each socket received."""
    allow_deep_recursion()
    channel = Channel(end, _LOAD)
    try:
        pulse = Pulse.received_from(end)
        pulse.stamp(LOADING)
        pulse.keep_beating()
        load = channel.receive_one()
        backend = _load(channel, load)
        pulse.stamp(IDLE)
    except EngineError as error:
        channel.send(m.Failed(type(error).__name__, str(error)))
        return
    except (EOFError, OSError):
        return
    _part(channel, lambda end: Worker(Channel(end, m.Embed), backend, load).serve())


def _load(channel: Channel, load: m.LoadEmbeddingModel) -> Backend:
    if load.protocol != m.PROTOCOL:
        raise ConfigError(f"pool speaks protocol {load.protocol}, this worker {m.PROTOCOL}")
    began = time.monotonic()
    backend = open_backend(load)
    gc.collect()
    gc.freeze()  # garbage collection in a worker would copy every page it visits
    sizes = backend.dim, backend.max_tokens, backend.num_vocab
    channel.send(m.Loaded(m.PROTOCOL, os.getpid(), *sizes, time.monotonic() - began))
    return backend


def _part(channel: Channel, serve: Callable[[socket.socket], None]) -> None:
    """Fork a worker per socket received, report on request how one ended, and kill all when the pool disconnects."""
    running: set[int] = set()
    ended: dict[int, int] = {}

    def collect(pid: int, options: int) -> None:
        found, status = os.waitpid(pid, options)
        if found:
            running.remove(found)
            ended[found] = os.waitstatus_to_exitcode(status)

    while True:
        asked, ends, _flags, _address = socket.recv_fds(channel.socket, len(m.PART), 1)
        if not asked:
            break
        for pid in tuple(running):
            collect(pid, os.WNOHANG)
        if ends:
            own_pid, pid = os.getpid(), os.fork()
            if pid == 0:
                end_with_parent(own_pid)
                channel.socket.close()
                serve(socket.socket(fileno=ends[0]))
                return
            os.close(ends[0])
            running.add(pid)
        else:
            pid = int.from_bytes(asked, "little")
            if pid in running:
                collect(pid, 0)
            channel.send(m.Ended(pid, ended[pid]))
    for pid in running:
        os.kill(pid, signal.SIGKILL)


class Worker:
    """Worker: answers each request with the vectors of its texts, until its socket closes."""

    def __init__(self, channel: Channel, backend: Backend, load: m.LoadEmbeddingModel) -> None:
        self._channel, self._backend, self._load = channel, backend, load

    def serve(self) -> None:
        """Initialise, then answer requests sequentially."""
        try:
            Pulse.received_from(self._channel.socket).keep_beating()
            self._backend.begin(self._load.threads)
            self._channel.send(m.Begun(os.getpid()))
            while True:
                for message in self._channel.receive():
                    self._channel.send(self._answer(message))
        except (EOFError, BrokenPipeError, ConnectionError):
            return

    def _answer(self, message: m.Embed) -> m.Vectors | m.Unusable:
        began = time.perf_counter()
        backend = self._backend
        try:
            ids, cut = self._tokens(message)
            lengths = [len(row) for row in ids]
            rows = np.zeros((len(ids), backend.dim), np.float32)
            for places in batches(lengths, self._load.tokens_per_batch):
                filled = [place for place in places if ids[place]]  # an empty text may have no tokens: its vector is 0
                if filled:
                    rows[filled] = backend.embed([ids[place] for place in filled])
        except Exception as error:
            return m.Unusable(-1, f"{type(error).__name__}: {error}")
        norms = np.linalg.norm(rows, axis=1)
        if not np.isfinite(norms).all():
            place = int(np.flatnonzero(~np.isfinite(norms))[0])
            return m.Unusable(place, "its vector has non-finite values")
        if self._load.normalise:
            rows /= np.maximum(norms, _SMALLEST_NORM)[:, None]
        return m.Vectors(rows.tobytes(), sum(lengths), cut, time.perf_counter() - began)

    def _tokens(self, message: m.Embed) -> Tokens:
        """Return the ids of all texts, at most max_tokens of each."""
        most, given = self._backend.max_tokens, message.texts
        ids = [text[:most] if isinstance(text, list) else [] for text in given]
        cut = [place for place, text in enumerate(given) if isinstance(text, list) and len(text) > most]
        texts = {
            place: message.prefix + text.decode("utf-8") for place, text in enumerate(given) if isinstance(text, bytes)
        }
        found = beginnings(self._backend.tokens, list(texts.values()), most)
        for place, row in zip(texts, found.ids, strict=True):
            ids[place] = row
        places = list(texts)
        return Tokens(ids, sorted([*cut, *(places[at] for at in found.cut)]))
