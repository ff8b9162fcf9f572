"""Ambiguity check: no decoy hides an ambiguous loop, no accepted grammar has more parses than the limit, large grammars
of everyday pass."""

import json
import random
import string
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.llama import grammar_ambiguity, grammar_syntax
from engine.llama.json_schema import gbnf_of_schema
from engine.llama.sandbox import Sandbox
from engine.specs import Sampling
from tests.engine.llama.grammar_parses import Expanded

# Grammars that attack: a core, which is rule `s`, with alternatives beside it, decoys and a way from root to it.


def recursion(draw: random.Random) -> list[str]:
    return [f"[^{chr(65 + n)}] s [^{chr(75 + n)}]" for n in range(draw.randint(4, 8))] + ["[^Z]"]


def same_begin(draw: random.Random) -> list[str]:
    return [f'"a" s "{n}"' for n in range(draw.randint(2, 6))] + ['"q"']


def two_rules(draw: random.Random) -> list[str]:
    return ['("a" s "1" | "a" s "2")', '"a" ("a" s | "b" s) "3"', '"a" [ab] s', '"q"']


def loop(draw: random.Random) -> list[str]:
    inner = draw.choice(["[a-z] | [a-y] | [b-z]", " | ".join(['"ab"'] * 6), '"a" | "\\x61" | [a-b]', "[a-z]+ | [^0-9]"])
    return [f"({inner} | [b-y]){draw.choice(['*', '+', '{3,}', '{1,900}'])}" + ' "."']


def hidden_in_loop(draw: random.Random) -> list[str]:
    """A loop of two characters; more alternatives read its first character and then another one."""
    decoys = [f'"ac{character}"' for character in string.digits + string.ascii_uppercase[: draw.randint(0, 20)]]
    same = ['"ab"'] * 8
    return [f"({' | '.join(decoys + same)})*" + ' "."']


def tails(draw: random.Random) -> list[str]:
    return [f'"(" s {draw.choice(["[a-z]*", "[a-z]? [a-z]?", "[a-z]{0,3}"])}', '"q"']


def many_optional(draw: random.Random) -> list[str]:
    return [" ".join(["[a-z]*"] * draw.randint(14, 20))]


CORES = (recursion, same_begin, two_rules, loop, hidden_in_loop, tails, many_optional)


def wide(draw: random.Random, num: int) -> str:
    """Return many alternatives, harmless and costly to examine."""
    form = draw.choice(['"{}"', "[^{}]", '"~{}" [a-z]* "."', '"{}" ([0-9] "x")?'])
    return " | ".join(form.format(chr(0x4E00 + number)) for number in range(num))


DECOYS: tuple[Callable[[random.Random], str], ...] = (
    lambda draw: "",
    lambda draw: f"unused ::= {wide(draw, 200)}\n",
    lambda draw: "".join(f"u{number} ::= {wide(draw, 20)}\n" for number in range(100)),
    lambda draw: 's ::= "harmless"\n',  # the last rule of a name counts
    lambda draw: f"f ::= {wide(draw, 150)}\n",
)
WAYS: tuple[str, ...] = (
    "root ::= s\n",
    "root ::= f | s\n",
    "root ::= (f s)? s\n",
    'root ::= "0123456789012345678901234567890123456789" s\n',
    'root ::= [0-9]{40} ("x" | "y" f)? (f? (s)?)\n',
    'root ::= ("," s "," f)* "."\n',
    'root ::= a\na ::= "-" b?\nb ::= ("+" c){0,7}\nc ::= f "=" s\n',
    "root ::= <[5]> s <[6]>\n",
    'root ::= "\\"" [^"]* "\\"" ":" v\nv ::= "1" | "[" (v ("," v)*)? "]" | "{" s "}"\n',
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    opened = Sandbox()
    yield opened
    opened.close()


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(core=st.sampled_from(CORES), decoy=st.sampled_from(DECOYS), way=st.sampled_from(WAYS), draw=st.randoms())
def test_no_decoy_hides_an_ambiguous_rule(
    sandbox: Sandbox, core: Callable[..., list[str]], decoy: Callable[..., str], way: str, draw: random.Random
) -> None:
    alternatives = core(draw)
    draw.shuffle(alternatives)
    text = f"{decoy(draw)}{way}s ::= {' | '.join(alternatives)}\n"
    if "\nf ::=" not in f"\n{text}":
        text += 'f ::= "f"\n'
    with pytest.raises(ConfigError, match="is ambiguous|more than 1,000 ways|took longer than"):
        sandbox.compile(Sampling(grammar=text))


TERMINALS = st.sampled_from(['"a"', '"b"', '"ab"', '"ba"', '"aab"', "[ab]", ".", "x", "y"])
TIMES = st.sampled_from(["", "", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,2}", "{2,}"])
EXPRESSIONS = st.recursive(
    st.builds(str.__add__, TERMINALS, TIMES),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(" ".join),
        st.builds(lambda some, times: f"({' | '.join(some)}){times}", st.lists(inner, min_size=1, max_size=3), TIMES),
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[*HealthCheck])
@given(root=EXPRESSIONS, x=EXPRESSIONS, y=EXPRESSIONS)
def test_no_text_has_more_parses_than_an_accepted_grammar_may_have(
    monkeypatch: pytest.MonkeyPatch, root: str, x: str, y: str
) -> None:
    """With small limits, every text can be tried from every stack that a few characters lead to."""
    monkeypatch.setattr(grammar_ambiguity, "NUM_CHARACTERS", 5)
    monkeypatch.setattr(grammar_ambiguity, "MAX_PARSES", 40)
    try:
        rules = grammar_syntax.read(f"root ::= {root}\nx ::= {x}\ny ::= {y}\n")
        grammar_ambiguity.check(rules)
    except ConfigError:
        assume(False)
    expanded = Expanded(rules, "ab")
    for stack in list(expanded.single_stacks(4))[:50]:
        assert max(expanded.num_parses(stack, 5)) <= 40


def one_of(draw: random.Random, num: int) -> dict[str, object]:
    kinds = ["string", "integer", "number", "boolean", "null"]
    return {f"{word(draw)}{n}": {"type": draw.choice(kinds)} for n in range(num)}


def word(draw: random.Random) -> str:
    return "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9)))


def nested(draw: random.Random, depth: int) -> dict[str, object]:
    if not depth:
        return draw.choice(
            [
                {"type": "string", "format": "date-time"},
                {"enum": [word(draw) for _ in range(30)]},
                {"type": "array", "items": {"type": "number"}, "maxItems": 20},
                {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "number"}, {"type": "integer"}]},
            ]
        )
    members = {f"{word(draw)}{n}": nested(draw, depth - 1) for n in range(5)}
    return {"type": "object", "properties": members, "required": draw.sample(list(members), 3)}


