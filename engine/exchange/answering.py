"""Answers to a file of prompts: an engine completes them, and a file of answers takes them in their order."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from engine.chat_options import chat_messages
from engine.errors import ConfigError, EngineError, PoolClosed
from engine.exchange.answer_files import AnswerFile
from engine.exchange.prompt_files import FilePrompt, PromptFile
from engine.jsonable import spec_to_dict
from engine.map_progress import MapProgress, OnProgress, PromptsLine
from engine.protocol import Engine
from engine.results import Completion
from engine.specs import Request, RequestOptions, Sampling
from engine.validation import plain_text


class FileSummary(NamedTuple):
    """What `complete_file` has done. num_answered: all answers in the file, num_before: those of earlier runs.

    num_failed: those that are errors.
    """

    num_answered: int
    num_before: int
    num_failed: int


class Answering:
    """One run over a file of prompts; `answer` begins it.

    is_chat: texts are messages of a chat, after `system` where that is not empty. model: its name; model_sha256: its
    hash, which a later run must have too.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: PromptFile,
        answers: AnswerFile,
        *,
        sampling: Sampling,
        options: RequestOptions,
        model: str,
        model_sha256: str,
        is_chat: bool,
        system: str,
    ) -> None:
        self._engine, self._prompts, self._answers = engine, prompts, answers
        self._sampling, self._options = sampling, options
        self._model, self._model_sha256 = model, model_sha256
        self._is_chat, self._system = is_chat, plain_text("system", system)
        self._taken = deque[FilePrompt]()
        self._num_answered = self._num_failed = 0
        self._end = 0
        self._ending: ConfigError | None = None

    def answer(self, progress: OnProgress = False) -> FileSummary:
        """Answer what earlier runs have not; raises ConfigError, PoolClosed. What was answered before stays."""
        self._check()
        given = iter(self._prompts)
        last = self._answers.begin(self._settings(), given)
        self._end = last.end if last else 0
        line = PromptsLine(first_share=self._share or 0.0, num_before=self._answers.num_before)

        last_shown = MapProgress(0, 0, 0, None)

        def show(now: MapProgress) -> None:
            nonlocal last_shown
            last_shown = now
            line.show(now, self._share)

        asked = self._engine.map(
            self._asked(given),
            self._sampling,
            return_exceptions=True,
            progress=show if progress is True else progress,
            **self._options,
        )
        try:
            with closing(asked):  # type: ignore[type-var]  # it is a generator
                for outcome in asked:
                    self._write(self._taken.popleft(), outcome)
            if progress is True:
                line.show(last_shown, self._share, is_last=True)
        finally:
            line.end()
        if self._ending is not None:
            raise self._ending.bare()
        before = self._answers.num_before
        return FileSummary(before + self._num_answered, before, self._answers.num_failed_before + self._num_failed)

    @property
    def _share(self) -> float | None:
        """Part of the file that is answered; None where its size is not known."""
        size = self._prompts.num_bytes
        return None if size is None else min(self._end / size, 1.0)

    def _settings(self) -> dict[str, Any]:
        return {
            "model": self._model,
            "model_sha256": self._model_sha256,
            "n_ctx": self._engine.spec.n_ctx,
            "sampling": spec_to_dict(self._sampling),
            "request": spec_to_dict(Request(**self._options)),  # type: ignore[arg-type]  # stop becomes a tuple there
            "chat": self._is_chat,
            "system": self._system,
        }

    def _check(self) -> None:
        """Raise what would end every prompt: a wrong grammar, a token id beyond the vocabulary, no chat template."""
        if self._is_chat:
            self._engine.render_chat(chat_messages("Hello", self._system))
        for outcome in self._engine.map([[0]], self._sampling, return_exceptions=True, max_tokens=0):
            if isinstance(outcome, EngineError):
                raise outcome.__cause__ or outcome

    def _asked(self, prompts: Iterator[FilePrompt]) -> Iterator[str | Sequence[int]]:
        """Yield what the engine is asked for each prompt; nothing, which it refuses, for one that is wrong.

        An error of the file itself ends the prompts, and is raised when those taken before are answered.
        """
        try:
            for prompt in prompts:
                try:
                    given = self._given(prompt) if prompt.error is None else []
                except PoolClosed:
                    raise
                except EngineError as error:
                    given, prompt = [], replace(prompt, error=error.bare())
                self._taken.append(prompt)
                yield given
        except ConfigError as error:
            self._ending = error.bare()

    def _given(self, prompt: FilePrompt) -> str | Sequence[int]:
        """Return the text or ids of a prompt, a chat rendered; raises EngineError."""
        if prompt.messages is not None:
            return self._engine.render_chat(prompt.messages)[1]
        assert prompt.prompt is not None
        if not self._is_chat:
            return prompt.prompt
        if not isinstance(prompt.prompt, str):
            raise ConfigError("token ids cannot be the message of a chat")
        return self._engine.render_chat(chat_messages(prompt.prompt, self._system))[1]

    def _write(self, prompt: FilePrompt, outcome: Completion | EngineError) -> None:
        if isinstance(outcome, PoolClosed):
            raise outcome
        answer = prompt.error or outcome
        if isinstance(answer, EngineError) and isinstance(answer.__cause__, EngineError):
            answer = answer.__cause__  # without the prompt's number of this run
        self._answers.append(prompt, answer)
        self._num_answered += 1
        self._num_failed += isinstance(answer, EngineError)
        self._end = prompt.end
