"""Chat in the Prompt lab without a browser: turns, edits, other answers, and what is restored from the address."""

import json

import pytest
from streamlit.testing.v1 import AppTest

from engine.errors import ConfigError
from engine.history import TrialLabel
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Draft, Message, Trial
from pages.parts.chat.composer import NO_TEMPLATE
from pages.parts.chat.state import NO_MESSAGE
from pages.parts.chat.transcript import NO_TEXT
from pages.parts.plain import plain
from tests.pages.app import HOSTILE, address, open_page, press
from tests.pages.conftest import wait_for_model
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("idle")


@pytest.fixture
def idle(bench: Workbench) -> None:
    """Begin each test when the trials of the one before have ended."""
    until(lambda: all(trial.done() for trial in bench.trials.in_memory()), "a trial does not end")


def page(**query: str) -> AppTest:
    return open_page("prompt_lab.py", "Prompt lab", **query)


def new_chat(max_tokens: int = 4, seed: int | None = 5) -> AppTest:
    """The page on an empty conversation."""
    at = page()
    at.segmented_control(key="lab_mode").set_value("Chat").run()
    if not at.button(key="lab_new_chat").disabled:
        press(at, "lab_new_chat")
    at.text_area(key="lab_system").set_value("")
    at.number_input(key="lab_temperature").set_value(0.8)
    at.number_input(key="lab_max_tokens").set_value(max_tokens)
    at.number_input(key="lab_seed").set_value(seed)
    assert not own(at)
    return at.run()


def is_empty(at: AppTest, bench: Workbench) -> bool:
    """Whether the page shows no conversation; the address may still name a completion."""
    id = address(at).get("trial")
    return not own(at) and not strips(at) and (id is None or not bench.trials.trial(id).draft.messages)


def send(at: AppTest, bench: Workbench, text: str) -> Trial:
    at.text_area(key="lab_message").set_value(text)
    return shown(press(at, "do_send"), bench)


def shown(at: AppTest, bench: Workbench) -> Trial:
    """The trial of the address, once it has ended."""
    assert not errors(at)
    trial = bench.trials.trial(address(at)["trial"])
    until(trial.done, "the trial does not end")
    at.run()
    assert not at.exception
    return trial


def said(trial: Trial) -> str:
    assert trial.completion is not None
    return trial.completion.text


def errors(at: AppTest) -> list[str]:
    return [error.value for error in at.error]


def own(at: AppTest) -> list[str]:
    """The bubbles of the user's messages, as HTML."""
    bodies = [element.proto.body for element in at.get("html")]
    return [body.split('<div class="bubble">')[1].removesuffix("</div>") for body in bodies if 'class="bubble"' in body]


def strips(at: AppTest) -> list[tuple[str | None, str | None]]:
    """The trial of each strip, and the text to which it is folded."""
    found = [json.loads(element.proto.json) for element in at.get("bidi_component") if "folded" in element.proto.json]
    return [(one["trial"], one["folded"]) for one in found]


def captions(at: AppTest) -> str:
    return "\n".join(caption.value for caption in at.caption)


