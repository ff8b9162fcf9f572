"""Paragraphs of the shipped sentences that the shipped model can read."""

from typing import Any

from datasets import Dataset


def paragraphs(documents: Any) -> Any:
    """Return the English sentences of each topic as one text, longer than the context that the test gives."""
    texts: dict[str, list[str]] = {}
    for one in documents:
        if one["language"] == "English":
            texts.setdefault(one["group"], []).append(one["text"])
    return Dataset.from_list([{"text": " ".join(sentences)} for sentences in texts.values()])
