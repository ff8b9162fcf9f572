"""A child program that knows the tokenizer of a model file and none of its weights.

The answer to an empty request is the vocabulary, to one with `chat_template` that; each further one has a text.
"""

import socket
from typing import Any

from engine.llama.model import Model
from engine.process.serving import serve
from engine.specs import PoolSpec
from engine.vocabulary import Vocabulary


def answer(model: Model, request: dict[str, Any]) -> Vocabulary | str | list[int]:
    """Vocabulary, chat template, or the ids of a text."""
    if not request:
        return model.vocabulary
    if "chat_template" in request:
        return model.chat_template
    return model.tokenize(request["text"], add_bos=request["add_bos"], special=request["special"])


def main(end: socket.socket, path: str) -> None:
    """Answer every request; a file that llama.cpp refuses is the answer to the first."""
    models: list[Model] = []

    def reply(request: dict[str, Any]) -> Vocabulary | str | list[int]:
        if not models:
            models.append(Model(path, PoolSpec(), vocab_only=True))
        return answer(models[0], request)

    serve(end, dict[str, Any], reply)
