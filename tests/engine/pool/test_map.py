"""Map over many prompts: what is not a list of prompts, and what happens to prompts that fail."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.calls import complete, embed
from engine.errors import ConfigError, EngineError, PoolClosed, PromptTooLong
from engine.pool.pool import Pool
from engine.results import Completion
from engine.specs import Sampling

LONG = "once " * 2_000
NO_PROMPT: Any = 7
KINDS = {"good": "Once upon", "long": LONG, "no text": NO_PROMPT, "no id": [-1]}
FAILS = {"long": PromptTooLong, "no text": ConfigError, "no id": ConfigError}


@pytest.mark.parametrize("prompts", ["abc", b"abc", 7, None])
def test_what_is_no_list_of_prompts_is_refused_at_once(pool: Pool, prompts: Any) -> None:
    with pytest.raises(ConfigError, match="must be a list of prompts"):
        pool.map(prompts)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=6))
def test_errors_stand_in_their_places_where_they_are_wanted(pool: Pool, kinds: list[str]) -> None:
    given = [KINDS[kind] for kind in kinds]
    done = list(pool.map(given, Sampling(temperature=0), max_tokens=2, return_exceptions=True))
    assert len(done) == len(kinds)
    for index, (kind, one) in enumerate(zip(kinds, done, strict=True)):
        if kind == "good":
            assert isinstance(one, Completion)
            assert len(one.ids) == 2
        else:
            assert type(one) is FAILS[kind]
            assert str(one).startswith(f"prompts[{index}]: ")


@pytest.mark.parametrize("kind", sorted(FAILS))
def test_the_error_that_ends_a_map_names_its_prompt(pool: Pool, kind: str) -> None:
    done = pool.map(["a", "b", KINDS[kind], "c"], max_tokens=1)
    assert isinstance(next(done), Completion)
    assert isinstance(next(done), Completion)
    with pytest.raises(FAILS[kind], match=r"prompts\[2\]: ") as raised:
        next(done)
    assert isinstance(raised.value.__cause__, EngineError)
    assert list(done) == []


def test_prompts_that_are_taken_back_do_not_outlast_the_map(story_model: Any) -> None:
    with Pool(story_model, parallel=1) as small:
        done = small.map(["a"] * 8, max_tokens=400, return_exceptions=True)
        small_one = next(done)
        assert isinstance(small_one, Completion)
        done.close()  # type: ignore[attr-defined]
    with pytest.raises(PoolClosed):
        list(small.map(["a"], return_exceptions=True))


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("temperature", "Sampling(...)"),
        ("seed", "Sampling(...)"),
        ("json_schema", "Sampling(...)"),
        ("grammar", "Sampling(...)"),
    ],
)
def test_a_parameter_in_the_wrong_place_is_refused_with_its_place(pool: Pool, name: str, home: str) -> None:
    value: Any = {name: 1}
    for call in (
        lambda: complete("x", **value),
        lambda: pool.submit("x", **value),
        lambda: pool.map(["x"], **value),
        lambda: Pool("x.gguf", **value),
    ):
        with pytest.raises(ConfigError) as raised:
            call()
        assert f"has no parameter {name!r}; it belongs in {home}" in str(raised.value)


def test_other_parameters_are_refused_with_their_places_too(pool: Pool) -> None:
    wrong: Any = {"max_tokens": 1}
    with pytest.raises(ConfigError, match="belongs in submit, map and complete themselves"):
        Pool("x.gguf", **wrong)
    with pytest.raises(ConfigError, match=r"belongs in Pool\(\.\.\.\)"):
        pool.submit("x", n_ctx=512)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="has no parameter 'generated'; known: prompts"):
        complete("x", generated=1)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"embed\(\) has no parameter 'n_ctx'; it belongs in Pool"):
        embed("x", n_ctx=512)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="did you mean max_tokens"):
        pool.submit("x", max_token=512)  # type: ignore[call-arg]
    assert complete("x", max_tokens=1).finish_reason == "length"


@pytest.mark.parametrize(
    "messages",
    [
        "hi", b"hi", 7, None, {"role": "user", "content": "hi"}, ["hi"], [{"role": "user"}], [{"content": "hi"}], [[]],
        [], (), iter(()),
    ],
)  # fmt: skip
def test_what_is_no_list_of_messages_is_refused_with_how_one_looks(pool: Pool, messages: Any) -> None:
    with pytest.raises(ConfigError, match=r"messages.*\"role\": \"user\""):
        pool.chat(messages)


@pytest.mark.parametrize("max_tokens", [1, 511, 512, 10_000])
def test_a_full_context_is_distinguished_from_what_was_asked_for(pool: Pool, max_tokens: int) -> None:
    ends = [token for token in range(len(pool.vocabulary)) if pool.vocabulary.is_end(token)]
    never = Sampling(temperature=0, logit_bias=tuple((token, float("-inf")) for token in ends))
    done = pool.submit("Once", never, max_tokens=max_tokens).result()
    room = pool.n_ctx - len(done.prompt_ids) + 1
    assert (done.finish_reason, len(done.ids)) == ("length", min(max_tokens, room))
    assert done.is_context_full is (max_tokens > room)
    assert (done.ending == "the context is full") is done.is_context_full
