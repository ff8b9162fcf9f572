"""Answers of a fake server to /v1/embeddings: a vector of its own for each text."""

import base64
import random

import numpy as np

from tests.engine.backends.fake_server import Request

DIM = 6


def vector_of(text: str) -> list[float]:
    """A vector that only this text has."""
    source = random.Random(text)
    return [source.uniform(-2, 2) for _ in range(DIM)]


def answer(request: Request) -> None:
    """Answer with vectors in a shuffled order, every other one in base64."""
    data = [{"index": index, "embedding": vector_of(text)} for index, text in enumerate(request.body["input"])]
    for entry in data[::2]:
        entry["embedding"] = base64.b64encode(np.array(entry["embedding"], "<f4").tobytes()).decode()
    random.Random(1).shuffle(data)
    request.json({"data": data, "model": "m", "usage": {"prompt_tokens": len(data)}})
