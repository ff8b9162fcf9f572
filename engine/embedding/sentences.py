"""Shipped sentences, on which backends are compared."""

import json

from engine.models.library import shipped

_JOINED = (1, 2, 4, 8, 16)


def shipped_sentences() -> list[str]:
    """Return the shipped sentences, of a dozen words each, in several languages."""
    lines = shipped("prompts", "sentences.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def passages() -> list[str]:
    """Return the shipped sentences singly and joined by 2, 4, 8 and 16: texts of 10 to some 250 tokens."""
    ones = shipped_sentences()
    return [" ".join(ones[start : start + num]) for num in _JOINED for start in range(0, len(ones), num)]
