"""Constraints of the sampling editor: text is checked in place, a trial fills them in, token ids keep their model."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from engine.backends.managed_programs import ManagedServer
from engine.models import embedded_model
from engine.models.synthetic import write_synthetic
from engine.specs import PoolSpec, Request, Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Draft, Trial
from pages.parts.constraints_editor import EXAMPLES, GRAMMAR, NONE, SCHEMA
from pages.parts.plain import plain
from tests.pages.app import address, open_page, press, said
from tests.pages.conftest import wait_for_model
from tests.waiting import until

SAMPLING = Sampling(grammar="root ::= [a-z ,.]+", logit_bias=((300, -2.0), (301, 1.0), (302, -math.inf)), seed=3)


@pytest.fixture
def trial(bench: Workbench) -> Trial:
    trial = bench.trials.submit(Draft("Once upon", sampling=SAMPLING, request=Request(max_tokens=4, top_k=3)))
    return ended(trial)


def ended(trial: Trial) -> Trial:
    until(trial.done, "the trial does not end")
    return trial


def opened(bench: Workbench, at: AppTest) -> Trial:
    """The trial that the page shows."""
    return ended(bench.trials.trial(address(at)["trial"]))


def lab(bench: Workbench, trial: Trial | None = None) -> AppTest:
    """The Prompt lab with a trial, else with the recorded one, which has no constraints."""
    shown = trial or bench.trials.recorded()
    assert shown is not None
    return open_page("prompt_lab.py", "Prompt lab", trial=shown.id)


def with_text(at: AppTest, kind: str, text: str) -> AppTest:
    at.segmented_control(key="lab_constraint").set_value(kind).run()
    at.text_area(key="lab_grammar" if kind == GRAMMAR else "lab_json_schema").set_value(text).run()
    assert not at.exception, at.exception
    return at


def errors(at: AppTest) -> list[str]:
    return [error.value for error in at.main.error]


def found(at: AppTest, query: str) -> list[str]:
    """The tokens that a search offers."""
    at.text_input(key="lab_query").set_value(query).run()
    assert not at.exception, at.exception
    return [option for pills in at.main.button_group if pills.key == "lab_tokens_found" for option in pills.options]


def test_a_trial_with_constraints_opens_with_them_and_runs_again(bench: Workbench, trial: Trial) -> None:
    at = lab(bench, trial)
    assert at.segmented_control(key="lab_constraint").value == GRAMMAR
    assert at.text_area(key="lab_grammar").value == SAMPLING.grammar
    assert [at.number_input(key=f"lab_bias_{id}").value for id in (300, 301)] == [-2.0, 1.0]
    assert [at.toggle(key=f"lab_ban_{id}").value for id in (300, 301, 302)] == [False, False, True]
    assert at.number_input(key="lab_bias_302").disabled
    assert "Edited since this run." not in said(at)
    press(at, "do_run")
    again = opened(bench, at)
    assert again.id != trial.id and again.draft.sampling == SAMPLING
    press(press(at, "lab_unbias_all"), "do_run")
    assert opened(bench, at).draft.sampling == Sampling(grammar=SAMPLING.grammar, seed=3)
    at.segmented_control(key="lab_constraint").set_value(NONE).run()
    press(at, "do_run")
    assert opened(bench, at).draft.sampling == Sampling(seed=3)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (
            SCHEMA,
            '{"type": "string",\n "maxLength" 5}',
            "JSON schema is not JSON: Expecting ':' delimiter: line 2 column 14",
        ),
        (SCHEMA, "[1]", "JSON schema is not a JSON object"),
        (SCHEMA, '{"type": "nothing"}', "JSON schema cannot be converted to a grammar"),
        (GRAMMAR, 'root ::= "a"\nb ::= )', "Grammar has a syntax error on line 2, column 7"),
        (GRAMMAR, "root ::= missing", "Undefined rule identifier 'missing'"),
        (GRAMMAR, "root ::= root", "left recursion"),
        (GRAMMAR, "root ::= <no-such-token>", "Grammar names '<no-such-token>'"),
        (GRAMMAR, 'root ::= "a' + "\0" + '"', "zero byte"),
        (GRAMMAR, "<script>alert(1)</script>", "Grammar has a syntax error on line 1, column 1"),
    ],
)
def test_a_text_that_is_no_constraint_is_reported_under_its_field_and_never_runs(
    bench: Workbench, kind: str, text: str, reason: str
) -> None:
    at = with_text(lab(bench), kind, text)
    before, num_open = address(at), bench.model.loaded()[0].num_open
    label = kind.removesuffix(" (GBNF)")
    whole, short = errors(at)
    assert plain(reason) in whole
    assert short == plain(f"{label} cannot be used as it is: see Constraints under More")
    assert plain(f"Fix {label} to copy this as code.") in said(at)
    press(at, "do_run")
    assert address(at) == before and bench.model.loaded()[0].num_open == num_open
    assert len(errors(at)) == 2
    with_text(at, kind, '{"enum": ["a"]}' if kind == SCHEMA else 'root ::= "a"')
    assert errors(at) == []


@pytest.mark.slow
def test_what_a_server_does_not_take_is_reported_before_the_run(bench: Workbench) -> None:
    spec = PoolSpec(parallel=1, n_ctx=256, threads=1)
    bench.model_manager.connect(ManagedServer("llama_cpp.server", embedded_model(), spec))
    try:
        until(lambda: not bench.model.is_loading, "the server does not start")
        engine, _ = bench.model.loaded()
        at = lab(bench)
        assert errors(at) == []
        at.number_input(key="lab_mirostat").set_value(2).run()
        (error,) = errors(at)
        assert plain("Mirostat = 2: llama_cpp.server does not take it") in error
        before = address(at)
        press(at, "do_run")
        assert address(at) == before and not engine.num_open
        at.number_input(key="lab_mirostat").set_value(0).run()
        in_tab, short = errors(with_text(at, GRAMMAR, 'root ::= "a"'))
        assert "does not take them" in in_tab and plain("llama_cpp.server") in in_tab
        assert "see Constraints under More" in short
    finally:
        bench.load_default()
        wait_for_model(bench)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_fills_in_and_the_answer_follows_it(bench: Workbench, number: int) -> None:
    at = lab(bench)
    at.number_input(key="lab_max_tokens").set_value(100)
    press(press(at, f"lab_example_{number}"), "do_run")
    trial = opened(bench, at)
    assert trial.completion is not None and trial.completion.finish_reason == "stop"
    text = trial.completion.text.strip()
    match number:
        case 0:
            assert json.loads(text) in ("positive", "neutral", "negative")
        case 1:
            value = json.loads(text)
            assert isinstance(value["name"], str) and isinstance(value["is_animal"], bool)
        case _:
            assert text in ("yes", "no")


def test_switching_the_kind_keeps_both_texts_and_sends_only_the_chosen_one(bench: Workbench) -> None:
    at = with_text(lab(bench), GRAMMAR, 'root ::= "a"')
    with_text(at, SCHEMA, '{"enum": ["b"]}')
    assert at.session_state["lab_grammar"] == 'root ::= "a"'
    press(at, "do_run")
    sampling = opened(bench, at).draft.sampling
    assert (sampling.grammar, sampling.json_schema) == ("", '{"enum": ["b"]}')


def test_a_token_found_is_banned_and_never_drawn(bench: Workbench) -> None:
    at = lab(bench)
    at.text_area(key="lab_prompt").set_value("Once upon a time")
    at.number_input(key="lab_temperature").set_value(0.0)
    press(at, "do_run")
    first = opened(bench, at).steps.ids[0]
    text = bench.model.loaded()[0].vocabulary.text(first)
    label = next(one for one in found(at, text.strip()) if one.endswith(f" · {first:,}"))
    assert label.startswith("␣")
    at.button_group(key="lab_tokens_found").set_value(first).run()
    assert not at.exception, at.exception
    assert at.toggle(key=f"lab_ban_{first}").value
    press(at, "do_run")
    trial = opened(bench, at)
    assert trial.draft.sampling.logit_bias == ((first, -math.inf),)
    assert first not in trial.steps.ids
    at.toggle(key=f"lab_ban_{first}").set_value(False).run()
    at.number_input(key=f"lab_bias_{first}").set_value(5.0).run()
    press(at, "do_run")
    assert opened(bench, at).draft.sampling.logit_bias == ((first, 5.0),)
    press(at, f"lab_unbias_{first}")
    press(at, "do_run")
    assert opened(bench, at).draft.sampling.logit_bias == ()


@pytest.mark.parametrize("query", ["<script>alert(1)</script>", "\u202e", "**a**", "9" * 200, "(("])
def test_a_hostile_query_finds_nothing_and_breaks_nothing(bench: Workbench, query: str) -> None:
    at = lab(bench)
    assert found(at, query) == []
    assert "No token contains it." in said(at)


def test_more_tokens_than_are_shown_are_counted(bench: Workbench) -> None:
    at = lab(bench)
    assert len(found(at, "e")) == 50
    vocabulary = bench.model.loaded()[0].vocabulary
    num = sum("e" in vocabulary.text(token) for token in range(len(vocabulary)))
    assert f"{num - 50:,} more contain it" in said(at)


@pytest.fixture
def other(bench: Workbench, tmp_path: Path) -> Iterator[Path]:
    """The path of the loaded model, which has another vocabulary than the one that ships."""
    path = tmp_path / "other.gguf"
    write_synthetic("tiny", path, "Q8_0")
    bench.model_manager.load(path)
    wait_for_model(bench)
    yield path
    bench.load_default()
    wait_for_model(bench)


def test_tokens_of_another_vocabulary_are_not_sent(bench: Workbench, trial: Trial, other: Path) -> None:
    at = lab(bench, trial)
    before = address(at)
    whole, short = errors(at)
    assert (
        plain("These are tokens of Logitbench Story") in whole
        and plain("Synthetic tiny has another vocabulary") in whole
    )
    assert "see Constraints under More" in short
    press(at, "do_run")
    assert address(at) == before and len(errors(at)) == 2
    press(press(at, "lab_unbias_all"), "do_run")
    assert errors(at) == []
    assert opened(bench, at).draft.sampling == Sampling(grammar=SAMPLING.grammar, seed=3)


def test_a_variant_keeps_its_constraints_and_searches_the_vocabulary_of_its_own_model(
    bench: Workbench, trial: Trial, other: Path
) -> None:
    at = open_page("compare.py", "Compare", trials=trial.id)
    (key,) = [field.key for field in at.text_area if field.label == GRAMMAR]
    prefix = str(key).removesuffix("grammar")
    assert at.selectbox(key=f"{prefix}model").value == str(embedded_model())
    assert errors(at) == []
    at.selectbox(key=f"{prefix}model").set_value("").run()
    whole, short = errors(at)
    assert plain("These are tokens of Logitbench Story") in whole and "see Constraints under More" in short
    at.selectbox(key=f"{prefix}model").set_value(str(embedded_model())).run()
    assert errors(at) == []
    press(press(at, "arms_add"), "arms_run")
    bench.compare.wait(60)
    record = bench.compare.comparison(address(at)["comparison"])
    assert [arm.sampling for arm in record.plan.arms] == [SAMPLING, SAMPLING]
    assert all(answer.trial_id for answer in record.answers), [answer.error for answer in record.answers]


def test_a_long_list_is_shown_in_part_and_sent_whole(bench: Workbench) -> None:
    biases = tuple((token, 0.5) for token in range(300, 360))
    draft = Draft("Once", sampling=Sampling(logit_bias=biases), request=Request(max_tokens=2, top_k=3))
    at = lab(bench, ended(bench.trials.submit(draft)))
    assert len([field for field in at.number_input if str(field.key).startswith("lab_bias_")]) == 50
    assert "10 more, which apply too." in said(at)
    press(at, "do_run")
    assert opened(bench, at).draft.sampling.logit_bias == biases


def editor() -> None:
    """A page with nothing but an editor and its actions."""
    import streamlit as st

    from engine.specs import Request, Sampling
    from pages.parts import sampling_editor, token_bias

    if "lab_tokens" not in st.session_state:
        sampling_editor.fill(Sampling(), Request())
    for token in st.session_state.pop("banned", ()):
        token_bias.ban(token, "lab_", *st.session_state.get("of", ()))
    st.session_state["sampling"] = sampling_editor.read_sampling()


@pytest.fixture
def at(bench: Workbench) -> AppTest:
    return AppTest.from_function(editor, default_timeout=60).run()


def ban(at: AppTest, *tokens: int) -> Sampling:
    at.session_state["banned"] = tokens
    sampling: Sampling = at.run().session_state["sampling"]
    return sampling


def test_a_ban_replaces_a_bias_and_is_listed_once(at: AppTest) -> None:
    assert ban(at, 300, 301, 300).logit_bias == ((300, -math.inf), (301, -math.inf))
    at.session_state["lab_ban_300"], at.session_state["lab_bias_300"] = False, 2.0
    assert ban(at).logit_bias == ((300, 2.0), (301, -math.inf))
    assert ban(at, 300).logit_bias == ((300, -math.inf), (301, -math.inf))


@pytest.mark.parametrize("token", [-1, 1 << 30])
def test_an_id_that_no_token_has_is_not_banned(at: AppTest, token: int) -> None:
    assert ban(at, token).logit_bias == ()
    assert ["is not in this vocabulary" in error.message for error in at.exception] == [True]


def test_tokens_of_two_vocabularies_are_not_mixed(at: AppTest, bench: Workbench) -> None:
    assert ban(at, 300).logit_bias == ((300, -math.inf),)
    other = replace(bench.model.loaded()[0].vocabulary, add_bos=False, names={})
    at.session_state["of"] = other, "Another model"
    ban(at, 301)
    assert ["which has another vocabulary: remove them first" in error.message for error in at.exception] == [True]
    assert [token.id for token in at.session_state["lab_tokens"]] == [300]
