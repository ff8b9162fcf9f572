"""Child program that loads a model file's tokenizer without its weights.

An empty request returns the vocabulary, one with `chat_template` the chat template, any other the ids of its text.
"""

import socket
from collections.abc import Callable
from typing import Any

from engine.llama.model import Model
from engine.process.limits import allow_deep_recursion
from engine.process.serving import serve
from engine.specs import PoolSpec
from engine.vocabulary import Vocabulary


def answer(model: Model, request: dict[str, Any]) -> Vocabulary | str | list[int]:
    """Return the vocabulary, the chat template, or the ids of a text."""
    if not request:
        return model.vocabulary
    if "chat_template" in request:
        return model.chat_template
    return model.tokenize(request["text"], add_bos=request["add_bos"], special=request["special"])


def main(end: socket.socket, path: str) -> None:
    """Answer requests; if llama.cpp rejects the file, the first answer is that error."""
    serve_tokenizer(end, lambda: Model(path, PoolSpec(), vocab_only=True))


def serve_tokenizer(end: socket.socket, open_model: Callable[[], Model]) -> None:
    """Answer requests with a model that the first one opens."""
    allow_deep_recursion()
    models: list[Model] = []

    def reply(request: dict[str, Any]) -> Vocabulary | str | list[int]:
        if not models:
            models.append(open_model())
        return answer(models[0], request)

    serve(end, dict[str, Any], reply)