def tools(draw: random.Random) -> dict[str, object]:
    def tool() -> dict[str, object]:
        name = {"const": f"{word(draw)}_{word(draw)}"}
        given = {"name": name, "arguments": {"type": "object", "properties": one_of(draw, 4)}}
        return {"type": "object", "properties": given, "required": ["name", "arguments"]}

    return {"type": "array", "items": {"anyOf": [tool() for _ in range(30)]}}


SCHEMAS: dict[str, Callable[[random.Random], object]] = {
    "anything": lambda draw: {},
    "100 optional properties": lambda draw: {"type": "object", "properties": one_of(draw, 100)},
    "properties of one prefix": lambda draw: {"properties": {f"property_{n}": {"type": "string"} for n in range(40)}},
    "990 values": lambda draw: {"enum": [f"{word(draw)}{n}" for n in range(990)]},
    "an array of numbers from a list": lambda draw: {"type": "array", "items": {"enum": [*range(600)]}},
    "an array of values of one prefix": lambda draw: {"items": {"enum": [f"https://host/{n}" for n in range(400)]}},
    "an object in an object": lambda draw: nested(draw, 3),
    "tools": tools,
    "the same long key": lambda draw: {
        "anyOf": [
            {"type": "object", "properties": {"a_very_long_name": {}, word(draw): {}}, "required": ["a_very_long_name"]}
            for _ in range(12)
        ]
    },
    "a tuple": lambda draw: {"prefixItems": [{"type": "string"}, {"type": "number"}] * 100},
}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", [1, 2])
def test_large_schemas_of_everyday_pass(name: str, seed: int) -> None:
    schema = SCHEMAS[name](random.Random(seed))
    grammar_ambiguity.check(grammar_syntax.read(gbnf_of_schema(json.dumps(schema))))


@pytest.mark.parametrize(
    "text",
    [
        f"root ::= f\nf ::= {wide(random.Random(1), 200)}\n",
        "root ::= (v \",\")* v\nv ::= " + " | ".join(f'"value number {number}"' for number in range(300)),
        'root ::= s\ns ::= "(" s ")" ws | "[" (s ("," ws s)*)? "]" | [a-z]+ ws\nws ::= [ \\t\\n]*',
        'root ::= ws e\ne ::= t (ws [-+] ws t)*\nt ::= p (ws "*" ws p)*\np ::= [0-9]+ | "(" ws e ws ")"\nws ::= " "*',
    ],
)  # fmt: skip
def test_wide_and_nested_grammars_pass(text: str) -> None:
    grammar_ambiguity.check(grammar_syntax.read(text))


def test_what_cannot_be_examined_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_ambiguity, "MAX_STEPS", 10)
    with pytest.raises(ConfigError, match="is ambiguous or too large: .* limit, 10 steps, in rule "):
        grammar_ambiguity.check(grammar_syntax.read('root ::= ("a" | "a" "b")* x\nx ::= [a-z]* "."'))


def test_rules_that_root_does_not_reach_are_left_out() -> None:
    grammar_ambiguity.check(grammar_syntax.read('root ::= "a"\ns ::= "a" s "b" | "a" s "c" | ""'))
