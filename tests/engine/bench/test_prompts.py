"""Prompts from texts and files, valid and malformed."""

from pathlib import Path

import pytest

from engine.bench.planning import prompts
from engine.bench.planning.prompts import read_prompts, sample_prompts
from engine.errors import ConfigError


def test_the_samples_are_thirty_of_varied_length() -> None:
    samples = sample_prompts()
    lengths = sorted(map(len, samples))
    assert len(set(samples)) == 30
    assert lengths[0] < 20
    assert lengths[-1] > 50 * lengths[0]


def test_a_text_has_one_prompt_a_line() -> None:
    assert read_prompts("Once upon a time\r\n\n  Name two planets.\n") == ("Once upon a time", "Name two planets.")
    assert read_prompts("one\u2028still one\x0cand still") == ("one\u2028still one\x0cand still",)


def test_jsonl_has_objects_with_prompt_or_text(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('\ufeff{"prompt": "a\\nb", "id": 3}\n\n{"text": " c"}\n', encoding="utf-8")
    assert read_prompts(path) == ("a\nb", " c")
    assert read_prompts('{"prompt": "x"}') == ("x",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the prompts: no prompts; put one on each line"),
        ("\n \n", "no prompts; put one on each line"),
        ('{"prompt": "a"}\n{"prompt": ', "the prompts, line 2: not JSON"),
        ('{"prompt": "a"}\n\n["b"]', 'the prompts, line 3: must be an object with text in "prompt" or "text"'),
        ('{"prompt": 5}', "line 1: must be an object"),
        ('{"prompt": " "}', "line 1: must be an object"),
        ('{"question": "a"}', "line 1: must be an object"),
        ('{"prompt": ' + "[" * 100_000, "line 1: not JSON"),
        ("a\n" * 10_001, "has 10,001 prompts; the limit is 10,000"),
    ],
)
def test_what_is_malformed_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_prompts(text)
    assert reason in str(refused.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "nowhere.txt", binary):
        with pytest.raises(ConfigError, match=f"{path}: cannot be read"):
            read_prompts(path)
    monkeypatch.setattr(prompts, "MAX_BYTES", 2)
    with pytest.raises(ConfigError, match="has 3 bytes; the limit is 2"):
        read_prompts(binary)
