"""Tokenizer of a model file, in a child program that loads its vocabulary but not its weights."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.chat_options import ChatOptions
from engine.errors import EngineError, ModelError
from engine.files import check_utf8
from engine.llama.sandbox import Sandbox
from engine.process.program import Program
from engine.vocabulary import Vocabulary

_ANSWERS: Any = Vocabulary | list[int] | str

PATIENCE_S = 30.0
"""Timeout of a request: loading a vocabulary of 152,000 tokens takes one second, a request milliseconds."""


def tokenizer_program(path: Path) -> str:
    """Return the child program that loads the tokenizer of a GGUF file or a model folder."""
    return "engine.programs.folder_tokenizer" if os.path.isdir(path) else "engine.llama.tokenizer"


class Tokenizer:
    """Tokenizer and chat template of a file, with the same results as a Pool's. Any thread may call it.

    Takes up to a second to open, and about 10 MB per 10,000 tokens of the vocabulary. Raises ModelError where the
    file is rejected; then and in later calls WorkerDied where the program ends, LimitExceeded where it takes longer
    than `patience_s`.
    """

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        check_utf8(path, ModelError)
        self._path, self._patience_s = path, patience_s
        self._program = Program(tokenizer_program(path), str(path), does="reads its vocabulary", answers=_ANSWERS)
        self._sandbox = Sandbox()
        try:
            self.vocabulary: Vocabulary = self._ask({})
            self.chat_template: str = self._ask({"chat_template": True})
        except EngineError:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """False once its program has ended."""
        return self._program.is_alive

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Tokenise as Pool.tokenize does."""
        return self._tokenize(text, special=special)

    def render_chat(
        self, messages: Sequence[dict[str, str]], options: ChatOptions | None = None
    ) -> tuple[str, list[int]]:
        """Render a chat as Pool.render_chat does."""
        text, add_bos = self._sandbox.render_chat(self.chat_template, messages, self.vocabulary, options)
        return text, self._tokenize(text, special=True, add_bos=add_bos)

    def close(self) -> None:
        """End the program and any request in progress. Safe to call twice."""
        self._program.close()
        self._sandbox.close()

    def _tokenize(self, text: str, *, special: bool, add_bos: bool = True) -> list[int]:
        ids: list[int] = self._ask({"text": text, "special": special, "add_bos": add_bos})
        return ids

    def _ask(self, request: Mapping[str, Any]) -> Any:
        return self._program.ask(request, self._patience_s, str(self._path))
