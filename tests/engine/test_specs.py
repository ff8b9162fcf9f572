"""Parameters of every type a caller may pass: converted to plain values where equivalent, otherwise refused by name."""

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
import pytest

from engine import ConfigError, EmbedSpec, Pool, PoolSpec, Request, Sampling, complete, embed
from engine.embedding.specs import EmbedOptions
from engine.specs import PoolOptions, RequestOptions, given_prompt


@pytest.mark.parametrize(
    ("options", "spec", "missing"),
    [
        (PoolOptions, PoolSpec, set[str]()),
        (RequestOptions, Request, {"generated", "forced"}),
        (EmbedOptions, EmbedSpec, {"model"}),
    ],
)
def test_the_keywords_of_a_call_are_the_fields_of_its_spec(options: Any, spec: Any, missing: set[str]) -> None:
    kinds = {field.name: field.type for field in fields(spec)}
    assert options.__annotations__.keys() == kinds.keys() - missing
    assert {name: kind for name, kind in options.__annotations__.items() if name != "stop"}.items() <= kinds.items()


def test_calls_without_a_pool_show_the_fields_of_all_their_specs() -> None:
    shown = inspect.signature(complete).parameters
    fields_of = {**Request.__dataclass_fields__, **PoolSpec.__dataclass_fields__}
    assert shown.keys() - {"prompts", "sampling", "model"} == fields_of.keys() - {"generated", "forced"}
    assert all(one.default == fields_of[name].default for name, one in shown.items() if name in fields_of)
    assert inspect.signature(embed).parameters.keys() - {"texts"} == EmbedSpec.__dataclass_fields__.keys()


