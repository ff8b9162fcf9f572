"""A child program that knows the tokenizer of a model file and none of its weights.

The first answer is the vocabulary. Each further request is a text, or messages for the model's chat template.
"""

import socket
from typing import Any

from engine.llama.chat import prompt_of
from engine.llama.model import Model
from engine.process.serving import serve
from engine.specs import PoolSpec
from engine.vocabulary import Vocabulary


def answer(model: Model, request: dict[str, Any]) -> Vocabulary | tuple[str, list[int]]:
    """The vocabulary for an empty request, else text and ids. Raises ConfigError."""
    if not request:
        return model.vocabulary
    if "messages" in request:
        return prompt_of(model, request["messages"])
    return request["text"], model.tokenize(request["text"], special=request["special"])


def main(end: socket.socket, path: str) -> None:
    """Answer every request; a file that llama.cpp refuses is the answer to the first."""
    models: list[Model] = []

    def reply(request: dict[str, Any]) -> Vocabulary | tuple[str, list[int]]:
        if not models:
            models.append(Model(path, PoolSpec(), vocab_only=True))
        return answer(models[0], request)

    serve(end, dict[str, Any], reply)
