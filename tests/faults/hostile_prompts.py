"""Hostile prompts and parameters: grammars and schemas of a foreign trial, prompts and numbers typed by hand."""

import json
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.faults import foreign
from tests.faults.app import until
from tests.faults.failure import MOST_S, Failure
from tests.faults.foreign import nasty
from tests.faults.page import Page
from tests.faults.world import LONG, World

Sampling = dict[str, Any]


def hostile_grammar(world: World, draw: random.Random) -> None:
    """A foreign trial is opened and run again, whose grammar, schema, biases or breakers are poison.

    Its trial ends in time, in whatever words; another that streams beside it ends well.
    """
    name = draw.choice(sorted(SAMPLINGS))
    sampling = SAMPLINGS[name](draw)
    world.doing = f"{name}: {str(sampling)[:120]}"
    neighbour = world.begin_trial(draw, LONG, number=1)
    id, content = foreign.trial_with(**sampling)
    world.lose_tab()  # its uploader is named after the files that it took in before
    page = world.tab()
    page.go_to("history", "view=runs")
    page.upload("history_file_0", f"{id}.trial", content)
    if page.find("history_take_in") is not None:
        page.press("history_take_in")
        page.go_to("", f"trial={id}")
        if page.find("do_run") is not None and not page.errors():
            page.fill(lab_max_tokens=draw.choice((8, 32)))
            page.press("do_run")
            if page.trial and page.trial != id:
                # Ended well, it counts as kept; what it was refused for is for the page to say.
                world.ending(page.trial)
    world.lose_tab()
    world.tab(1).press("do_stop") if world.tab(1).find("do_stop") is not None else None
    end = world.ending(neighbour)
    if end.get("error"):
        raise Failure(f"another trial that streamed failed with it: {end['error']}")


def _can_run(page: Page) -> bool:
    page.rerun()
    return page.find("do_run") is not None


def hostile_prompt(world: World, draw: random.Random) -> None:
    """Prompts and numbers that nobody means; the page runs them or says why not."""
    page = world.tab()
    page.go_to("")
    if page.find("do_stop") is not None:
        page.press("do_stop")
        until(partial(_can_run, page), "a stopped trial did not end")
    filled: dict[str, Any] = {"lab_max_tokens": draw.choice((8, 0))}
    for key in draw.sample(sorted(FIELDS), draw.randint(1, 3)):
        filled[key] = FIELDS[key](draw)
    world.doing = f"run with {str(filled)[:200]}"
    page.fill(**filled)
    before = page.trial
    page.press("do_run")
    if page.trial != before:
        if world.ending(page.trial, most_s=MOST_S).get("error"):
            page.rerun()
    elif not page.errors():
        raise Failure("it neither ran nor said why not")
    if draw.random() < 0.1:
        world.browser().visit(f"{world.app.url}/?trial={page.trial}")
    world.lose_tab()


def _number(draw: random.Random) -> float:
    return draw.choice((-1, 0, 1, 2, 1e9, 1e18, -1e18, 1e308, 1e-300, 0.3, 512, 4_294_967_296))


def _lines(draw: random.Random) -> str:
    return "\n".join(nasty(draw)[:200] for _ in range(draw.choice((1, 30, 3000))))


FIELDS: dict[str, Callable[[random.Random], Any]] = {
    "lab_prompt": lambda draw: "".join(nasty(draw) for _ in range(draw.choice((1, 5, 400)))),
    "lab_max_tokens": _number, "lab_temperature": _number, "lab_seed": _number, "lab_top_k": _number,
    "lab_top_p": _number, "lab_min_p": _number, "lab_typical_p": _number, "lab_top_n_sigma": _number,
    "lab_repeat_penalty": _number, "lab_penalty_last_n": _number, "lab_dry_multiplier": _number,
    "lab_dry_base": _number, "lab_dry_penalty_last_n": _number, "lab_mirostat": _number, "lab_mirostat_tau": _number,
    "lab_recorded": _number, "lab_stop": _lines, "lab_breakers": _lines,
    "lab_scored": lambda draw: True, "lab_repeatable": lambda draw: True,
}  # fmt: skip


def _grammar(text: str) -> Callable[[random.Random], Sampling]:
    return lambda draw: {"grammar": text}


