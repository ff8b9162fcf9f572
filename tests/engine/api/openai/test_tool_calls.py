"""Calls of tools in the text of an answer: each form, whole and in any pieces; what is no call stays content."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.tool_calls import Arguments, CallBegins, Content, Piece, ToolForm, form_of, parser_of

NAMES = ("weather", "clock")
ONE = '{"name": "weather", "arguments": {"city": "} \\"x\\" </tool_call>"}}'
LLAMA = '{"name": "weather", "parameters": {"city": "Bonn"}}'
TWO = '{"arguments": {}, "name": "clock"}'


def parsed(form: ToolForm, pieces: Sequence[str], most: int = 9) -> tuple[str, list[tuple[str, str]]]:
    """Return the content and the calls."""
    parser = parser_of(form, NAMES, most)
    found: list[Piece] = [piece for text in pieces for piece in parser.push(text)]
    found += parser.end()
    calls: list[tuple[str, str]] = []
    for piece in found:
        if isinstance(piece, CallBegins):
            calls.append((piece.name, ""))
        elif isinstance(piece, Arguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return "".join(piece.text for piece in found if isinstance(piece, Content)), calls


WEATHER = ("weather", '{"city": "} \\"x\\" </tool_call>"}')
CLOCK = ("clock", "{}")
BONN = ("weather", '{"city": "Bonn"}')
BOTH = f"Well.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>{TWO}</tool_call>\n"
CASES = [
    (ToolForm.HERMES, BOTH, "Well.", [WEATHER, CLOCK]),
    (ToolForm.HERMES, f"<tool_call>{ONE}", "", [WEATHER]),
    (ToolForm.HERMES, f"<tool_call>{ONE}</tool", "", [WEATHER]),
    (ToolForm.HERMES, f"<tool_call>{ONE}</tool_call> Done.", " Done.", [WEATHER]),
    (ToolForm.MISTRAL, f"[TOOL_CALLS] [{ONE}, {TWO}]", "", [WEATHER, CLOCK]),
    (ToolForm.MISTRAL, f"[TOOL_CALLS]{ONE}", "", [WEATHER]),
    (ToolForm.LLAMA, LLAMA, "", [BONN]),
    (ToolForm.LLAMA, f"<|python_tag|>{LLAMA}; {LLAMA}", "", [BONN, BONN]),
    (ToolForm.LLAMA, f"See: <|python_tag|>{LLAMA}", "See:", [BONN]),
    (ToolForm.HELD, f" {ONE}", "", [WEATHER]),
    (ToolForm.HELD, '{"name": "weather", "arguments": {"city": "Bo', "", [("weather", '{"city": "Bo')]),
]  # fmt: skip
CONTENT = [
    (ToolForm.HERMES, "No call, <tool_cal"),
    (ToolForm.HERMES, "<tool_call>{]}</tool_call> a"),
    (ToolForm.HERMES, '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>'),
    (ToolForm.HERMES, '<tool_call>{"name": "clock", "arguments": {"a": NaN}}</tool_call>'),
    (ToolForm.HERMES, '<tool_call>{"name": "clock", "arguments": {'),
    (ToolForm.HERMES, "<tool_call>"),
    (ToolForm.HERMES, "<tool_call> \n"),
    (ToolForm.HERMES, '<tool_call>{"name": "clock", "arguments": {"a": ' + "[" * 5000 + "]" * 5000 + "}}"),
    (ToolForm.MISTRAL, "[TOOL_CALLS][]"),
    (ToolForm.MISTRAL, '[TOOL_CALLS][{"name": "clock"}] x'),
    (ToolForm.LLAMA, '{"name": "Bob", "parameters": {}} is his name.'),
    (ToolForm.LLAMA, '  {"a": 1'),
    (ToolForm.LLAMA, "  \n"),
    (ToolForm.HELD, '{"name": "wea'),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES)
def test_calls_are_found_whole_and_letter_by_letter(
    form: ToolForm, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert parsed(form, [text]) == parsed(form, list(text)) == (content, calls)


@pytest.mark.parametrize(("form", "text"), CONTENT)
def test_what_is_no_call_stays_content(form: ToolForm, text: str) -> None:
    assert parsed(form, [text]) == parsed(form, list(text)) == (text, [])


def test_calls_beyond_the_most_are_dropped() -> None:
    assert parsed(ToolForm.MISTRAL, [f"[TOOL_CALLS][{ONE},{TWO}]"], most=1) == ("", [WEATHER])


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", ONE, TWO, LLAMA, "{", "}", "[", "]", ",", ";",
     '"', "\\", " ", "\n", "a", "<", "{}", '{"name": 1}']
)  # fmt: skip


@given(st.sampled_from(list(ToolForm)), st.lists(PIECES, max_size=9), st.data())
def test_pieces_of_any_size_give_the_same(form: ToolForm, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    content, calls = parsed(form, pieces)
    assert (content, calls) == parsed(form, [text])
    assert form == ToolForm.HELD or all(json.loads(arguments) is not None for _, arguments in calls)
    if not calls:
        assert content == text


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", ToolForm.HERMES),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", ToolForm.MISTRAL),
        ('{% if tools %}{"name": function name, "parameters": {}}{% endif %}', ToolForm.LLAMA),
        ("{% if tools %}<|python_tag|>{% endif %}", ToolForm.LLAMA),
        ("{% if tools %}something else{% endif %}", None),
        ("{% if tools %}<tool_call>\\n<function=example><parameter=a>1</parameter></function>{% endif %}", None),
        ("{% if tools %}<tool_call>{name}\\n<arg_key>{key}</arg_key>{% endif %}", None),
        ("{% if tools %}within <tool_call></tool_call>: <tool_calls>[{...}]</tool_calls>{% endif %}", None),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", None),
        ("<tool_call>", None),
        ("", None),
    ],
)
def test_the_form_is_that_of_the_template(template: str, form: ToolForm | None) -> None:
    assert form_of(template) == form
