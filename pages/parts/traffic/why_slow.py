"""Why a call took its time: a bar of its parts, one sentence, and where the cached prefix of its prompt ended."""

import html
from collections.abc import Sequence
from typing import NamedTuple

import streamlit as st

from engine.api.openai.traffic import CallRow, Traffic
from engine.errors import EngineError
from engine.llama.prefix import WORTHWHILE
from engine.results import Timings
from engine.units import counted, percent, quantity
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts.plain import plain, visible

EARLIER_CALLS = 8
"""Earlier calls of the client whose prompts are compared."""
AROUND = 12
"""Tokens shown on each side of the place where the cached prefix ended."""
LEAST_S = 0.001
SHADES = {"preparation": "#B9BFC6", "queue": "#8B949E", "prefill": "#93AFEA", "decode": "#446BCE"}
"""Colours of the parts, apart from each other and from both backgrounds."""


class Part(NamedTuple):
    """Part of a call's time: its name, seconds, and what it did."""

    name: str
    seconds: float
    detail: str


class Break(NamedTuple):
    """Place where the cached prefix of a prompt ended: number of tokens before it, texts on both sides.

    other: the earlier call whose prompt is the most alike (0: none); num_alike: tokens that both begin with;
    other_after: its text from there on. is_refused: the request asked for no cached tokens; is_scored: its prompt is
    scored, for which only tokens that were scored before are read from the cache; is_short: what both begin with is
    shorter than what is read from it.
    """

    num_cached: int = 0
    before: str = ""
    after: str = ""
    other: int = 0
    num_alike: int = 0
    other_after: str = ""
    is_refused: bool = False
    is_scored: bool = False
    is_short: bool = False

    @property
    def is_same(self) -> bool:
        """Whether the other prompt is the same."""
        return self.other > 0 and not self.after and not self.other_after

    @property
    def has_place(self) -> bool:
        """Whether there are texts on both sides to show."""
        return not self.is_refused and not self.is_same


def show(bench: Workbench, traffic: Traffic, row: CallRow, trial: Trial) -> None:
    """Draw the bar with its sentence, and the place in the prompt; nothing for an answer that was refused."""
    is_refused = trial.error is not None and not trial.prompt_ids
    found = [] if is_refused else parts(row, trial)
    if not found:
        return
    st.markdown(plain(sentence(found, trial)))
    st.html(bar(found))
    broken = prefix_break(bench, traffic, row, trial)
    if broken is not None:
        st.caption(plain(break_sentence(broken)))
        if broken.has_place:
            st.code(in_context(broken), language=None, wrap_lines=True)


def parts(row: CallRow, trial: Trial) -> list[Part]:
    """Return the parts that took at least a millisecond, in order of time.

    A call ends with its last answer, so that of one with several, what came before the queue is not known.
    """
    timings = trial.timings
    before = row.elapsed_s - timings.queue_s - timings.prefill_s - timings.decode_s if len(row.trials) == 1 else 0.0
    found = [
        Part("preparation", before, "until it was in the queue"),
        Part("queue", timings.queue_s, "waited for its turn"),
        Part("prefill", timings.prefill_s, _computed(timings) if trial.engine is None else "by the server"),
        Part("decode", timings.decode_s, f"{counted(timings.num_generated, 'token')} generated"),
    ]
    return [part for part in found if part.seconds >= LEAST_S]


def sentence(found: Sequence[Part], trial: Trial) -> str:
    """Return which part was the largest and what would help. The figures are those of the bar and of the strip."""
    largest = max(found, key=lambda part: part.seconds)
    share = percent(largest.seconds / sum(part.seconds for part in found))
    return f"{share} of the time went into {_what(largest.name, trial)}"


def _what(name: str, trial: Trial) -> str:
    """Return the end of the sentence for a part."""
    timings, is_here = trial.timings, trial.engine is None
    match name:
        case "preparation":
            return f"preparing the call: {_prepared(trial)} and waiting for a thread to do so."
        case "queue":
            more = " More sequences at once, or another instance, would help." if is_here else ""
            return f"waiting behind other work.{more}"
        case "prefill" if not is_here:
            return "waiting for the server's first token."
        case "prefill" if not trial.draft.request.reuse_prefix or timings.num_prompt <= WORTHWHILE:
            return "computing the prompt."
        case "prefill" if timings.num_cached >= timings.num_prompt / 2:
            return "computing the prompt, though much of it came from the cache. A shorter prompt would help."
        case "prefill":
            return (
                f"computing the prompt. A beginning of {WORTHWHILE} tokens or more that an earlier prompt had too is "
                "read from the cache, so put what changes at the end."
            )
        case _:
            return "generating tokens. A lower max_tokens, a stop string or a smaller model would help."


def _prepared(trial: Trial) -> str:
    """Return what was done with the request before it was in the queue."""
    draft = trial.draft
    done = ["reading the request"]
    done += ["rendering its messages"] if draft.messages else []
    done += ["converting its schema"] if draft.sampling.json_schema else []
    done += ["checking its grammar"] if draft.sampling.grammar else []
    return ", ".join(done)


def _computed(timings: Timings) -> str:
    """Return how many tokens of the prompt were computed, and how many were not."""
    cached = f", {timings.num_cached:,} from the cache" if timings.num_cached else ""
    return f"{counted(timings.num_prompt - timings.num_cached, 'prompt token')} computed{cached}"