def asked(*texts: str) -> tuple[Message, ...]:
    return tuple({"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts))


def test_each_turn_goes_on_from_the_tokens_of_the_one_before(chatting: Workbench) -> None:
    at = new_chat()
    first = send(at, chatting, "Who lives in the wood?")
    text, ids = chatting.trials.render(Draft("", asked("Who lives in the wood?")))
    assert first.prompt_ids == tuple(ids) and first.draft.prompt == text and first.label == TrialLabel.RUN
    assert own(at) == ["Who lives in the wood?"] and strips(at) == [(first.id, None)]
    assert at.text_area(key="lab_message").value == ""
    second = send(at, chatting, "And then?")
    assert second.draft.messages == asked("Who lives in the wood?", said(first), "And then?")
    known = [*first.prompt_ids, *first.steps.ids]
    assert list(second.prompt_ids[: len(known)]) == known
    assert (second.parent, second.label) == (first.id, TrialLabel.TURN)
    assert own(at) == ["Who lives in the wood?", "And then?"]
    assert strips(at) == [(first.id, said(first).strip()), (second.id, None)]
    assert [one.id for one in chatting.trials.recent(2)].count(first.id) == 0


def test_the_address_restores_the_conversation(chatting: Workbench) -> None:
    at = new_chat()
    at.text_area(key="lab_system").set_value("You tell tales.").run()
    trials = [send(at, chatting, text) for text in ("A king?", "A fox?", "A wolf?")]
    assert trials[-1].draft.messages[0] == {"role": "system", "content": "You tell tales."}
    again = page(trial=trials[-1].id)
    assert own(again) == ["A king?", "A fox?", "A wolf?"]
    assert [trial for trial, _ in strips(again)] == [trial.id for trial in trials]
    assert again.text_area(key="lab_system").value == "You tell tales."
    assert again.segmented_control(key="lab_mode").value == "Chat"
    middle = page(trial=trials[1].id)
    assert own(middle) == ["A king?", "A fox?"]


def test_an_answer_whose_trial_is_gone_is_its_text(chatting: Workbench) -> None:
    at = new_chat()
    first, second = send(at, chatting, "A king?"), send(at, chatting, "A fox?")
    chatting.trials.delete(first.id)
    assert strips(page(trial=second.id)) == [(None, said(first).strip()), (second.id, None)]
    chatting.trials.restore(first.id)
    assert strips(page(trial=second.id))[0][0] == first.id


def test_an_edited_message_begins_a_line_and_the_old_one_stays(chatting: Workbench) -> None:
    at = new_chat()
    first, second = send(at, chatting, "A king?"), send(at, chatting, "A fox?")
    press(at, "lab_edit_0")
    assert at.text_area(key="lab_edit").value == "A king?"
    press(at, "lab_edit_cancel")
    assert own(at) == ["A king?", "A fox?"]
    press(at, "lab_edit_2")
    at.text_area(key="lab_edit").set_value("A bear?")
    third = shown(press(at, "lab_edit_send"), chatting)
    assert third.draft.messages == asked("A king?", said(first), "A bear?")
    assert (third.parent, third.label) == (second.id, TrialLabel.EDIT)
    assert own(at) == ["A king?", "A bear?"] and strips(at)[0][0] == first.id
    assert {second.id, third.id} <= {one.id for one in chatting.trials.recent(5)}
    press(at, "lab_earlier_version")
    assert address(at)["trial"] == second.id and own(at) == ["A king?", "A fox?"]


def test_an_edit_to_nothing_is_refused_in_place(chatting: Workbench) -> None:
    at = new_chat()
    first = send(at, chatting, "A king?")
    press(at, "lab_edit_0")
    at.text_area(key="lab_edit").set_value("  \n ")
    press(at, "lab_edit_send")
    assert errors(at) == [plain(NO_MESSAGE)] and address(at)["trial"] == first.id
    assert at.text_area(key="lab_edit").value == "  \n "


def test_another_answer_has_the_parameters_on_the_screen_and_both_are_kept(chatting: Workbench) -> None:
    at = new_chat()
    first = send(at, chatting, "A king?")
    at.number_input(key="lab_temperature").set_value(1.5)
    second = shown(press(at, "do_refresh"), chatting)
    assert second.prompt_ids == first.prompt_ids and second.seed != first.seed
    assert second.draft.sampling.temperature == 1.5 and second.label == TrialLabel.REGENERATE
    assert {one.id for one in chatting.branching.family(second)} >= {first.id, second.id}
    at = page(trial=first.id)
    third = send(at, chatting, "A fox?")
    assert third.parent == first.id
    assert strips(at)[0] == (first.id, said(first).strip())


def test_continue_makes_the_answer_longer_and_step_by_one_token(chatting: Workbench) -> None:
    at = new_chat()
    first = send(at, chatting, "A king?")
    if not first.can_continue:
        pytest.skip("the model ended its turn before the limit")
    stepped = shown(press(at, "do_Step"), chatting)
    assert stepped.steps.ids[:4] == first.steps.ids and len(stepped.steps) == 5
    longer = shown(press(at, "do_fast_forward"), chatting)
    assert longer.steps.ids[:5] == stepped.steps.ids and len(longer.steps) > 5
    at.text_area(key="lab_message").set_value("A fox?")
    one = shown(press(at, "do_Step"), chatting)
    assert len(one.steps) == 1 and one.draft.messages == asked("A king?", said(longer), "A fox?")


def test_score_only_scores_the_conversation_with_the_message(chatting: Workbench) -> None:
    at = new_chat()
    first = send(at, chatting, "A king?")
    at.text_area(key="lab_message").set_value("A fox?")
    scored = shown(press(at, "do_Score only"), chatting)
    assert not len(scored.steps) and scored.draft.messages == asked("A king?", said(first), "A fox?")
    known = [*first.prompt_ids, *first.steps.ids]
    assert list(scored.prompt_ids[: len(known)]) == known
    assert "Prompt perplexity" in captions(at)


def test_a_changed_system_prompt_holds_from_the_next_message_on(chatting: Workbench) -> None:
    at = new_chat()
    first = send(at, chatting, "A king?")
    at.text_area(key="lab_system").set_value("Be brief.").run()
    second = send(at, chatting, "A fox?")
    assert second.draft.messages[0] == {"role": "system", "content": "Be brief."}
    assert second.label == TrialLabel.EDIT and strips(at)[0] == (None, said(first).strip())
    at.text_area(key="lab_system").set_value("").run()
    again = shown(press(at, "do_refresh"), chatting)
    assert again.draft.messages == asked("A king?", said(first), "A fox?")


def test_new_chat_leaves_the_old_one_and_what_is_being_written(chatting: Workbench) -> None:
    at = new_chat()
    first = send(at, chatting, "A king?")
    at.text_area(key="lab_message").set_value("A fox?")
    press(at, "lab_new_chat")
    assert is_empty(at, chatting) and "trial" not in address(at)
    assert at.text_area(key="lab_message").value == "A fox?"
    second = shown(press(at, "do_send"), chatting)
    assert second.draft.messages == asked("A fox?") and second.parent is None
    assert chatting.trials.watch(first.id) is not None


def test_the_template_shows_what_the_model_is_given(chatting: Workbench) -> None:
    at = new_chat()
    at.session_state["lab_rendered"] = True
    at.run()
    assert plain(NO_MESSAGE) in captions(at)
    at.text_area(key="lab_message").set_value("A <b>king</b>?").run()
    _, ids = chatting.trials.render(Draft("", asked("A <b>king</b>?")))
    assert f"{len(ids):,} of 512 tokens" in captions(at)
    body = next(element.proto.body for element in at.get("html") if 'class="rendered"' in element.proto.body)
    assert '<span class="control">&lt;s&gt;</span>' in body and "<b>" not in body
    trial = send(at, chatting, "A <b>king</b>?")
    at.session_state["lab_rendered"] = True
    at.run()
    assert f"{len(trial.prompt_ids):,} of 512 tokens" in captions(at)


def test_a_chat_without_a_question_is_not_run(chatting: Workbench) -> None:
    at = new_chat()
    for button in ("do_send", "do_Step", "do_Score only"):
        press(at, button)
        assert errors(at) == [plain(NO_MESSAGE)] and is_empty(at, chatting)


def test_what_cannot_be_sent_stays_in_its_field(chatting: Workbench) -> None:
    at = new_chat()
    long = "word " * 9000
    at.text_area(key="lab_message").set_value(long)
    press(at, "do_send")
    assert "the context holds 512" in errors(at)[0]
    assert at.text_area(key="lab_message").value == long and is_empty(at, chatting)


def test_a_failed_answer_says_why_and_is_tried_again(chatting: Workbench) -> None:
    at = new_chat()
    at.text_area(key="lab_message").set_value("word " * 600)
    press(at, "do_send")
    trial = chatting.trials.trial(address(at)["trial"])
    until(trial.done, "the trial does not end")
    at.run()
    assert trial.error is not None and strips(at) == [(trial.id, None)]
    assert at.button(key="do_refresh").label == "Try again"
    press(at, "lab_edit_0")
    at.text_area(key="lab_edit").set_value("A king?")
    assert shown(press(at, "lab_edit_send"), chatting).completion is not None


def test_an_answer_of_only_the_end_token_says_so(chatting: Workbench) -> None:
    engine, _ = chatting.model.loaded()
    end = engine.vocabulary.end_tokens[0]
    sampling = Sampling(temperature=0, logit_bias=((end, 1000.0),))
    first = chatting.trials.submit(Draft("", asked("A king?"), sampling, Request(max_tokens=4, top_k=3)))
    until(first.done, "the trial does not end")
    assert list(first.steps.ids) == [end] and first.ending()["sentence"] == NO_TEXT
    at = page(trial=first.id)
    assert own(at) == ["A king?"]
    at.text_area(key="lab_message").set_value("A fox?")
    shown(press(at, "do_send"), chatting)
    assert NO_TEXT in captions(at)


def test_hostile_and_foreign_messages_stay_text(chatting: Workbench) -> None:
    messages: tuple[Message, ...] = (
        {"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE},
        {"role": ":red[tool] <i>", "content": "a\n\tb"}, {"role": "user", "content": "And?"},
    )  # fmt: skip
    trial = chatting.trials.submit(Draft("", messages, Sampling(seed=1), Request(max_tokens=2, top_k=3)))
    until(trial.done, "the trial does not end")
    at = page(trial=trial.id)
    bubbles = own(at)
    assert "&lt;script&gt;" in bubbles[0] and "\u202e" not in "".join(bubbles) and bubbles[1] == "a\n\tb"
    assert strips(at)[0] == (None, HOSTILE.strip())
    assert plain(":red[tool] <i>") in captions(at)


def test_a_model_without_a_template_shows_a_chat_and_cannot_answer(chatting: Workbench) -> None:
    at = new_chat()
    trial = send(at, chatting, "A king?")
    chatting.load_default()
    wait_for_model(chatting)
    at = page(trial=trial.id)
    assert own(at) == ["A king?"] and strips(at) == [(trial.id, None)]
    assert at.button(key="do_send").disabled and NO_TEMPLATE in captions(at)
    at.segmented_control(key="lab_mode").set_value("Completion").run()
    assert not at.exception and not at.button(key="do_run").disabled
    assert "lab_mode" not in [one.key for one in at.segmented_control], "it has nothing else to offer"


def test_a_bad_address_leaves_a_mode_chosen(chatting: Workbench) -> None:
    at = page(trial="01a1fab9-91c7-7816-819a-8fcdffdfbaff")
    assert "does not exist" in at.main.error[0].value
    assert at.segmented_control(key="lab_mode").value == "Completion"


def test_an_error_of_the_engine_is_shown_and_gone_with_the_next_change(
    chatting: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("The queue is full: wait a moment.")

    at = new_chat()
    monkeypatch.setattr(chatting.trials, "submit", refuse)
    at.text_area(key="lab_message").set_value("A king?")
    press(at, "do_send")
    assert errors(at) == [plain("The queue is full: wait a moment.")]
    assert at.text_area(key="lab_message").value == "A king?"
    at.text_area(key="lab_message").set_value("A fox?").run()
    assert not errors(at)
