"""Notebook HTML of a Completion: the coloured token strip with candidates on hover, without scripts."""

import math
from collections.abc import Iterator
from html import escape

from engine import palette
from engine.results import Completion
from engine.step_parts import Candidate
from engine.steps import StepTable, TokenStep
from engine.units import counted, percent, quantity

MAX_TOKENS = 2_000
MAX_CANDIDATES = 10

_LAYOUT = """
.logitbench { background: var(--ground); color: var(--text); border: 1px solid var(--line); border-radius: 6px;
  padding: 12px 16px; font: 13px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; max-width: 92ch; }
.logitbench .strip { font: 15px/1.75 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.logitbench .t { position: relative; unicode-bidi: isolate; border-radius: 2px;
  box-shadow: inset 0 0 0 1px var(--line); }
.logitbench .t:hover { outline: 1px solid var(--text); }
.logitbench .p { color: var(--muted); }
.logitbench .mark { opacity: .55; user-select: none; }
.logitbench .more { display: none; position: absolute; left: 0; top: 100%; z-index: 9; width: max-content;
  user-select: none; background: var(--ground); color: var(--text); border: 1px solid var(--line); border-radius: 6px;
  padding: 8px 12px; font: 13px/1.5 system-ui, sans-serif; white-space: normal;
  box-shadow: 0 4px 16px rgb(0 0 0 / .2); }
.logitbench .t:hover .more { display: block; }
.logitbench table { border-collapse: collapse; margin: 4px 0 0; }
.logitbench td { padding: 0 12px 0 0; text-align: right; border: 0; background: none; color: inherit; }
.logitbench td:first-child { text-align: left; font-family: ui-monospace, monospace; white-space: pre;
  unicode-bidi: isolate; }
.logitbench .cut { opacity: .45; }
.logitbench i { display: inline-block; height: 8px; background: var(--q5); }
.logitbench footer { color: var(--muted); margin-top: 8px; }
"""
_GROUND = {
    "light": "--ground:#FFFFFF;--text:#1F2328;--muted:#656D76;--line:#D8DCE2;",
    "dark": "--ground:#14161A;--text:#E6E8EB;--muted:#9198A1;--line:#30353D;",
}


def to_html(completion: Completion) -> str:
    """Return the token strip of a completion, preceded by the muted prompt.

    At most 2,000 tokens of each and ten candidates per token. All text from the model is escaped.
    """
    prompt = "".join(_tokens(completion.prompt_steps, "t p"))
    generated = "".join(_tokens(completion.steps, "t"))
    return (
        f'<div class="logitbench"><style>{_style()}</style><div class="strip">{prompt}{generated}</div>'
        f"<footer>{escape(_footer(completion))}</footer></div>"
    )


def _style() -> str:
    bands = (f".logitbench .s{band}{{background:var(--s{band});color:var(--s{band}t)}}" for band in range(1, 7))
    themes = {theme: f".logitbench{{{_GROUND[theme]}{palette.variables(theme)}}}" for theme in ("light", "dark")}
    dark = f"@media(prefers-color-scheme:dark){{{themes['dark']}}}"
    return f"{_LAYOUT}{themes['light']}{dark}{''.join(bands)}"


def _tokens(steps: StepTable, kind: str) -> Iterator[str]:
    for step in steps[:MAX_TOKENS]:
        name = steps.vocabulary.text(step.id)
        text = _visible(step.text) if step.text else f'<span class="mark">{_visible(name)}</span>'
        if step.logprob is None:
            yield f'<span class="{kind}">{text}</span>'
            continue
        p = math.exp(step.logprob)
        more = f'<span class="more">{_more(step, p)}</span>'
        yield f'<span class="{kind} s{palette.surprise_band(p)}">{text}{more}</span>'
    if len(steps) > MAX_TOKENS:
        yield f'<span class="mark"> … {len(steps) - MAX_TOKENS:,} more tokens</span>'


def _visible(text: str) -> str:
    """Return escaped text; newlines get a mark before them, non-printable characters appear as escape sequences."""
    marked = (
        '<span class="mark">↵</span>\n' if mark == "\n" else escape(mark if _is_shown(mark) else repr(mark)[1:-1])
        for mark in text
    )
    return "".join(marked)


def _is_shown(mark: str) -> bool:
    # The zero-width joiner and the variation selector are part of many emoji.
    return mark.isprintable() or mark in " \t\u200d\ufe0f"


def _more(step: TokenStep, p: float) -> str:
    drawn = "" if step.p_final is None else f"; {_percent(step.p_final)} before the draw"
    rows = "".join(_row(one, is_drawn=step.p_final is not None) for one in step.top[:MAX_CANDIDATES])
    rank = "not reported" if step.rank is None else f"{step.rank:,}"
    return f"{_percent(p)}, rank {rank}, {-math.log2(p) if p else math.inf:.1f} bits{drawn}<table>{rows}</table>"


def _row(candidate: Candidate, *, is_drawn: bool) -> str:
    p = math.exp(candidate.logprob)
    is_cut = is_drawn and candidate.p_final == 0
    final = "cut" if is_cut else _percent(candidate.p_final) if is_drawn else ""
    return (
        f"<tr{' class=cut' if is_cut else ''}><td>{_visible(candidate.text)}</td>"
        f'<td><i style="width:{100 * p:.0f}px"></i></td><td>{_percent(p)}</td><td>{final}</td></tr>'
    )


def _percent(p: float) -> str:
    return percent(p, 1) if p >= 0.0005 else "under 0.1 %"


def _footer(completion: Completion) -> str:
    timings = completion.timings
    rate = "" if timings.decode_per_s is None else f" · {quantity(timings.decode_per_s, 'tok/s')}"
    return f"{counted(timings.num_generated, 'token')} · {completion.ending}{rate} · seed {completion.seed}"