def bar(found: Sequence[Part]) -> str:
    """Return the parts as one horizontal bar with a legend, in HTML."""
    total = sum(part.seconds for part in found)
    pieces = "".join(
        f'<i style="flex:{part.seconds / total:.5f};min-width:2px;background:{SHADES[part.name]}"></i>'
        for part in found
    )
    legend = "".join(
        f'<span style="white-space:nowrap"><i style="display:inline-block;width:10px;height:10px;border-radius:2px;'
        f'margin-right:6px;background:{SHADES[part.name]}"></i>{html.escape(part.name)} '
        f'<b style="font-weight:600">{quantity(part.seconds, "s")}</b> '
        f'<span style="opacity:.72">{html.escape(part.detail)}</span></span>'
        for part in found
    )
    return (
        f'<div role="img" aria-label="Time of the call by part" style="display:flex;gap:1px;height:14px;'
        f'border-radius:3px;overflow:hidden">{pieces}</div><div style="display:flex;flex-wrap:wrap;gap:4px 20px;'
        f'margin-top:8px;font-size:.8667rem;font-variant-numeric:tabular-nums">{legend}</div>'
    )


def prefix_break(bench: Workbench, traffic: Traffic, row: CallRow, trial: Trial) -> Break | None:
    """Return where the cached prefix of the prompt ended.

    None where all of it was cached, the prompt begins like none before, or nothing is known of the cache, as of that of
    an external engine.
    """
    ids, num_cached, asked = trial.prompt_ids, trial.timings.num_cached, trial.draft.request
    if len(ids) < 2 or num_cached >= len(ids) - 1 or trial.engine is not None:
        return None
    if not asked.reuse_prefix:
        return Break(is_refused=True)
    broken = Break(
        num_cached, _text_before(trial, num_cached), _text_after(trial, num_cached), is_scored=asked.prompt_logprobs
    )
    earlier = _earlier(bench, traffic, row, trial)
    best = max(earlier, key=lambda one: _num_alike(ids, one[1].prompt_ids), default=None)
    if best is None or (alike := _num_alike(ids, best[1].prompt_ids)) < max(num_cached, 1):
        return broken if num_cached else None
    other = best[1]
    return broken._replace(
        other=best[0].number, num_alike=alike,
        before=_text_before(trial, alike), after=_text_after(trial, alike), other_after=_text_after(other, alike),
        is_short=min(alike, len(ids) - 1) < WORTHWHILE,
    )  # fmt: skip


def break_sentence(broken: Break) -> str:
    """Return in words where the cached prefix ended, and why there."""
    if broken.is_refused:
        return "Nothing of the prompt came from the cache: the request had cache_prompt set to false."
    num = counted(broken.num_cached, "token") if broken.num_cached > 1 else "token"
    cached = f"{f'The first {num}' if broken.num_cached else 'Nothing'} of the prompt came from the cache"
    if not broken.other:
        return f"{cached}. The rest was computed:"
    call = f"call {broken.other:,} of this client"
    if broken.num_alike == broken.num_cached:
        return f"{cached}. There it departs from the prompt of {call}:"
    alike = f"{call} begins with the same {counted(broken.num_alike, 'token') if broken.num_alike > 1 else 'token'}"
    alike = f"{call} has the same prompt" if broken.is_same else alike
    why = f", {_why_not(broken)}" if broken.num_alike > broken.num_cached + 1 else ""
    return f"{cached}; {alike}{why}." + ("" if broken.is_same else " Then they differ:")


def _why_not(broken: Break) -> str:
    """Return why tokens that an earlier call had too did not come from the cache."""
    if broken.is_scored:
        return "but a prompt that is scored is read from the cache only as far as it was scored before"
    if broken.is_short:
        return f"but fewer than {WORTHWHILE} tokens are computed again rather than read from the cache"
    what = "it" if broken.is_same else "them"
    return f"but the cache did not hold {f'all of {what}' if broken.num_cached else what} when this call began"


def in_context(broken: Break) -> str:
    """Return the texts on both sides of the place, that of the other call below."""
    if broken.other:
        lines = [("both", broken.before), ("this call", broken.after or "(ends here)")]
        lines += [(f"call {broken.other:,}", broken.other_after or "(ends here)")]
    else:
        lines = [("cached", broken.before), ("computed", broken.after)]
    width = max(len(label) for label, _ in lines) + 2
    return "\n".join(f"{label:<{width}}{text}" for label, text in lines)


def _earlier(bench: Workbench, traffic: Traffic, row: CallRow, trial: Trial) -> list[tuple[CallRow, Trial]]:
    """Return the calls of the client just before this one, each with its first trial.

    Those that are gone, or that another model answered, are left out.
    """
    rows = [one for one in traffic.rows() if one.number < row.number and one.client == row.client and one.trials]
    found = []
    for one in rows[:EARLIER_CALLS]:
        try:
            found.append((one, bench.trials.trial(one.trials[0])))
        except EngineError:
            continue
    return [one for one in found if one[1].model.hash == trial.model.hash]


def _num_alike(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _text_before(trial: Trial, place: int) -> str:
    """Return the text of the last tokens of the prompt before a place."""
    begin = max(place - AROUND, 0)
    return ("…" if begin else "") + _text(trial, trial.prompt_ids[begin:place])


def _text_after(trial: Trial, place: int) -> str:
    """Return the text of the first tokens of the prompt from a place on."""
    end = place + AROUND
    return _text(trial, trial.prompt_ids[place:end]) + ("…" if end < len(trial.prompt_ids) else "")


def _text(trial: Trial, ids: tuple[int, ...]) -> str:
    """Return the text of tokens on one line; spaces alone as signs that can be seen."""
    text = visible(trial.steps.vocabulary.join(ids).decode("utf-8", "replace"))
    return text if text.strip() else text.replace(" ", "␣")
