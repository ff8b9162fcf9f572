"""Search in calls: a text is found however the JSON of a request wrote it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.traffic import LONGEST_BODY, CallRow, Traffic
from pages.parts.traffic.call_filter import SEARCHED, Wanted

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def row_of(body: bytes) -> CallRow:
    return Traffic().add("c", "/v1/completions", "m", body).row()


@given(TEXTS, TEXTS, TEXTS, st.booleans())
def test_a_text_of_a_request_is_found_however_it_was_escaped(
    before: str, text: str, after: str, is_ascii: bool
) -> None:
    row = row_of(json.dumps({"prompt": before + text + after}, ensure_ascii=is_ascii).encode())
    assert Wanted(text=text).matches(row)


@pytest.mark.parametrize(
    "written, text",
    [
        (r"Gr\u00d6\u00DFE", "größe"), (r"\u041F\u0440\u0438\u0432\u0435\u0442", "привет"), (r"a \"b\" c", '"B"'),
        (r"http:\/\/x", "http://x"), (r"\ud83d\ude00!", "\U0001f600!"), (r"C:\\u00f6", r"c:\u00f6"), (r"a\tb", "a\tb"),
        (r"\ud83d", "PROMPT"), (r"a\nb", r"a\nb"), ("Größe", "GRÖSSE"),
    ],
)  # fmt: skip
def test_case_and_way_of_escaping_make_no_difference(written: str, text: str) -> None:
    assert Wanted(text=text).matches(row_of(f'{{"prompt": "{written}"}}'.encode()))


@pytest.mark.parametrize("written, text", [(r"C:\\u00f6", "ö"), (r"\u00f6", "u00f7"), ("x", "y"), (r"\\n", "\n")])
def test_what_a_request_does_not_say_is_not_found(written: str, text: str) -> None:
    assert not Wanted(text=text).matches(row_of(f'{{"prompt": "{written}"}}'.encode()))


def test_what_is_searched_of_a_long_request_is_said() -> None:
    assert f"first {LONGEST_BODY:,} bytes" in SEARCHED
    text = r"\u00f6" * LONGEST_BODY
    assert Wanted(text="öö").matches(row_of(text.encode()))
    assert not Wanted(text="end").matches(row_of(f"{text}end".encode()))


@given(st.binary(max_size=300), TEXTS)
def test_any_bytes_can_be_searched(body: bytes, text: str) -> None:
    Wanted(text=text).matches(row_of(body + b"\\"))
