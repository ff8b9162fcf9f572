"""Texts of a pool: their tokens, the chat template, and the constraints of a sampling."""

from collections.abc import Callable, Sequence

from engine.chat_options import ChatOptions, given_messages
from engine.errors import ConfigError, PromptTooLong, quoted
from engine.llama.grammar_syntax import token_names
from engine.llama.sandbox import Sandbox
from engine.pool import messages as m
from engine.pool.long_texts import LONGEST_FOR_WORKER, LongTexts
from engine.specs import Sampling
from engine.vocabulary import Vocabulary

_MOST_CONTROL_TOKENS = 8192
"""llama.cpp's time for a text grows with the square of their number: 0.2 s for this many."""


class Texts:
    """Texts for one model, whose context holds n_ctx tokens. Any thread may call it.

    ask: puts a call to a worker and returns its answer.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        long_texts: LongTexts,
        vocabulary: Vocabulary,
        n_ctx: int,
        ask: Callable[[Callable[[int], m.Tokenize]], m.Answer],
    ) -> None:
        self._sandbox, self._long_texts = sandbox, long_texts
        self._vocabulary, self._n_ctx, self._ask = vocabulary, n_ctx, ask

    def compiled(self, sampling: Sampling) -> Sampling:
        """Return the sampling for the workers, its constraint checked. Raises ConfigError, QueueFull, PoolClosed."""
        compiled = self._sandbox.compile(sampling)
        for name in sorted(token_names(compiled.grammar)):
            if not self._vocabulary.has(name):
                raise ConfigError(f"grammar names {quoted(name)}: it may only name tokens that this model has")
        return compiled

    def ids_if_long(self, prompt: str | list[int]) -> str | list[int]:
        """Tokenise a long text; one with too many bytes for the context stays text, as a worker rejects it without
        tokenising."""
        if not isinstance(prompt, str) or len(prompt) <= LONGEST_FOR_WORKER:
            return prompt
        if self._vocabulary.fewest_tokens(prompt) > self._n_ctx + 1:
            return prompt
        return self._long_texts.tokenize(prompt, special=False)

    def tokenize(self, text: str, *, special: bool, add_bos: bool = True) -> list[int]:
        """Return the ids of a text. Raises ConfigError for too many control tokens, WorkerDied, PoolClosed."""
        if special and len(text) > _MOST_CONTROL_TOKENS:
            num = sum(text.count(name) for name in self._vocabulary.names.values() if name)
            if num > _MOST_CONTROL_TOKENS:
                raise ConfigError(f"this text has {num:,} control tokens; at most {_MOST_CONTROL_TOKENS:,} are allowed")
        if len(text) > LONGEST_FOR_WORKER:
            return self._long_texts.tokenize(text, special=special, add_bos=add_bos)
        return self._ask(lambda call: m.Tokenize(call, text, special, add_bos)).ids

    def render_chat(
        self, template: str, messages: Sequence[dict[str, str]], options: ChatOptions | None
    ) -> tuple[str, list[int]]:
        """Render messages with a chat template; return the text and its ids.

        Raises ConfigError where the template fails or `messages` is no list of messages or empty, and PromptTooLong.
        """
        text, add_bos = self._sandbox.render_chat(template, given_messages(messages), self._vocabulary, options)
        fewest = self._vocabulary.fewest_tokens(text, special=True)
        if fewest > self._n_ctx:
            raise PromptTooLong.of(f"at least {fewest:,}", self._n_ctx)
        return text, self.tokenize(text, special=True, add_bos=add_bos)
