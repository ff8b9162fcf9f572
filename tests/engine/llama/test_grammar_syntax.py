"""Grammars as we and llama.cpp read them: nothing that llama.cpp accepts is misread, and limits are exact."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.llama import grammar_ambiguity, grammar_syntax
from engine.llama.sandbox_program import check_grammar
from engine.specs import MAX_GRAMMAR_CHARACTERS

READ = [
    'root ::= "a"',
    'root ::= "a" # why\n  # and more\n',
    'root ::=\n  "a" |\n  "b"\nother-1 ::= [^\\]\\n-]',
    'root ::= ("a"\n  "b") | (\n "c" )',
    'root ::= "\\"|(" [\\"(|] "\\x41\\u00e9\\U0001F600"',
    'root ::= "é🐈"{2} [é-ü]{0,3} .{3,}',
    'root ::= <[5]>* !<[6]> "<think>"',
    'root ::= "" | "a"? ("b"*)* ("c"{2}){3}',
    'root ::= "a" { 2 , 3 } \r\nx ::= "b"\r\n',
    'root ::= () "a" | ',
]


@pytest.mark.parametrize("text", READ)
def test_what_llama_cpp_takes_is_taken(text: str) -> None:
    check_grammar(text)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('root ::= ("a" | x){2,3}', {"root": [[((2, 3), [["a"], ["x"]])]]}),
        ('root ::= "a"+ .\nx ::= | [b-]', {"root": [[((1, None), "a"), "."]], "x": [[], ["[b-]"]]}),
    ],
)
def test_the_structure_is_what_is_written(text: str, rules: dict[str, object]) -> None:
    def plain(item: grammar_syntax.Item) -> object:
        node: object = item.node
        if isinstance(item.node, list):
            node = [[*map(plain, items)] for items in item.node]
        elif isinstance(item.node, grammar_syntax.Terminal):
            node = item.node.text.strip('"')
        return node if (item.low, item.high) == (1, 1) else ((item.low, item.high), node)

    found = {name: [[*map(plain, items)] for items in rule] for name, rule in grammar_syntax.read(text).items()}
    assert found == rules


def grow(limit: int, text: str) -> list[str]:
    return [text.format(limit), text.format(limit + 1)]


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        grow(grammar_syntax.MAX_REPETITIONS, 'root ::= "a"{{{0}}}'),
        grow(grammar_syntax.MAX_REPETITIONS, 'root ::= "a"{{0,{0}}}'),
        grow(grammar_syntax.MAX_REPETITIONS, 'root ::= "a"{{{0},}}'),
        [f'root ::= {"(" * num}"a"{")" * num}' for num in (grammar_syntax.MAX_NESTING, grammar_syntax.MAX_NESTING + 1)],
        [
            "root ::= " + " | ".join(f'"{word}"' for word in range(num))
            for num in (grammar_syntax.MAX_WAYS, grammar_syntax.MAX_WAYS + 1)
        ],
        [f'root ::= "{"a" * num}"' for num in (grammar_syntax.MAX_ELEMENTS - 1, grammar_syntax.MAX_ELEMENTS)],
        [f'root ::= "a"{" " * num}' for num in (MAX_GRAMMAR_CHARACTERS - 12, MAX_GRAMMAR_CHARACTERS - 11)],
        ["\n".join(f'{"root" if not n else f"r{n}"} ::= "a"' for n in range(num)) for num in (10_922, 20_001)],
        ['root ::= ("a"?){0,31}', 'root ::= ("a"?){0,32}'],
    ],
)  # fmt: skip
def test_each_limit_is_where_it_says(within: str, beyond: str) -> None:
    grammar_syntax.read(within)
    with pytest.raises(ConfigError, match="at most|the limit"):
        grammar_syntax.read(beyond)


TERMINALS = st.sampled_from(['"a"', '"a\\"b"', "[a-z]", "[^\\]]", ".", "<[3]>", '""', "x", "y"])
TIMES = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"])
EXPRESSIONS = st.recursive(
    st.builds(str.__add__, TERMINALS, TIMES),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.builds(
            lambda some, times: f"( {' |  '.join(some)} ){times}", st.lists(inner, min_size=1, max_size=3), TIMES
        ),
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('root ::= ?', "line 1, column 10, at '?'"),
        ('root ::= "a"\nx ::= "b" )', "line 2, column 11, at ')'"),
        ('root ::= "a" |\n\n  {', "line 3, column 3, at '{'"),
    ],
)  # fmt: skip
def test_a_syntax_error_is_reported_with_its_line_and_column(text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"has a syntax error on {place}")):
        grammar_syntax.read(text)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(root=EXPRESSIONS, x=EXPRESSIONS, y=EXPRESSIONS)
def test_drawn_grammars_are_read_as_llama_cpp_reads_them(root: str, x: str, y: str) -> None:
    """Where our reader reports no limit, llama.cpp's own parser has nothing to add; it always ends."""
    try:
        check_grammar(f"root ::= {root}\nx ::= {x} # x\ny ::= {y}\n")
    except ConfigError as error:
        assert re.search("left recursion|ambiguous|ways|exceeds sane defaults|expecting preceding item", str(error)), (
            error
        )


