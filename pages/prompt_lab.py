"""Prompt lab page: run a prompt, watch every token's probability while it streams, and inspect any token."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import streamlit as st

from engine.errors import EngineError, sentence
from engine.history import TrialLabel
from engine.protocol import Capabilities
from engine.units import counted, duration, significant
from engine.workbench import Workbench, current
from engine.workbench.branching import Relative
from engine.workbench.trials import Trial, perplexity
from pages.parts import (
    branch_actions,
    branches,
    probable_view,
    prompt_state,
    recent,
    sampling_editor,
    share,
    snippets,
    watched_words,
)
from pages.parts.beside_inspector import beside_inspector
from pages.parts.chat import composer, transcript
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.prompt_lab import beam_controls, beams_view, call_prompt, diff_address, diff_view, replay_view
from pages.parts.token_strip import Event, token_strip
from pages.parts.typed_tokens import typed_tokens

MORE_TOKENS = 128
NOTHING = Capabilities(0, 0, has_chat_template=False, has_ids=False, scores_prompts=False, is_exact=False)
SHIFT = "lab_shift"
AWAIT_S = 1.0
LONG_PROMPT = 64  # tokens from which on a prefix is always reused, unless the model is recurrent
CONTINUE_HELP = (
    "Continue from these tokens with the same parameters and seed. Beyond about 512 tokens the text may differ from "
    "one long run, as prefix reuse and adaptive threads move logits."
)


class Further(NamedTuple):
    """A button beside Run; `action` starts the trial that is shown next, None if the button is disabled."""

    label: str
    icon: str
    help: str
    action: Callable[[], Trial] | None


def mode(bench: Workbench, trial: Trial | None) -> None:
    """Draw the choice between a completion and a chat, and the controls of a chat beside it.

    A chat needs a model with a chat template; a stored one can be read without.
    """
    engine = bench.model.engine
    has_template = engine is not None and engine.capabilities.has_chat_template
    if not (has_template or prompt_state.is_chat()):
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.segmented_control(
            "Mode", (prompt_state.COMPLETION, prompt_state.CHAT), key=prompt_state.MODE, required=True,
            label_visibility="collapsed", persist_state="session", width="content",
        )  # fmt: skip
        if prompt_state.is_chat():
            composer.head(bench, trial)


def completion(bench: Workbench, trial: Trial | None, is_running: bool) -> None:
    """Draw a prompt with its parameters, and what the model made of it."""
    st.text_area(
        "Prompt", key=prompt_state.PROMPT, height=96, label_visibility="collapsed", placeholder="Write a prompt",
        persist_state="session",
    )  # fmt: skip
    engine = bench.model.engine
    typed_tokens(
        prompt_state.PROMPT, st.session_state[prompt_state.PROMPT],
        loaded=engine.model if engine and engine.capabilities.tokenizes else None,
        context=(engine.capabilities.n_ctx or None) if engine else None, is_open=False,
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        parameters(bench)
    problem()
    buttons(bench, trial, is_running)
    failures(bench)
    measuring(bench)
    result(bench, trial, is_running)


def conversation(bench: Workbench, trial: Trial | None, is_running: bool) -> None:
    """Draw a chat: its turns, the newest answer, and at the bottom of the window what is sent next."""
    if trial is None:
        st.caption("A new conversation. Write a message below and send it. Beam search is in Completion.")
    else:
        with beside_inspector():
            transcript.show(bench, trial, is_running=is_running)
            result(bench, trial, is_running)
    with st.bottom, st.container(gap="small", key="lab_composer"):
        failures(bench)
        measuring(bench)
        problem()
        composer.show(bench, trial, is_running=is_running)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            parameters(bench)


def parameters(bench: Workbench) -> None:
    """Draw the parameters; call inside a row."""
    sampling_editor.parameter_row(bench.settings.recorded_top_k)


def problem() -> None:
    """Show why the parameters cannot be run."""
    found = prompt_state.problem()
    if found is not None:
        notice(found)


def buttons(bench: Workbench, trial: Trial | None, is_running: bool) -> None:
    """Draw Run or Stop, and the actions that continue from the trial on the screen."""
    is_ready = bench.model.engine is not None
    is_edited = trial is not None and prompt_state.is_edited(trial)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if is_running:
            st.button(
                "Stop", type="primary", icon=":material/stop:", key="do_stop", on_click=bench.trials.stop, args=(trial,)
            )
        else:
            st.button(
                "Run", type="primary", icon=":material/play_arrow:", shortcut="Ctrl+Enter", key="do_run",
                disabled=not is_ready, on_click=prompt_state.act,
                args=(lambda: bench.trials.submit(watched_words.recorded(bench, prompt_state.draft())),),
            )  # fmt: skip
        for one in _further(bench, trial, is_running):
            st.button(
                one.label, icon=f":material/{one.icon}:", help=one.help, key=f"do_{one.icon}",
                disabled=not is_ready or one.action is None, on_click=prompt_state.act, args=(one.action,),
            )  # fmt: skip
        beam_controls.popover(bench)
    if not (is_ready or bench.model.is_loading or bench.load_order.running is not None):
        st.caption("No model is loaded. Choose one in the sidebar, under Model.")
    elif is_edited:
        st.caption("Edited since this run.")


def _further(bench: Workbench, trial: Trial | None, is_running: bool) -> tuple[Further, ...]:
    """Return the actions besides Run, given the trial on the screen."""
    ended = trial if not is_running and trial is not None and trial.completion is not None else None
    can = _capabilities(bench)
    going_on = ended if ended is not None and ended.can_continue and can.has_ids else None
    generated = ended if ended is not None and ended.draft.request.max_tokens > 0 else None
    trials = bench.trials
    return (
        Further(
            "Step", "skip_next", "Generate one more token",
            None if is_running else lambda: trials.step(prompt_state.draft(), prompt_state.unless_edited(going_on)),
        ),
        Further(
            f"Continue +{MORE_TOKENS}", "fast_forward", CONTINUE_HELP,
            partial(trials.continue_trial, going_on, MORE_TOKENS) if going_on is not None else None,
        ),
        Further(
            "Regenerate", "refresh", "The same prompt and parameters with a new seed",
            partial(trials.regenerate, generated) if generated is not None else None,
        ),
        Further(
            "Score only", "ink_highlighter", "Only the probabilities of the prompt's own tokens; nothing is generated",
            None if is_running or not can.scores_prompts else lambda: trials.score(prompt_state.draft()),
        ),
    )  # fmt: skip


def _capabilities(bench: Workbench) -> Capabilities:
    """Return what the loaded engine can do; nothing while there is none."""
    engine = bench.model.engine
    return engine.capabilities if engine is not None else NOTHING


def failures(bench: Workbench) -> None:
    """Show errors; a trial that failed shows its own in its strip."""
    for error in (prompt_state.failure(), bench.history_error):
        if error is not None:
            notice(error)
    if bench.history_error is not None:
        st.caption(f"Trials still run, {_what_then(bench)}")


def _what_then(bench: Workbench) -> str:
    """Return what happens to trials while the history does not work, as the end of a sentence."""
    if bench.kept.is_elsewhere:
        return "and are handed over to that process, which saves them."
    if bench.history is None:
        return "but are not saved. Download what you need."
    return "and are saved once the history works again. Download what you need."


def measuring(bench: Workbench) -> None:
    """While a benchmark runs exclusively, show when a run of this page starts."""
    running = bench.bench.running
    if running is not None:
        left_s = running.progress.turn_left_s
        when = "" if left_s is None else f", in about {duration(left_s)}"
        st.caption(f"A benchmark is running. Trials from this page start after its current sample{when}.")


def result(bench: Workbench, trial: Trial | None, is_running: bool) -> None:
    """Draw the strip with its inspector, and the facts and actions of the trial."""
    beam_controls.progress(bench)
    if trial is not None and trial.label == TrialLabel.RECORDED:
        st.caption(f"Sample recorded with {plain(trial.model.name)}. Press Run to generate yours.")
    diff = diff_address.asked(bench, trial)
    is_chat = prompt_state.is_chat()
    is_past = trial is not None and trial.error is not None and not is_chat and prompt_state.is_edited(trial)
    family = branches.family_of(bench, trial)
    token_strip(
        trial.id if trial and not is_past else None, key="lab_strip", k=bench.settings.shown_top_k,
        pins_last=trial is not None and trial.label == TrialLabel.STEP, branches=branches.tree(bench, trial, family),
        probable=probable_view.tree(bench, trial), beams=beams_view.trees(bench, trial),
        words=watched_words.words() if _is_from_here(trial) else None,
        change=diff_view.change(diff), on=_listeners(bench, trial),
        is_answer_only=is_chat and trial is not None and trial.draft.request.max_tokens > 0, is_revealed=is_chat,
        is_addressed=True, inspector="shared" if is_chat else True,
    )  # fmt: skip
    beams_view.pruned_toggle(bench, trial)
    probable_view.show(bench, trial)
    if trial is not None and is_running:
        _await_end(trial)
    elif trial is not None:
        if is_chat:
            composer.answer_actions(bench, trial, MORE_TOKENS, CONTINUE_HELP)
        _after(bench, trial, family)
        if trial.completion is not None:
            replay_view.show(bench, trial)
            diff_view.show(bench, trial, diff)


def _is_from_here(trial: Trial | None) -> bool:
    """Return False for a trial that an external engine answered: its tokens cannot be forced, banned or watched."""
    return trial is None or trial.engine is None


def _listeners(bench: Workbench, trial: Trial | None) -> dict[Event, Callable[[object], None]]:
    """Return what is called with what a reader does in the strip."""
    if trial is None:
        return {}
    if not _is_from_here(trial):
        return {"acted": partial(branches.act, bench, trial), "chosen": partial(probable_view.act, bench, trial)}
    return {
        "asked": partial(branch_actions.answer, bench),
        "acted": partial(branches.act, bench, trial),
        "chosen": partial(probable_view.act, bench, trial),
        "followed": partial(beams_view.act, bench, trial),
        "watched": watched_words.take,
    }


def _after(bench: Workbench, trial: Trial, family: Sequence[Relative]) -> None:
    """Draw the facts of a trial that has ended, and the actions on it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for fact in _facts(bench, trial):
            st.caption(fact, width="content")
        _moved(bench, trial)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if trial.completion is not None:
            if trial.engine is None:
                replay_view.button(bench, trial)
                diff_view.button(trial)
            share.popover(bench, trial, family)
            recent.actions(bench, trial)
        _copy(bench, trial)


