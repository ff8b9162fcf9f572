"""Tokeniser for long texts, which runs outside the workers."""

import threading
from pathlib import Path

from engine.models.tokenizer import tokenizer_program
from engine.process.program import Program

LONGEST_FOR_WORKER = 20_000
"""Characters. A tokenizer may take quadratic time for text that its vocabulary does not cover: 0.25 s for this many and
25 s for ten times as many, with llama.cpp's SentencePiece tokenizer. In a worker every other job would wait."""

DEADLINE_S = 10.0


class LongTexts:
    """Tokeniser in a child process that loads only the vocabulary; it starts with the first text and then stays.

    May be called from any thread; one text is tokenised at a time.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._program: Program | None = None
        self._is_closed = False

    def tokenize(self, text: str, *, special: bool, add_bos: bool = True) -> list[int]:
        """Return the ids of a text, the same that a worker would return.

        Raises LimitExceeded after `DEADLINE_S` seconds, WorkerDied, or ModelError if the file can no longer be read.
        """
        request = {"text": text, "special": special, "add_bos": add_bos}
        ids: list[int] = self._running().ask(request, DEADLINE_S, f"a text of {len(text):,} characters")
        return ids

    def close(self) -> None:
        """Terminate the program, which also aborts a text being tokenised. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            if self._program:
                self._program.close()

    def _running(self) -> Program:
        with self._lock:
            if self._program is None or not (self._program.is_alive or self._is_closed):
                program = tokenizer_program(Path(self._model))
                self._program = Program(program, self._model, does="tokenises long texts", answers=list[int])
            return self._program
