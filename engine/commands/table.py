"""Text table of a Completion: one token per line with its figures and candidates; escapes for terminals."""

import math
import unicodedata

from engine.results import Completion
from engine.step_parts import Candidate, WatchedWord
from engine.steps import StepTable, TokenStep
from engine.units import counted, percent, quantity

_COLUMNS = f"{'':>5} {'token':<18} {'p':>7} {'rank':>6} {'bits':>6} {'drawn':>7}   candidates, (removed by sampling)"


def table(completion: Completion) -> str:
    """Return a table of the prompt's tokens, where they have figures, and the generated ones, then the stop reason."""
    lines = [_COLUMNS]
    if any(step.logprob is not None for step in completion.prompt_steps):
        lines += [*_lines(completion.prompt_steps), ""]
    lines += _lines(completion.steps)
    timings = completion.timings
    rate = "" if timings.decode_per_s is None else f", {quantity(timings.decode_per_s, 'tok/s')}"
    lines += ["", f"{completion.ending} after {counted(timings.num_generated, 'token')}{rate}, seed {completion.seed}"]
    return "\n".join(lines)


def printable(text: str, *, is_terminal: bool) -> str:
    """Return the text; for a terminal, with control characters as escapes such as \\x1b."""
    if not is_terminal or text.isprintable():
        return text
    return "".join(repr(mark)[1:-1] if _steers(mark) else mark for mark in text)


def one_line(text: str) -> str:
    """Return the text on one line: tabs, line breaks and other control characters become escapes."""
    return "".join(repr(mark)[1:-1] if mark in "\n\t\\" or _steers(mark) else mark for mark in text)


def _steers(mark: str) -> bool:
    return mark not in "\n\t\u200c\u200d" and unicodedata.category(mark) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _lines(steps: StepTable) -> list[str]:
    lines = []
    for number, step in enumerate(steps, start=1):
        token = repr(step.text or steps.vocabulary.text(step.id))
        candidates = "  ".join(_candidate(candidate, is_drawn=step.p_final is not None) for candidate in step.top)
        lines.append(f"{number:>5} {token:<18} {_figures(step)}   {candidates}".rstrip())
        if step.stages:
            lines.append(f"{'':>5} {_stages(step)}")
        if step.watched:
            lines.append(f"{'':>5} watched: {', '.join(_watched(word, steps) for word in step.watched)}")
    return lines


def _watched(word: WatchedWord, steps: StepTable) -> str:
    """Return a watched word's tokens with its probability and rank."""
    text = "|".join(repr(steps.vocabulary.text(token)) for token in word.ids)
    return f"{text} {percent_of(word.logprob)} (rank {word.rank:,})"


def _stages(step: TokenStep) -> str:
    """Return candidates and probability left after each stage, then the draw."""
    left = " > ".join(f"{stage.name} {stage.kept:,} ({_percent(stage.mass)})" for stage in step.stages)
    return left if step.draw is None else f"{left} > drawn at {step.draw:.4f}"


def _figures(step: TokenStep) -> str:
    if step.logprob is None:
        return ""
    drawn = "" if step.p_final is None else _percent(step.p_final)
    rank = "" if step.rank is None else f"{step.rank:,}"
    return f"{percent_of(step.logprob):>7} {rank:>6} {-step.logprob / math.log(2):>6.2f} {drawn:>7}"


def _candidate(candidate: Candidate, *, is_drawn: bool) -> str:
    text = f"{candidate.text!r} {percent_of(candidate.logprob)}"
    return f"({text})" if is_drawn and candidate.p_final == 0 else text


def percent_of(logprob: float | None) -> str:
    """Return the probability of a natural log-probability as a percentage; empty for None."""
    return "" if logprob is None else _percent(math.exp(logprob))


def _percent(p: float) -> str:
    return percent(p, 1) if p >= 0.0005 else "<0.1 %"