def _facts(bench: Workbench, trial: Trial) -> list[str]:
    """Return what is worth knowing of an ended trial, in words."""
    facts = [] if trial.engine is None else [f"Answered by {plain(trial.engine.name)}"]
    facts += call_prompt.facts(bench, trial)
    if trial.node:
        facts.append(f"Answered on node {plain(trial.node)}")
    prompt = perplexity(trial.prompt_steps)
    if prompt is not None:
        facts.append(f"Prompt perplexity {prompt:,.1f}")
    if (
        trial.label in (TrialLabel.BRANCH, TrialLabel.SAMPLE)
        and not trial.timings.num_cached
        and len(trial.prompt_ids) >= LONG_PROMPT
    ):
        facts.append("The text before the branch was computed again.")
    if (other := bench.branching.first_other_token(trial)) is not None:
        facts.append(f"Pasted as text, it has other tokens from token {other + 1:,} on.")
    return facts


@st.fragment(run_every=AWAIT_S)
def _await_end(trial: Trial) -> None:
    """Rerun the page once the trial has ended, even if that happened before the strip started listening."""
    if trial.done():
        st.rerun()


def _moved(bench: Workbench, trial: Trial) -> None:
    """Show by how much reuse or other sequences shifted the probabilities, measured on request."""
    is_exposed = trial.timings.num_cached > 0 or trial.has_neighbours
    can = _capabilities(bench)
    if not (is_exposed and trial.draft.request.reuse_prefix and len(trial.steps) and can.is_exact):
        return
    measured_id, shift = st.session_state.get(SHIFT, (None, None))
    if measured_id == trial.id:
        st.caption(
            f"Recomputed in one pass, logprobs differ by up to {significant(shift.largest)} nats "
            f"(99 % of {counted(shift.num_tokens, 'token')}: under {significant(shift.p99)}).",
            width="content",
        )
        return
    why = "Part of the prompt was reused" if trial.timings.num_cached else "Other trials ran at the same time"
    st.caption(f"{why}, which shifts the logits slightly.", width="content")
    st.button("Measure the shift", type="tertiary", key="lab_measure", on_click=_measure, args=(bench, trial))


def _measure(bench: Workbench, trial: Trial) -> None:
    try:
        st.session_state[SHIFT] = trial.id, bench.replays.measure_shift(bench.trials.engine_of(trial), trial)
    except EngineError as error:
        st.session_state[prompt_state.ERROR] = error.bare()


def _copy(bench: Workbench, trial: Trial | None) -> None:
    """Draw the programs for the editor's draft, with the seed that was used if that is on the screen."""
    if bench.model.engine is None:
        return
    try:
        snippets.copy_button(bench, prompt_state.as_shown(trial), prompt_state.unless_edited(trial))
    except sampling_editor.SettingError as error:
        st.caption(plain(f"Fix {error.label} to copy this as code."), width="content")
    except EngineError as error:
        st.caption(plain(sentence(error)), width="content")


bench = current()
st.title("Prompt lab", anchor=False)
trial = prompt_state.open_trial(bench)
is_running = trial is not None and not trial.done()
if prompt_state.is_chat():
    chat = trial if trial is not None and trial.draft.messages else None
    mode(bench, chat)
    conversation(bench, chat, is_running and chat is not None)
else:
    mode(bench, trial)
    completion(bench, trial, is_running)
recent.show(bench, trial)