def test_signatures_show_the_fields_of_the_spec() -> None:
    shown = inspect.signature(Pool.submit).parameters
    assert {name: shown[name].default for name in ("max_tokens", "stop", "generated")} == {
        "max_tokens": 128, "stop": (), "generated": 0,
    }  # fmt: skip
    assert inspect.signature(Pool).parameters["parallel"].default == 8
    assert "options" not in {*shown, *inspect.signature(Pool.map).parameters, *inspect.signature(Pool).parameters}


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    made = Sampling(
        temperature=np.float64(0.7),
        top_p=Fraction(1, 2),  # type: ignore[arg-type]
        top_k=np.int64(5),  # type: ignore[arg-type]
        mirostat=np.int32(2),  # type: ignore[arg-type]
        logit_bias={np.int64(5): np.float32(-1)},  # type: ignore[arg-type]
        grammar=np.str_("root ::= [a-z]+"),
        dry_sequence_breakers=[np.str_("\n")],  # type: ignore[arg-type]
    )
    assert made == Sampling(
        temperature=0.7, top_p=0.5, top_k=5, mirostat=2, logit_bias=((5, -1.0),), grammar="root ::= [a-z]+",
        dry_sequence_breakers=("\n",),
    )  # fmt: skip
    types = {type(value) for value in (made.temperature, made.top_p, *made.logit_bias[0], made.top_k, made.mirostat)}
    assert types == {float, int}
    assert (type(made.grammar), type(made.dry_sequence_breakers[0])) == (str, str)
    assert hash(made)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mirostat": True}, "mirostat = True"),
        ({"mirostat": 1.0}, r"mirostat = 1\.0"),
        ({"temperature": "1"}, "temperature = '1'"),
        ({"temperature": Decimal(1)}, "temperature = Decimal"),
        ({"temperature": math.nan}, "temperature = nan"),
        ({"logit_bias": {10**30: 1}}, "needs a token id"),
        ({"logit_bias": {1.7: 1}}, "needs a token id"),
        ({"logit_bias": {True: 1}}, "needs a token id"),
        ({"logit_bias": {"a": 1}}, "needs a token id"),
        ({"logit_bias": {5: "1"}}, "needs a token id"),
        ({"logit_bias": {5: 1e39}}, "needs a token id"),
        ({"logit_bias": {5: math.inf}}, "needs a token id"),
        ({"logit_bias": {5: math.nan}}, "needs a token id"),
        ({"logit_bias": [(1,)]}, "needs a token id"),
        ({"logit_bias": None}, "must map token ids"),
        ({"samplers": None}, "samplers = None: must be a list of texts"),
        ({"samplers": "top_k"}, "must be a list of texts"),
        ({"dry_sequence_breakers": 5}, "must be a list of texts"),
        ({"dry_sequence_breakers": ("a", 5)}, "dry_sequence_breakers = 5: must be text"),
        ({"dry_sequence_breakers": ("\ud800",)}, "half of a surrogate pair"),
        ({"json_schema": ["object"]}, "json_schema = .*: must be a schema as text or mapping, or a Pydantic model"),
        ({"json_schema": {"default": object()}}, "json_schema: is not JSON"),
        ({"grammar": None}, "grammar = None: must be text"),
        ({"grammar": 'root ::= "yes"\0'}, "zero byte"),
    ],
)
def test_sampling_refuses_what_no_worker_would_understand(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Sampling(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs = 1"),
        ({"stop": None}, "stop = None"),
        ({"stop": [b"a"]}, "stop = b'a': must be text"),
        ({"stop": ""}, "non-empty"),
    ],
)
def test_a_request_refuses_the_same(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Request(**wrong)  # type: ignore[arg-type]


def test_a_switch_is_true_or_false_and_nothing_like_it() -> None:
    with pytest.raises(ConfigError, match="pin = 1"):
        PoolSpec(pin=1)  # type: ignore[arg-type]


LIMITED: dict[str, tuple[int, Callable[[int], object]]] = {
    "grammar": (262_144, lambda size: Sampling(grammar="#" * size)),
    "json_schema": (1_048_576, lambda size: Sampling(json_schema=" " * size)),
    "logit_bias": (10_000, lambda size: Sampling(logit_bias=dict.fromkeys(range(size), 1.0))),  # type: ignore[arg-type]
    "pairs of logit_bias": (10_000, lambda size: Sampling(logit_bias=((token, 1.0) for token in range(size)))),  # type: ignore[arg-type]
    "dry_sequence_breakers": (32, lambda size: Sampling(dry_sequence_breakers=("a",) * size)),
    "a dry_sequence_breaker": (40, lambda size: Sampling(dry_sequence_breakers=("a" * size,))),
    "bytes of a dry_sequence_breaker": (
        40,
        lambda size: Sampling(dry_sequence_breakers=("é" * (size // 2) + "a" * (size % 2),)),
    ),
    "stop": (64, lambda size: Request(stop=("a",) * size)),
    "characters of a stop": (1000, lambda size: Request(stop=("é" * size,))),
    "prompt": (2_097_152, lambda size: given_prompt("é" * size)),
    "ids of a prompt": (1000, lambda size: given_prompt(range(size))),
}


@pytest.mark.parametrize("what", LIMITED)
def test_what_one_request_may_bring_has_a_limit_that_the_error_names(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.specs.MAX_PROMPT_IDS", 1000)  # the real limit takes seconds
    most, make = LIMITED[what]
    assert make(most)
    name = what.split()[-1].rstrip("s")
    with pytest.raises(ConfigError, match=rf"{name}.*at most {most:,} are allowed") as caught:
        make(most + 1)
    assert f"{most + 1:,}" in str(caught.value) or f"more than {most:,}" in str(caught.value)


def test_what_never_ends_is_refused_and_not_read_to_its_end() -> None:
    for endless in (
        lambda: Sampling(logit_bias=((token, 1.0) for token in count())),  # type: ignore[arg-type]
        lambda: Request(stop=(str(number) for number in count())),  # type: ignore[arg-type]
        lambda: Sampling(samplers=("top_k" for _ in count())),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match="more than .*; at most"):
            endless()


@pytest.mark.parametrize("prompt", [b"abc", None, 5, ["a", "b"], [1.7, 2], [True], [-1], [1 << 31], [10**30]])
def test_a_prompt_is_text_or_ids(prompt: object) -> None:
    with pytest.raises(ConfigError, match="prompt"):
        given_prompt(prompt)  # type: ignore[arg-type]


def test_ids_may_come_in_any_sequence() -> None:
    assert given_prompt(np.array([3, 4])) == given_prompt((3, 4)) == [3, 4]  # type: ignore[arg-type]
    assert type(given_prompt(np.str_("a"))) is str


@pytest.mark.parametrize("size", [10, 1_999, 2_000, 2_001, 100_000])
def test_a_failure_is_reported_in_what_fits_a_screen(size: int) -> None:
    error = ConfigError(f"{'x' * (size - 9)} mend it.")
    assert len(str(error)) == min(size, 2_000) and str(error).endswith(" mend it.")
    assert str(error) == error.args[0] or size > 2_000


@pytest.mark.parametrize("twice", [[(5, 1.0), (5, 2.0)], [(5, 1.0), (6, 1.0), (5, 1.0)], [(5, -math.inf), (5, 1.0)]])
def test_a_token_has_one_bias(twice: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="names token 5 twice"):
        Sampling(logit_bias=twice)  # type: ignore[arg-type]
    assert Sampling(logit_bias=dict(twice)).logit_bias  # type: ignore[arg-type]


def test_a_schema_may_be_a_mapping_or_a_pydantic_model() -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"name": {"type": "string"}}}

    class Model:  # all that is used of Pydantic
        @staticmethod
        def model_json_schema() -> dict[str, object]:
            return schema

    for given in (schema, Model):
        sampling = Sampling(json_schema=given)  # type: ignore[arg-type]  # stored as text
        assert json.loads(sampling.json_schema) == schema
