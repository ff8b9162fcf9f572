"""Benchmark prompts: read from a user's texts and files, or bundled."""

import json
from pathlib import Path

from engine.errors import ConfigError
from engine.files import read_regular
from engine.models.library import shipped

MAX_BYTES = 64 << 20
MAX_PROMPTS = 10_000
NUM_COMPARED = 8
"""Prompts that each configuration answers where answers are compared."""
_KEYS = ("prompt", "text")


def sample_prompts() -> tuple[str, ...]:
    """Return the bundled prompts: thirty of varied length."""
    return read_prompts(shipped("prompts", "samples.jsonl"))


def read_prompts(source: str | Path) -> tuple[str, ...]:
    """Return the prompts of a text, or of a file where `source` is a Path.

    One prompt per line, empty lines skipped; or JSONL, recognised by its first character or by the file's name: objects
    with "prompt" or "text", other keys ignored. Raises ConfigError with source, line and reason; up to 10,000 prompts
    are read, and 64 MiB.
    """
    name = str(source) if isinstance(source, Path) else "the prompts"
    text = _text_of(source) if isinstance(source, Path) else source
    is_jsonl = text.lstrip().startswith("{") or (isinstance(source, Path) and source.suffix == ".jsonl")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"{name}: no prompts; put one on each line")
    if len(lines) > MAX_PROMPTS:
        raise ConfigError(f"{name}: has {len(lines):,} prompts; the limit is {MAX_PROMPTS:,}: use fewer")
    return tuple(_prompt(f"{name}, line {number:,}", line) if is_jsonl else line.strip() for number, line in lines)


def _text_of(path: Path) -> str:
    try:
        size = path.stat().st_size
        text = read_regular(path).decode("utf-8-sig") if size <= MAX_BYTES else ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    if size > MAX_BYTES:
        raise ConfigError(f"{path}: has {size:,} bytes; the limit is {MAX_BYTES:,}: use a part of it")
    return text


def _prompt(place: str, line: str) -> str:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not JSON ({error})") from None
    found = [read[key] for key in _KEYS if key in read] if isinstance(read, dict) else []
    if not found or not isinstance(found[0], str) or not found[0].strip():
        raise ConfigError(f'{place}: must be an object with text in "prompt" or "text"')
    return found[0]
