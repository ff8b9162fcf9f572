"""The sentences that ship, on which backends are compared."""

import json

from engine.models.library import shipped

_JOINED = (1, 2, 4, 8, 16)


def shipped_sentences() -> list[str]:
    """Sentences of a dozen words, in several languages."""
    lines = shipped("prompts", "sentences.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def passages() -> list[str]:
    """The shipped sentences one by one, in twos, fours, eights and sixteens: texts of 10 to some 250 tokens."""
    ones = shipped_sentences()
    return [" ".join(ones[start : start + num]) for num in _JOINED for start in range(0, len(ones), num)]
