"""Why a call took its time: a bar of its parts, one sentence, and where the cached prefix of its prompt ended."""

import html
from collections.abc import Sequence
from typing import NamedTuple

import streamlit as st

from engine.api.openai.traffic import CallRow, Traffic
from engine.errors import EngineError
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
SHADES = {"queue": "#8B949E", "prefill": "#93AFEA", "decode": "#446BCE", "the rest": "#B9BFC6"}
"""Colours of the parts, apart from each other and from both backgrounds."""


class Part(NamedTuple):
    """Part of a call's time: its name, seconds, and what it did."""

    name: str
    seconds: float
    detail: str


class Break(NamedTuple):
    """Place where the cached prefix of a prompt ended: number of tokens before it, texts on both sides.

    other: the earlier call whose prompt is the most alike (0: none); num_alike: tokens that both begin with;
    other_after: its text from there on.
    """

    num_cached: int
    before: str
    after: str
    other: int = 0
    num_alike: int = 0
    other_after: str = ""


def show(bench: Workbench, traffic: Traffic, row: CallRow, trial: Trial) -> None:
    """Draw the bar with its sentence, and the place in the prompt; nothing for an answer that was refused."""
    is_refused = trial.error is not None and not trial.prompt_ids
    found = [] if is_refused else parts(row, trial.timings)
    if not found:
        return
    st.markdown(plain(sentence(found, trial.timings)))
    st.html(bar(found))
    broken = prefix_break(bench, traffic, row, trial)
    if broken is not None:
        st.caption(plain(break_sentence(broken)))
        st.code(in_context(broken), language=None, wrap_lines=True)


def parts(row: CallRow, timings: Timings) -> list[Part]:
    """Return the parts that took at least a millisecond, in order of time; the rest is known for single answers."""
    computed = timings.num_prompt - timings.num_cached
    cached = f", {timings.num_cached:,} from the cache" if timings.num_cached else ""
    rest = row.elapsed_s - timings.queue_s - timings.prefill_s - timings.decode_s if len(row.trials) == 1 else 0.0
    found = [
        Part("queue", timings.queue_s, "waited for its turn"),
        Part("prefill", timings.prefill_s, f"{counted(computed, 'prompt token')} computed{cached}"),
        Part("decode", timings.decode_s, f"{timings.num_generated:,} generated"),
        Part("the rest", rest, "reading, rendering and sending"),
    ]
    return [part for part in found if part.seconds >= LEAST_S]


def sentence(found: Sequence[Part], timings: Timings) -> str:
    """Return which part was the largest and what would help."""
    total = sum(part.seconds for part in found)
    largest = max(found, key=lambda part: part.seconds)
    match largest.name:
        case "queue":
            what = "waiting behind other calls: more sequences at once, or another instance, would help"
        case "prefill" if timings.num_cached < timings.num_prompt / 2:
            what = "computing the prompt: one that begins as an earlier one did is read from the cache, so put what "
            what += "changes at its end"
        case "prefill":
            what = "computing the prompt, though much of it was cached: a shorter one would help"
        case "decode":
            rate = "" if timings.decode_per_s is None else f" at {quantity(timings.decode_per_s, 'tok/s')}"
            what = (
                f"generating {counted(timings.num_generated, 'token')}{rate}: a lower max_tokens, a stop string or a "
            )
            what += "smaller model would help"
        case _:
            what = "outside the model: a client that reads as fast as tokens come would help"
    return f"{percent(largest.seconds / total)} of {quantity(total, 's')} went into {what}."


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
    """Return where the cached prefix of the prompt ended; None where all of it was cached or nothing is known."""
    ids, num_cached = trial.prompt_ids, trial.timings.num_cached
    if len(ids) < 2 or num_cached >= len(ids) - 1:
        return None
    broken = Break(
        num_cached, _text(trial, ids[max(num_cached - AROUND, 0) : num_cached]), _text(trial, ids[num_cached:])
    )
    best = max(_earlier(bench, traffic, row), key=lambda one: _num_alike(ids, one[1].prompt_ids), default=None)
    if best is None or not (alike := _num_alike(ids, best[1].prompt_ids)):
        return broken
    other = best[1]
    return broken._replace(
        other=best[0].number, num_alike=alike,
        before=_text(trial, ids[max(alike - AROUND, 0) : alike]), after=_text(trial, ids[alike:]),
        other_after=_text(other, other.prompt_ids[alike:]),
    )  # fmt: skip


def break_sentence(broken: Break) -> str:
    """Return in words where the cached prefix ended."""
    cached = f"The first {counted(broken.num_cached, 'token')} of the prompt came from the cache"
    cached = cached if broken.num_cached else "Nothing of the prompt came from the cache"
    if not broken.other:
        return f"{cached}. Here the rest begins:"
    alike = f"call {broken.other:,} of this client begins with the same {counted(broken.num_alike, 'token')}"
    if broken.num_alike > broken.num_cached + 1:
        return f"{cached}; {alike}, which were not kept any more or not reached yet. Then they differ:"
    return f"{cached}; {alike}. Then they differ:"


def in_context(broken: Break) -> str:
    """Return the texts on both sides of the place, that of the other call below."""
    before = f"…{broken.before}" if broken.num_cached or broken.num_alike else ""
    lines = [f"{'both' if broken.other else 'cached':<10}{before}", f"{'this call':<10}{broken.after}"]
    lines += [f"{f'call {broken.other}':<10}{broken.other_after or '(ends here)'}"] if broken.other else []
    return "\n".join(lines)


def _earlier(bench: Workbench, traffic: Traffic, row: CallRow) -> list[tuple[CallRow, Trial]]:
    """Return the calls of the client just before this one, each with its first trial; those that are gone left out."""
    rows = [one for one in traffic.rows() if one.number < row.number and one.client == row.client and one.trials]
    found = []
    for one in rows[:EARLIER_CALLS]:
        try:
            found.append((one, bench.trials.trial(one.trials[0])))
        except EngineError:
            continue
    return found


def _num_alike(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _text(trial: Trial, ids: tuple[int, ...]) -> str:
    """Return the text of the first tokens on one line."""
    return visible(trial.steps.vocabulary.join(ids[:AROUND]).decode("utf-8", "replace"))
