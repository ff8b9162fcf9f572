"""Questions that the command palette understands: whether a model fits, and a comparison of temperatures."""

from collections.abc import Iterator

from engine.comparing.arms import MAX_ARMS
from engine.errors import ConfigError
from engine.specs import Sampling

Answer = tuple[str, str, str, dict[str, str]]
"""Title, detail, script of the page, and the query of its address."""

_BEGINNINGS = {"does", "do", "will", "would", "can", "could", "i", "it", "a", "an", "the", "is", "run", "load"}
_ENDINGS = {"fit", "fits", "run", "load", "here", "in", "into", "on", "my", "this", "memory", "ram", "machine"}
_TEMPERATURES = {"t", "temp", "temperature", "temperatures"}


def asked(text: str) -> Iterator[Answer]:
    """Yield what a text asks for; nothing where it is no question."""
    words = text.casefold().replace("?", " ").replace(",", " ").replace("=", " ").split()
    if model := _model(words):
        yield f"Does {model} fit?", "Memory fit", "models.py", {"view": "fit", "ask": model}
    if temperatures := _temperatures(words):
        title = f"Compare temperatures {', '.join(temperatures)}"
        yield title, "one prompt under each", "compare.py", {"temperatures": ",".join(temperatures)}


def _model(words: list[str]) -> str:
    """Return the model of a question such as "does mistral 7b q4 fit"; empty for another text."""
    if not {"fit", "fits"} & set(words):
        return ""
    first, last = 0, len(words)
    while first < last and words[first] in _BEGINNINGS:
        first += 1
    while last > first and words[last - 1] in _ENDINGS:
        last -= 1
    return " ".join(words[first:last])


def _temperatures(words: list[str]) -> list[str]:
    """Return the temperatures of a text such as "compare t 0.2 0.8", as they were typed; none for another text."""
    if len(words) < 3 or words[0] != "compare" or words[1] not in _TEMPERATURES:
        return []
    values = words[2:]
    return values if len(values) <= MAX_ARMS and all(map(_is_temperature, values)) else []


def _is_temperature(text: str) -> bool:
    try:
        Sampling(temperature=float(text))
    except (ValueError, ConfigError):
        return False
    return True