def _schema(schema: object) -> Callable[[random.Random], Sampling]:
    return lambda draw: {"json_schema": json.dumps(schema)}


def _deep(unit: dict[str, Any], depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {**unit, "items": schema, "properties": {"a": schema}}
    return schema


def _repeated(before: str, unit: str, after: str, *counts: int) -> Callable[[random.Random], Sampling]:
    def make(draw: random.Random) -> Sampling:
        count = draw.choice(counts)
        return {"grammar": before + unit * count + after + (")" * count if unit == "(" and after else "")}

    return make


def _bias(draw: random.Random) -> list[Any]:
    return [draw.choice((-1, 0, 1 << 31, 1 << 62)), draw.choice((math.nan, math.inf, 1e308))]


PATTERNS = ("^]$", "^}$", "^)$", "^a{100000000}$", "^(((((a*)*)*)*)*)*$", "^[$", "^" + "(" * 3000, "^" + "a?" * 3000)
SAMPLINGS: dict[str, Callable[[random.Random], Sampling]] = {
    "open parentheses": _repeated("root ::= ", "(", "", 50, 5000, 100_000),
    "closed parentheses": _repeated("root ::= ", "(", '"a"', 500, 50_000),
    "many alternatives": _repeated("root ::= ", '"a" | ', '"b"', 3000, 200_000),
    "a long sequence": _repeated("root ::= ", '"a" ', "", 3000, 200_000),
    "a repetition backwards": _grammar('root ::= "a"{5,2}'),
    "a long repetition": lambda draw: {"grammar": f'root ::= "a"{{{draw.choice((2000, 10**6, 10**9))}}}'},
    "repetitions of repetitions": _grammar("root ::= " + "(" * 6 + '"a"' + "{99})" * 6),
    "left recursion": _grammar('root ::= root "a" | root'),
    "recursion through others": _grammar("root ::= a\na ::= b\nb ::= c\nc ::= a"),
    "nothing but empties": _grammar('root ::= ("" | "")* ("" | "")*'),
    "ambiguity": _grammar('root ::= (a a a a a a a a)*\na ::= "x"* | "a"* | [a-z]*'),
    "many rules": _grammar(
        "root ::= r1\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(1, 20_000)) + '\nr20000 ::= "a"'
    ),
    "no root": _grammar('other ::= "a"'),
    "no grammar": lambda draw: {"grammar": nasty(draw)},
    "a class of nothing": _grammar("root ::= [^\\x00-\\U0010FFFF]"),
    "a wrong escape": _grammar('root ::= "\\xZZ" "\\UFFFFFFFF"'),
    "a pattern": lambda draw: _schema({"type": "string", "pattern": draw.choice(PATTERNS)})(draw),
    "a long string": lambda draw: _schema({"type": "string", "maxLength": draw.choice((2000, 10**5, 10**9))})(draw),
    "many items": _schema({"type": "array", "items": {"type": "string"}, "minItems": 50_000_000}),
    "many values": _schema({"enum": list(range(100_000))}),
    "a schema within itself": _schema({"$ref": "#"}),
    "a schema elsewhere": _schema({"$ref": "http://127.0.0.1:1/x"}),
    "a deep schema": _schema(_deep({"type": "array"}, 10)),
    "a wide schema": _schema(_deep({"type": "object"}, 12)),
    "no schema": lambda draw: {"json_schema": draw.choice((nasty(draw), "[" * 50_000, "[]", "null", '{"type": 5}'))},
    "many biases": lambda draw: {"logit_bias": [[n % 5000, 1.0] for n in range(draw.choice((10, 200_000)))]},
    "biases beyond bounds": lambda draw: {"logit_bias": [_bias(draw)]},
    "many breakers": lambda draw: {
        "dry_multiplier": 1.0, "dry_sequence_breakers": ["a", "b"] * draw.choice((50, 50_000))
    },
    "long breakers": lambda draw: {
        "dry_multiplier": 1.0, "dry_sequence_breakers": ["x" * draw.choice((100, 1_000_000))]
    },
    "a long look back": lambda draw: {"penalty_last_n": draw.choice((1 << 30, 1 << 62)), "repeat_penalty": 1.5},
}  # fmt: skip
