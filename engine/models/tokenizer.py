"""What a model file makes of text, asked of a program that has its vocabulary and none of its weights."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine import errors
from engine.errors import EngineError, ModelError
from engine.models.line_program import LineProgram
from engine.vocabulary import Vocabulary

PATIENCE_S = 30.0
"""A vocabulary of 152,000 tokens takes one; what is asked of it, milliseconds."""


class Tokenizer:
    """The tokenizer and chat template of a file, with the same answers as a Pool's. Any thread may call it.

    Takes up to a second to open, and about 10 MB for each 10,000 tokens of the vocabulary. Raises ModelError where
    llama.cpp refuses the file; then and later WorkerDied where the program ends or takes longer than `patience_s`.
    """

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        self._path, self._patience_s = path, patience_s
        self._lock = threading.Lock()
        self._program = LineProgram("engine.llama.tokenizer", str(path), does="read its vocabulary")
        try:
            told = self._ask({})
            if "failure" in told:
                raise ModelError(told["failure"])
        except EngineError:
            self.close()
            raise
        self.vocabulary = _vocabulary(told)

    @property
    def is_alive(self) -> bool:
        """False once its program has ended."""
        return self._program.is_alive

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """As Pool.tokenize."""
        ids: list[int] = self._ask({"text": text, "special": special})["ids"]
        return ids

    def render_chat(self, messages: Sequence[dict[str, str]]) -> tuple[str, list[int]]:
        """As Pool.render_chat."""
        told = self._ask({"messages": list(messages)})
        return told["text"], told["ids"]

    def close(self) -> None:
        """End the program, and with it what is being asked of it. Safe to call twice."""
        self._program.stop()
        with self._lock:
            self._program.close()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            patience = threading.Timer(self._patience_s, self._program.stop)
            patience.daemon = True
            patience.start()
            try:
                told = self._program.ask(question, str(self._path))
            finally:
                patience.cancel()
        if "error" in told:
            raise getattr(errors, told["error"], ModelError)(told["text"])
        return told


def _vocabulary(told: Mapping[str, Any]) -> Vocabulary:
    return Vocabulary(
        pieces=tuple(piece.encode("latin-1") for piece in told["pieces"]),
        kinds=told["kinds"].encode("latin-1"),
        names=dict(told["names"]),
        bos=told["bos"],
        add_bos=told["add_bos"],
        add_space_prefix=told["add_space_prefix"],
    )
