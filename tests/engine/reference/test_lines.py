import math

import pytest

from engine.errors import ConfigError
from engine.reference import NotedTiming, read_lines


def read(line: str) -> NotedTiming:
    (timing,) = read_lines(line)
    return timing


@pytest.mark.parametrize(
    ("line", "num_tokens", "seconds", "noted", "instances", "threads"),
    [
        ("235 tokens in 80s = 2.93 tokens/s (4 threads)", 235, 80, 2.93, 1, 4),
        ("393 tokens in 127 s", 393, 127, None, 1, None),
        ("840 tok, 45 sec, 2 instances, 8 threads each -> 18.67 t/s", 840, 45, 18.67, 2, 8),
        ("1,344 tokens in 1 min 36 s: 14 tok/sec (4x4)", 1344, 96, 14, 4, 4),
        ("1344 tokens in 1.6 minutes, instances=4 threads=4", 1344, 96, None, 4, 4),
        ("393 tokens 2:07", 393, 127, None, 1, None),
        ("3600 tokens in 1:00:00", 3600, 3600, None, 1, None),
        ("7200 tokens in 2 hours", 7200, 7200, None, 1, None),
        ("50 tokens, 12345 ms", 50, 12.345, None, 1, None),
        ("2,93 tokens/s", None, None, 2.93, 1, None),
        ("2.93 tokens per second", None, None, 2.93, 1, None),
        ("57 tps with 2 processes", None, None, 57, 2, None),
        ("400 ms/token", None, None, 2.5, 1, None),
        ("0.4 s per token", None, None, 2.5, 1, None),
        ("100 new tokens in 40 s", 100, 40, None, 1, None),
        ("eval time = 80000.00 ms / 235 runs ( 340.43 ms per token, 2.94 tokens per second)", 235, 80, 2.94, 1, None),
    ],
)
def test_spellings(
    line: str, num_tokens: int | None, seconds: float | None, noted: float | None, instances: int, threads: int | None
) -> None:
    timing = read(line)
    assert timing.num_tokens == num_tokens
    assert timing.seconds == (None if seconds is None else pytest.approx(seconds))
    assert timing.noted_per_s == (None if noted is None else pytest.approx(noted))
    assert (timing.instances, timing.threads) == (instances, threads)
    assert timing.remark == ""
    expected = num_tokens / seconds if num_tokens and seconds else noted
    assert timing.tokens_per_s == pytest.approx(expected)


def test_other_words_are_the_label() -> None:
    timing = read("c7i.4xlarge, OpenBLAS Q4_K_M: 840 tokens in 45 s (2x8), 2.7 GB RAM")
    assert timing.label == "c7i.4xlarge OpenBLAS Q4_K_M"
    assert timing.memory_gb == 2.7
    assert read("Mixtral-8x7B 100 tokens in 50 s").label == "Mixtral-8x7B"
    assert read("<script>alert(1)</script> 4 tok/s").label


def test_empty_lines_and_remarks_are_passed_over() -> None:
    timings = read_lines("# my laptop\n\n4 tok/s\n   \n5 tok/s\n")
    assert [(timing.line, timing.tokens_per_s) for timing in timings] == [(3, 4), (5, 5)]


@pytest.mark.parametrize(
    "line", ["394 tokens in 100 s = 3.9 tok/s", "316 tokens in 97 s = 3.3 tok/s", "447 tokens in 115s = 3.88 tokens/s"]
)
def test_rounding_is_no_contradiction(line: str) -> None:
    assert read(line).remark == ""


def test_a_speed_that_contradicts_its_own_line_is_reported() -> None:
    timing = read("235 tokens in 80s = 29.3 tokens/s")
    assert timing.tokens_per_s == 235 / 80
    assert timing.remark == "says 29.3 tok/s, but 235 tokens in 80.0 s is 2.94 tok/s: the latter is used"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no timing"),
        ("# nothing", "no timing"),
        ("4 tok/s\nhello", "line 2: 'hello'"),
        ("235 tokens", "line 1: .*needs tokens and a time"),
        ("-235 tokens in 80 s", "line 1"),
        ("0 tokens in 80 s", "line 1: tokens = 0"),
        ("235 tokens in 0 s", "line 1: time = 0"),
        ("235 tokens in " + "9" * 400 + " s", "line 1: time"),
        ("2.5 tokens in 80 s", "whole number"),
        ("0 tok/s", "tokens/s = 0"),
        ("235 tokens in 80 s, 393 tokens in 127 s", "two token counts"),
        ("prompt eval time = 100.00 ms / 20 tokens", "line 1: is a prompt timing"),
        ("4 tok/s 0x4", "instances and threads must be at least 1"),
        ("4 tok/s " + "x" * 500, "line 1: has 508 characters"),
        ("\n" * 10_001, "10,001 lines"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_lines(text)


def test_nothing_in_a_line_takes_long() -> None:
    for line in ("1," * 249, "1" * 499, "1 t " * 120, "t" * 500, "1 min " * 80, ":" * 500):
        try:
            assert not math.isnan(read(line).tokens_per_s)
        except ConfigError as error:
            assert "line 1" in str(error)
