"""The program that knows the tokenizer of a model file and none of its weights: a JSON line asks, a line answers.

The first answer is the vocabulary, or `failure`: why there is none. Then each line has a text, or messages for the
model's chat template. It ends when its standard input does.
"""

import json
import os
import signal
import sys
from typing import Any

from engine.errors import EngineError
from engine.llama.chat import prompt_of
from engine.llama.model import Model
from engine.specs import PoolSpec


def vocabulary_of(model: Model) -> dict[str, Any]:
    """The table as JSON takes it: the bytes of a piece as the characters of the same numbers."""
    vocabulary = model.vocabulary
    return {
        "pieces": [piece.decode("latin-1") for piece in vocabulary.pieces],
        "kinds": vocabulary.kinds.decode("latin-1"),
        "names": list(vocabulary.names.items()),
        "bos": vocabulary.bos,
        "add_bos": vocabulary.add_bos,
        "add_space_prefix": vocabulary.add_space_prefix,
    }


def answer(model: Model, question: dict[str, Any]) -> dict[str, Any]:
    """`ids`, and `text` where messages were rendered; or `error` and `text`: a class of engine.errors and its words."""
    try:
        if "messages" in question:
            text, ids = prompt_of(model, question["messages"])
            return {"ids": ids, "text": text}
        return {"ids": model.tokenize(question["text"], special=question["special"])}
    except EngineError as error:
        return {"error": type(error).__name__, "text": str(error)}


def serve(path: str) -> None:
    """Answer every line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # whatever a library prints must not come between the answers
        lines = iter(sys.stdin)
        next(lines, "")
        try:
            model = Model(path, PoolSpec(), vocab_only=True)
        except EngineError as error:
            answers.write(json.dumps({"failure": str(error)}) + "\n")
            return
        answers.write(json.dumps(vocabulary_of(model)) + "\n")
        for line in lines:
            answers.write(json.dumps(answer(model, json.loads(line))) + "\n")


if __name__ == "__main__":
    serve(sys.argv[1])
