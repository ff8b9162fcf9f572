"""Sandbox: evaluates chat templates, JSON schemas and grammars in a child process under limits, outside the workers."""

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.chat_options import ChatOptions
from engine.errors import ConfigError, EngineError, LimitExceeded, PoolClosed, QueueFull
from engine.process.channel import Message
from engine.process.limits import Limits
from engine.process.program import Service
from engine.specs import Sampling
from engine.vocabulary import Vocabulary

DEADLINE_S = 2.0
"""Seconds for one request, and for its wait for earlier ones."""
LIMITS = Limits(memory_bytes=1 << 29, cpu_s=2, file_bytes=1 << 20)
_MOST_KEPT = 64
_CLOSED = "this pool is closed: open another"


class RenderChat(Message, frozen=True):
    """Render messages (role, content; tool_calls as JSON) with a Jinja template; the answer is the text."""

    template: str
    messages: list[dict[str, str]]
    bos: str
    eos: str
    options: ChatOptions


class ConvertSchema(Message, frozen=True):
    """Convert a JSON schema; the answer is its grammar, already checked."""

    schema: str


class CheckGrammar(Message, frozen=True):
    """Check a GBNF grammar; the answer is empty."""

    text: str


class Sandbox:
    """Sandbox of one warm process and a spare one, started by the first call; may be called from any thread.

    A request takes at most DEADLINE_S seconds; a process that exceeds them is terminated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._service: Service | None = None
        self._is_closed = False
        self._outcomes: OrderedDict[bytes, str | ConfigError] = OrderedDict()

    def render_chat(
        self,
        template: str,
        messages: Sequence[Mapping[str, str]],
        vocabulary: Vocabulary,
        options: ChatOptions | None = None,
    ) -> tuple[str, bool]:
        """Render messages (role, content) with a model's chat template; return the text, and whether to add BOS to it.

        Raises ConfigError if there is no template, or if it refuses the messages, fails or exceeds a limit; QueueFull
        where others keep the processes busy.
        """
        if not template:
            raise ConfigError("this model has no chat template: give it a whole prompt as text instead of a chat")
        bos = vocabulary.names.get(vocabulary.bos, "") if vocabulary.bos is not None else ""
        eos = next((name for token, name in vocabulary.names.items() if vocabulary.is_end(token)), "")
        asked = RenderChat(template, [*map(dict, messages)], bos, eos, options or ChatOptions())
        text = self._ask(asked, "the model's chat template")
        return text, not (bos and text.startswith(bos))

    def compile(self, sampling: Sampling) -> Sampling:
        """Prepare the sampling for workers: convert its schema to a grammar, or check its grammar against the limits.

        Raises ConfigError, which names the exceeded limit, and QueueFull as `render_chat` does. Outcomes are cached by
        the text.
        """
        if sampling.json_schema:
            grammar = self._outcome(ConvertSchema(sampling.json_schema), sampling.json_schema, "json_schema")
            return replace(sampling, grammar=grammar, json_schema="")
        if sampling.grammar:
            self._outcome(CheckGrammar(sampling.grammar), sampling.grammar, "grammar")
        return sampling

    def _outcome(self, request: ConvertSchema | CheckGrammar, text: str, name: str) -> str:
        """Return the cached answer for the text, or request it from the process; raises ConfigError."""
        key = hashlib.sha256(f"{name} {text}".encode()).digest()
        with self._lock:
            known = self._outcomes.get(key)
            if known is not None:
                self._outcomes.move_to_end(key)
        if known is None:
            try:
                known = self._ask(request, name)
            except ConfigError as error:
                if isinstance(error.__cause__, LimitExceeded):  # not cached: the machine may only have been busy
                    raise
                known = error
            with self._lock:
                self._outcomes[key] = known
                while len(self._outcomes) > _MOST_KEPT:
                    self._outcomes.popitem(last=False)
        if isinstance(known, ConfigError):
            raise ConfigError(str(known))
        return known

    def _ask(self, request: Message, name: str) -> str:
        try:
            answer: str = self._running().ask(request, DEADLINE_S)
        except ConfigError as error:
            raise ConfigError(f"{name} {error}") from None
        except EngineError as error:
            if self._is_closed:
                raise PoolClosed(_CLOSED) from None
            if isinstance(error, LimitExceeded) and error.is_busy:
                raise QueueFull(f"{name} was not read: {error}") from error
            raise ConfigError(f"{name}: {error}; make it simpler") from error
        return answer

    def _running(self) -> Service:
        with self._lock:
            if self._is_closed:
                raise PoolClosed(_CLOSED)
            if self._service is None:
                self._service = Service(
                    "engine.llama.sandbox_program",
                    does="runs templates and grammars",
                    answers=str,
                    limits=LIMITS,
                    has_spare=True,
                )
                weakref.finalize(self, self._service.close)
            return self._service

    def close(self) -> None:
        """Terminate the processes. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            service = self._service
        if service is not None:
            service.close()