def decoyed(loop: str, decoy: str) -> str:
    """Return a repetition of eight identical choices, beside nine that begin with another character and differ."""
    decoys = (decoy.replace("{}", chr(ord("a") + number)) for number in range(9))
    return f"root ::= ({' | '.join([*decoys, *[loop] * 8])})*"


AMBIGUOUS = [
    'root ::= s\ns ::= "a" s "b" | "a" s "c" | ""',
    'root ::= "x" s\ns ::= [a-z] s "b" | [a-y] s "c" | [b-z] s "d" | ""',
    "root ::= ([a-z] | [a-z] | [a-z])+",
    'root ::= ("a" | "a" | "a" "a" | "a" "a")* "b"',
    'root ::= ([^b] | [^c] | "d")* "e"',
    'root ::= (. | "\\u0041" | "A")*',
    "root ::= " + " ".join(["[a-z]*"] * 14),
    *(
        decoyed(loop, decoy)
        for loop in ("[ a-xA-Z]", '"ab"', '"a" [b-z]')
        for decoy in ('"~{}"', '"~" ("{}" | "-{}" | "_{}x")')
    ),
    "\n".join(["root ::= r0", *(f"r{n} ::= [a-z]? r{n + 1}" for n in range(900)), 'r900 ::= "x"']),
]
PLAIN = [
    'root ::= ([^"] | "\\\\" .)* "x"',
    'root ::= ([a-z]+ " "?)+ "."',
    "root ::= ws ws ws ws [a-z]\nws ::= [ \\t\\n]*",
    'root ::= sentence+\nsentence ::= word (" " word)* "." " "?\nword ::= [a-zA-Z\']+',
    'root ::= "\\"" [^"]{0,2000} "\\""',
    "root ::= " + " | ".join(f'"\\"{word}\\""' for word in range(1000)),
    'root ::= (!<[5]> | "a")*',
]


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_ambiguous_grammars_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is ambiguous(: rule .* the limit| or too large: .* the limit, .* in rule )"):
        grammar_ambiguity.check(grammar_syntax.read(text))


@pytest.mark.parametrize("text", PLAIN)
def test_grammars_of_everyday_are_not_ambiguous(text: str) -> None:
    grammar_ambiguity.check(grammar_syntax.read(text))


def test_the_grammars_that_come_with_llama_cpp_python_are_taken() -> None:
    from llama_cpp import llama_grammar

    texts = [text for name, text in vars(llama_grammar).items() if name.endswith("_GBNF")]
    assert len(texts) >= 6
    for text in texts:
        check_grammar(text)
