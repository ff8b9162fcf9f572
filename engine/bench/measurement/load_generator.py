"""Load generator: sends a workload's requests to an engine: together, by users in a loop, or at random times."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from engine.bench.measurement.clients import Clients, Deadline, Prompt, answers, repeated
from engine.bench.measurement.metrics import Repetition
from engine.bench.measurement.prompt_tokens import PromptTokens
from engine.bench.planning.plan import Workload
from engine.errors import ConfigError
from engine.jobs import Job
from engine.protocol import Engine
from engine.specs import Sampling

Source = Callable[[int], Prompt]
"""Returns the next prompt of a stream."""

_PREFIX_SEED = 1
_WAKE_PROMPT, _WAKE_TOKENS = 8, 2


class Bound(NamedTuple):
    """Limit of a load: a sample is one request of each stream, and `before_each` is called before every request."""

    before_each: Callable[[], object]


class LoadGenerator:
    """Requests of one workload on one engine; an engine may have several generators if only one runs at a time.

    Tokens are sampled by llama.cpp's default chain, without recording figures for them. No part of a prompt is reused
    except the `depth` ids before it, which a sequence holds before timing begins. tokens: those of random prompts, by
    default the ids of the engine's vocabulary. Raises ConfigError where prompt and tokens do not fit a sequence.
    """

    def __init__(
        self, engine: Engine, workload: Workload, tokens: PromptTokens | None = None, bound: Bound | None = None
    ) -> None:
        self._engine, self._workload, self._bound = engine, workload, bound
        self._num_sequences = engine.capabilities.num_sequences
        self._tokens = tokens or PromptTokens.of_ids(engine.vocabulary)
        is_random = workload.asked == "tokens"
        self._bias = tuple((token, -math.inf) for token in self._tokens.ends) if is_random else ()
        self._depth = workload.depth if is_random else 0
        self._num_prompt = max(workload.num_prompt, 1)
        if is_random:
            self._check_room()
        random, num_prefixes = np.random.default_rng(_PREFIX_SEED), self._num_sequences if self._depth else 0
        self._prefixes = [self._tokens.starting(random, self._depth) for _ in range(num_prefixes)]

    def _check_room(self) -> None:
        asked = self._workload
        needed = self._depth + self._num_prompt + max(asked.num_generated - 1, 0)
        if (most := self._engine.capabilities.n_ctx) and needed > most:
            raise ConfigError(
                f"depth {asked.depth:,} + prompt {asked.num_prompt:,} + {asked.num_generated:,} tokens need a context "
                f"of {needed:,}, but a sequence has {most:,}: raise n_ctx or reduce the workload"
            )

    def wake(self, deadline: Deadline) -> None:
        """Generate a few tokens on every worker, so that none is measured while waking up, as llama-bench does too."""
        random = np.random.default_rng()
        prompts = [self._tokens.prompt(random, _WAKE_PROMPT) for _ in range(self._engine.spec.instances)]
        answers(self._submitter(0, max_tokens=_WAKE_TOKENS), prompts, deadline)

    def first_token_s(self, deadline: Deadline) -> float:
        """Return the seconds to the first token of one request on an idle engine."""
        prompt = self._source(np.random.default_rng())(0)
        return answers(self._submitter(0, max_tokens=1), [prompt], deadline)[0][0].ttft_s

    def once(self, deadline: Deadline) -> float:
        """Send one request per sequence at once, whatever the arrival mode; return the seconds."""
        return _seconds(self._burst(self._source(np.random.default_rng()), 0, deadline))

    def run(self, seed: int, num_repetitions: int, at_least_s: float, deadline: Deadline) -> list[Repetition]:
        """Measure; the same seed sends the same requests.

        Random ids together: `num_repetitions` bursts, and further ones until they amount to `at_least_s` seconds. Texts
        together: as many as are started within `at_least_s` seconds. Users and Poisson arrivals: the workload's own
        duration. A bounded load: one request of each stream. Raises BenchTimeout, or the error of the first request
        that failed; nothing is left running.
        """
        random = np.random.default_rng(seed)
        asked = self._workload
        if self._bound is not None:
            return [self._again_and_again(random, seed, 0.0, deadline)]
        match asked.arrival, asked.asked:
            case "users", _:
                return [self._again_and_again(random, seed, asked.duration_s, deadline)]
            case "poisson", _:
                return [self._poisson(random, seed, deadline)]
            case _, "prompts":
                return [self._again_and_again(random, seed, at_least_s, deadline)]
        source = self._source(random)
        return repeated(lambda: self._burst(source, seed, deadline), _seconds, num_repetitions, at_least_s)

    # arrivals

    def _burst(self, source: Source, seed: int, deadline: Deadline) -> Repetition:
        """Send one request per sequence, all released at once."""
        first = [source(stream) for stream in range(self._num_sequences)]
        return self._streams(first, lambda _stream: None, seed, deadline)

    def _again_and_again(
        self, random: np.random.Generator, seed: int, seconds: float, deadline: Deadline
    ) -> Repetition:
        """Run users, else one stream per sequence, which send the next request once answered, for `seconds`."""
        source = self._source(random)
        num = self._workload.users if self._workload.arrival == "users" else self._num_sequences
        first = [source(stream) for stream in range(num)]
        until = time.monotonic() + seconds
        return self._streams(first, lambda stream: source(stream) if time.monotonic() < until else None, seed, deadline)

    def _poisson(self, random: np.random.Generator, seed: int, deadline: Deadline) -> Repetition:
        """Send requests at the times of a Poisson process, whatever was answered by then; at least one."""
        asked, source = self._workload, self._source(random)
        num = max(1, int(random.poisson(asked.rate_per_s * asked.duration_s)))
        moments = np.sort(random.uniform(0, asked.duration_s, num)).tolist()
        prompts = [source(number) for number in range(num)]
        began = time.monotonic()
        with Clients(self._submitter(seed), deadline) as clients:
            for number, (moment, prompt) in enumerate(zip(moments, prompts, strict=True)):
                while time.monotonic() < began + moment:
                    clients.answered(until=began + moment)
                clients.ask(number, prompt, began + moment)
            clients.answer_all()
            return self._counted(clients.streams(began))

    def _streams(
        self, first: Sequence[Prompt], more: Callable[[int], Prompt | None], seed: int, deadline: Deadline
    ) -> Repetition:
        """Run streams that begin with `first`, all released at once, and continue with the prompts of `more`."""
        if self._depth:
            answers(self._submitter(0, max_tokens=0), self._prefixes, deadline)
        with Clients(self._submitter(seed), deadline) as clients:
            with self._engine.held():
                for stream, prompt in enumerate(first):
                    clients.ask(stream, prompt)
                released = time.monotonic()
            while (answered := clients.answered()) is not None:
                following = more(answered)
                if following is not None:
                    clients.ask(answered, following)
            return self._counted(clients.streams(released))

    def _counted(self, repetition: Repetition) -> Repetition:
        """Return the repetition; for generation only, the one id that a prompt must have does not count as prefill.

        A text of known length counts with it where a server does not report the tokens of a prompt.
        """
        asked, tokens = self._workload, self._tokens
        if asked.num_prompt and tokens.is_text and tokens.has_length and asked.asked == "tokens":
            return [
                [request._replace(num_computed=request.num_computed or self._num_prompt) for request in stream]
                for stream in repetition
            ]
        if asked.num_prompt or asked.asked == "prompts":
            return repetition
        return [[request._replace(num_computed=0) for request in stream] for stream in repetition]

    # prompts

    def _submitter(self, seed: int, max_tokens: int | None = None) -> Callable[[Prompt], Job]:
        sampling = Sampling(seed=seed, logit_bias=self._bias)
        num = self._workload.num_generated if max_tokens is None else max_tokens

        def submit(prompt: Prompt) -> Job:
            if self._bound is not None:
                self._bound.before_each()
            return self._engine.submit(prompt, sampling, max_tokens=num, reuse_prefix=self._depth > 0)

        return submit

    def _source(self, random: np.random.Generator) -> Source:
        texts = self._workload.prompts
        if self._workload.asked == "prompts":
            first = int(random.integers(len(texts)))
            following = itertools.cycle(texts[first:] + texts[:first])
            return lambda _stream: next(following)
        if not self._depth:
            return lambda _stream: self._tokens.prompt(random, self._num_prompt)
        return lambda stream: [
            *self._prefixes[stream % self._num_sequences],
            *self._tokens.ids_of(random, self._num_prompt),
        ]


def _seconds(repetition: Repetition) -> float:
    return max(stream[-1].end for stream in repetition) - min(stream[0].asked for stream in repetition)
