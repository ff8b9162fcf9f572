"""Hostile grammars and schemas: an error that names the limit, while the neighbours' tokens keep coming."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import ConfigError, Pool, Sampling
from tests.engine.pool.hostile import CPU, TIME, refusal


def chain(length: int, rule: str, last: str = '"a"') -> str:
    """Return rules r0 to r`length`; {} in `rule` stands for the next one."""
    rules = [f"r{number} ::= {rule.format(f'r{number + 1}')}" for number in range(length)]
    return "\n".join(["root ::= r0", *rules, f"r{length} ::= {last}"])


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def ask(pool: Pool, **given: str) -> str:
    return refusal(pool, lambda: pool.submit("Once", Sampling(seed=1, **given), max_tokens=3).result(60))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grammar", "limit"),
    [
        ('root ::= "a"{5,2}', "the first number must not be larger"),
        ('root ::= [a-z]{2000,1}', "the first number must not be larger"),
        ('root ::= "a"{3000}', "at most 2,000"),
        ('root ::= "a"{0,99999999999999999999999}', "at most 2,000"),
        ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "nests more than 100 groups"),
        ("root ::= " + "(" * 101 + '"a"' + ")" * 101, "nests more than 100 groups"),
        ("root ::= " + " | ".join(f'"{number}"' for number in range(200_000)), "at most 262,144"),
        ("root ::= " + " | ".join(f'"{number}"' for number in range(20_000)), "more than 1,000 ways"),
        ('root ::= "' + "a" * 100_000 + '"{2000}', "at most 200,000"),
        ('root ::= ("' + "a" * 1000 + '"){0,2000} "' + "b" * 100 + '"{0,2000}', "at most 200,000"),
        ("root ::= " + " ".join(['"a"{0,1900}'] * 20), "at most 20,000|rejected by llama.cpp"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= e root "x" | "b"\ne ::= f\nf ::= "" | "q"', "left recursion"),
        ('root ::= a "x"\na ::= b? c\nc ::= root | "y"\nb ::= "z"', "left recursion"),
        (chain(60, "{0} | {0}"), "more than 1,000 ways"),
        (chain(60, '{0} "a" | {0} "b"'), "more than 1,000 ways"),
        (chain(60, '{0} {0} | ""', '""'), "more than 1,000 ways|left recursion"),
        (chain(900, "[a-z]? {0}"), "ways|150,000 steps"),
        ("root ::= ([a-z ]? ){0,900}", "more than 1,000 ways"),
        ('root ::= s\ns ::= "a" s "b" | "a" s "c" | ""', "ambiguous"),
        ('root ::= "x" s\ns ::= [a-z] s "b" | [a-y] s "c" | [b-z] s "d" | ""', "ambiguous"),
        ("root ::= ([a-z] | [a-z] | [a-z])+", "ambiguous"),
        ('root ::= ("a" | "a" | "a" "a" | "a" "a")* "b"', "ambiguous"),
        ("root ::= (", "ends unexpectedly"),
        ('root ::= "\\q"', "unknown escape"),
        ("root ::= nothing", "Undefined rule identifier 'nothing'"),
        ("root ::= <no-such-token>", "tokens that this model has"),
        ('other ::= "a"', "root"),
    ],
)  # fmt: skip
def test_a_grammar_that_attacks_ends_with_the_limit(attacked: Pool, grammar: str, limit: str) -> None:
    said = ask(attacked, grammar=grammar)
    assert any(words in said for words in (*limit.split("|"), TIME, CPU)), said
    assert "grammar" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"type": "string", "pattern": "^]$"}, TIME),
        ({"type": "string", "pattern": "^}$"}, TIME),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "^a}b]$"}}}, TIME),
        ({"type": "string", "pattern": "^a{100000000}$"}, "at most 2,000"),
        ({"type": "string", "pattern": "^" + "(" * 300 + "a" + ")" * 300 + "$"}, "100 groups|nested too deeply"),
        ({"type": "string", "pattern": "^(a|a|a|a)*$"}, "ambiguous"),
        ({"type": "array", "items": {}, "minItems": 50_000_000}, "minItems = 50000000 in #: .* from 0 to 2,000"),
        ({"type": "array", "items": {}, "maxItems": 10**30}, "maxItems = 1.* from 0 to 2,000"),
        ({"type": "string", "maxLength": 100_000}, "maxLength = 100000 in #: .* from 0 to 2,000"),
        ({"properties": {"a": {"type": "string", "maxLength": 2001}}}, "maxLength = 2001 in #/properties/a"),
        ({"type": "string", "minLength": 9, "maxLength": 3}, "minLength = 9 in #, which is more than maxLength = 3"),
        ({"type": "string", "maxLength": -1}, "must be a whole number"),
        ({"type": "string", "maxLength": "9"}, "must be a whole number"),
        ({"enum": [*range(100_000)]}, "at most 1,000 are allowed"),
        ({"enum": [*range(30_000)]}, "30,000 members in #/enum; at most 1,000"),
        ({"anyOf": [{"const": number} for number in range(5000)]}, "5,000 members in #/anyOf; at most 1,000"),
        ({"prefixItems": [{}] * 5000}, "5,000 members in #/prefixItems; at most 1,000"),
        ({"properties": {f"p{number}": {} for number in range(2000)}}, "2,000 properties in #; at most 256"),
        (nested(100), "more than 128 levels"),
        ({"$ref": "#/a", "a": {"$ref": "#/a"}}, "cannot be converted to a grammar"),
        ({"anyOf": [{"$ref": "#/a"}], "a": {"anyOf": [{"$ref": "#/a"}, {"type": "string"}]}}, "left recursion"),
        ({"anyOf": [{"$ref": "#/a"}], "a": {"anyOf": [{"$ref": "#/b"}]}, "b": {"$ref": "#/a"}}, "recursion|ref"),
        ({"$ref": "https://example.com/x"}, "not allowed"),
        ({"$ref": "#/nowhere"}, "Error resolving ref"),
        ({"type": "nonsense"}, "Unrecognized schema"),
        ([1], "not a JSON object"),
        (None, "not a JSON object"),
    ],
)  # fmt: skip
def test_a_schema_that_attacks_ends_with_the_limit(attacked: Pool, schema: object, limit: str) -> None:
    said = ask(attacked, json_schema=json.dumps(schema))
    assert said.startswith("json_schema"), said
    assert re.search(f"{limit}|{TIME}|{CPU}", said), said


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, "NaN", "9" * 100_000])
def test_what_is_no_json_is_no_schema(attacked: Pool, text: str) -> None:
    assert ask(attacked, json_schema=text).startswith("json_schema")


CHARACTERS = st.sampled_from(['"a"', '"ab"', "[a-z]", "[^a]", ".", '""', "r1", "r2", "root"])
TIMES = st.sampled_from(["", "*", "+", "?", "{2}", "{0,3}", "{3,}", "{2000}", "{0,2000}", "{900,1000}", "{5,2}"])
SEQUENCES = st.recursive(
    st.builds(str.__add__, CHARACTERS, TIMES),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(" ".join),
        st.builds(lambda some, times: f"({' | '.join(some)}){times}", st.lists(inner, min_size=1, max_size=4), TIMES),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(rules=st.tuples(SEQUENCES, SEQUENCES, SEQUENCES))
def test_no_drawn_grammar_disturbs_a_neighbour(attacked: Pool, rules: tuple[str, str, str]) -> None:
    grammar = "root ::= {}\nr1 ::= {}\nr2 ::= {}".format(*rules)
    said = ask(attacked, grammar=grammar)
    assert not said or "grammar" in said


@pytest.mark.parametrize("low", [0, 1, 3])
def test_long_texts_and_lists_work_up_to_the_limit(attacked: Pool, low: int) -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 2000}, "minItems": low, "maxItems": 2000}
    sampling = Sampling(json_schema=json.dumps(schema), seed=4, temperature=0.0)
    job = attacked.submit("A list:", sampling, max_tokens=30)
    assert job.result(60).text.lstrip().startswith("[")
    assert job.sampling is sampling, "what was asked for is what is kept, not what it was converted to"


def test_a_schema_bounds_what_is_written(attacked: Pool) -> None:
    schema = {"type": "array", "items": {"enum": ["x", "yy"]}, "minItems": 2, "maxItems": 3}
    for seed in range(5):
        sampling = Sampling(json_schema=json.dumps(schema), seed=seed, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0)
        written = json.loads(attacked.submit("A list:", sampling, max_tokens=200).result(60).text)
        assert 2 <= len(written) <= 3
        assert set(written) <= {"x", "yy"}


def test_a_token_that_the_model_has_not_is_refused_before_it_comes_to_a_worker(attacked: Pool) -> None:
    for grammar in ("root ::= <no-such-token>", "root ::= !<no-such-token>+", 'root ::= "<s>" <no-such-token> <s>'):
        with pytest.raises(ConfigError, match="grammar names '<no-such-token>': it may only name tokens"):
            attacked.check_sampling(Sampling(grammar=grammar))
    for grammar in ('root ::= "<no-such-token>"', "root ::= [<no-such-token>] # <no-such-token>", "root ::= <s>? </s>"):
        attacked.check_sampling(Sampling(grammar=grammar))
    done = attacked.submit("Once", Sampling(grammar="root ::= <s> <s>", seed=1), max_tokens=4).result(60)
    assert done.ids[:2] == [attacked.vocabulary.bos] * 2 and done.finish_reason == "stop"


def test_a_grammar_is_checked_once(attacked: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Sampling(grammar='root ::= "checked once"'), Sampling(grammar='root ::= "checked" once')
    first = attacked.submit("Once", good, max_tokens=32).result(60)
    with pytest.raises(ConfigError, match="once") as refused:
        attacked.submit("Once", bad)
    monkeypatch.setattr(attacked._sandbox, "_ask", None)
    attacked.check_sampling(good)
    with pytest.raises(ConfigError) as checked:
        attacked.check_sampling(bad)
    assert str(checked.value) == str(refused.value)
    assert attacked.submit("Once", good, max_tokens=32).result(60).text == first.text == "checked once"
    with pytest.raises(ConfigError) as again:
        attacked.submit("Once", bad)
    assert str(again.value) == str(refused.value)
