"""Results of a comparison: a sentence on where the answers diverge, then the answers side by side with figures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import streamlit as st

from engine.comparing.alignment import Fold, Segment, diff, fold, parting, parting_sentence
from engine.comparing.arms import Answer, ComparisonRecord, Outcome, labels
from engine.errors import EngineError
from engine.units import quantity
from engine.workbench import Workbench
from engine.workbench.comparison_manager import figures
from engine.workbench.trials import Trial
from pages.parts import address, task_progress
from pages.parts.beside_inspector import beside_inspector
from pages.parts.compare import alike, trial_actions, trial_answers, trial_arms, trial_state, truth_check
from pages.parts.compare.trial_file import as_file
from pages.parts.compare.trial_text import as_html
from pages.parts.labels import distinct
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.token_strip import token_strip

TOKENS, TEXTS, DIFFERENCES = "Tokens", "Texts", "Differences"
VIEWS = (TOKENS, TEXTS, DIFFERENCES)
REFRESH_S = 0.5
COLUMNS, COLUMN_WIDTH, STRIP_HEIGHT = 4, 210, 420
START_WIDTH = 48
FORMULAS = (
    "tok/s: tokens after the first, divided by the time since the first, with token inspection on. "
    "First token: queue and prefill. Bits per token: mean surprise, -log2 of the model's probability. "
    "Medians where there are several repeats."
)
SHARED = "Other trials ran at the same time, which affects these speeds. Run one at a time to compare speeds."


class Column(NamedTuple):
    """One variant on the screen: its answers to the row, their outcomes by trial, and the answer that is shown."""

    arm: int
    label: str
    answers: list[Answer]
    outcomes: list[Outcome]
    shown: Answer
    trial: Trial | None

    @property
    def mark(self) -> str:
        """Return the remark on its speeds: whether other trials shared the machine."""
        return "shared machine" if any(answer.is_shared for answer in self.answers) else ""

    @property
    def text(self) -> str | None:
        """Return the text of the shown answer so far; None if there is none."""
        return next((one.text for one in self.outcomes if one.trial_id == self.shown.trial_id), None)


class Drawing(NamedTuple):
    """What all answers on the screen have in common: the variants, the view, and how alike they are.

    likeness: by trial, how similar its answer is to the first. num_shared: generated tokens that all begin with.
    """

    columns: Sequence[Column]
    view: str
    likeness: Mapping[str, str]
    num_shared: int | None


def show(bench: Workbench, record: ComparisonRecord | None, *, is_running: bool) -> None:
    """Draw the variants, each over its answer to one row, live while the comparison runs."""
    columns, outcomes = ([], {}) if record is None else _columns(bench, record, is_running=is_running)
    ended = [(column, column.trial) for column in columns if column.trial and column.trial.completion]
    tables = [trial.steps for _, trial in ended]
    if record is not None and columns and is_running:
        _follow(bench, record.id, columns[0].shown.row, [column.shown.trial_id for column in columns])
    view = _top(bench, record, columns, [] if is_running else ended)
    said = [alike.Said(column.label, column.shown.trial_id, column.text or "") for column, _ in ended]
    drawing = Drawing(
        columns, view, {} if is_running else alike.show(bench, said), None if is_running else parting(tables)
    )
    names = trial_state.names()
    heads = trial_arms.heads(names)
    has_strips = bool(columns) and view == TOKENS
    with _beside(has_strips=has_strips), st.grid(min(len(heads), COLUMNS), min_column_width=COLUMN_WIDTH, gap="medium"):
        for head in heads:
            with st.container(gap="xsmall"):
                trial_arms.show(bench, head, names)
                column = next((one for one in columns if one.arm == head.answered), None)
                if record is None or column is None:
                    st.caption("Press Run for its answer.")
                    continue
                if trial_arms.is_edited(head, record.plan.arms[column.arm], names):
                    st.caption("Edited since this answer.")
                _answer(bench, head.number, column, drawing, is_running=is_running)
    if record is not None and columns:
        if not is_running:
            truth_check.show(bench, {column.label: trial for column, trial in ended})
        with st.expander("All answers", key="arms_all"):
            trial_answers.show(record, outcomes)


def _top(
    bench: Workbench, record: ComparisonRecord | None, columns: Sequence[Column], ended: Sequence[tuple[Column, Trial]]
) -> str:
    """Draw where the answers diverge, and the row of controls over them; return the view."""
    sentence = parting_sentence([column.label for column, _ in ended], [trial.steps for _, trial in ended]) or "Answers"
    if ended:
        st.subheader(plain(sentence), anchor=False)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        view = _view() if columns else TOKENS
        if len(ended) > 1:
            alike.control()
        if record is not None and ended:
            _download(record, sentence, ended)
        trial_arms.add_button(trial_state.names())
    return view


@contextmanager
def _beside(*, has_strips: bool) -> Iterator[None]:
    """Draw strips under their colours and beside the inspector that they share; anything else as it is."""
    if not has_strips:
        yield
        return
    token_strip(None, key="arms_controls", inspector=False)
    with beside_inspector():
        yield


def _view() -> str:
    view: str = st.segmented_control(
        "View", VIEWS, required=True, label_visibility="collapsed", width="content",
        **address.bound("view", "arms_view", _asked("view", VIEWS)),
    )  # fmt: skip
    return view


def _download(record: ComparisonRecord, sentence: str, ended: Sequence[tuple[Column, Trial]]) -> None:
    st.download_button(
        "HTML", lambda: as_file(sentence, [(column.label, column.mark, trial) for column, trial in ended]),
        f"comparison-{record.id or 'trials'}.html", "text/html",
        key="arms_html", icon=":material/download:", type="tertiary", on_click="ignore",
        help="Download these answers as one HTML file that opens offline",
    )  # fmt: skip


def _columns(
    bench: Workbench, record: ComparisonRecord, *, is_running: bool
) -> tuple[list[Column], Mapping[str, Outcome]]:
    """Return what is known of each variant's answers to the row, and all outcomes; an error is shown, with nothing."""
    try:
        outcomes = bench.compare.outcomes(record)
        row, arms = _row(record), range(len(record.plan.arms))
        return [_column(bench, record, arm, row, outcomes, is_running=is_running) for arm in arms], outcomes
    except EngineError as error:
        notice(error)
        return [], {}


def _answer(bench: Workbench, number: int, column: Column, drawing: Drawing, *, is_running: bool) -> None:
    """Draw the answer of a variant, by its number, as tokens or as text, and below it how it came about."""
    if not is_running:
        _answers(column)
    if column.shown.error:
        notice(column.shown.error)
    elif column.trial is None:
        st.caption("Waiting to start." if is_running else "Not run, or its trial was deleted.")
    if column.trial is not None and drawing.view == TOKENS:
        token_strip(
            column.trial.id, key=f"arms_strip_{column.arm}", height=STRIP_HEIGHT, k=bench.settings.shown_top_k,
            controls=False, inspector="shared", name=column.label, num_shared=drawing.num_shared,
            on={"asked": partial(trial_actions.answer, bench, number)},
        )  # fmt: skip
    elif column.text is not None:
        _text(column, drawing.columns, drawing.view)
    _facts(column, drawing.likeness.get(column.shown.trial_id), is_running=is_running)


def _asked(name: str, allowed: Sequence[str]) -> str:
    """Return the query parameter `name` if its value is allowed, else the first allowed value."""
    value = st.query_params.get(name)
    return value if value is not None and value in allowed else allowed[0]


def _row(record: ComparisonRecord) -> int:
    """Draw the choice of the table's row; return its number, counted from 0."""
    rows = record.plan.rows
    if len(rows) == 1:
        return 0
    labels = {
        str(n): f"{n} · " + ", ".join(f"{name}: {text}" for name, text in row.items()) for n, row in enumerate(rows, 1)
    }
    options = distinct(labels)
    chosen = st.selectbox(
        "Row", list(options), format_func=options.__getitem__, width=420,
        **address.bound("row", "arms_row", _asked("row", list(options))),
    )  # fmt: skip
    return int(chosen) - 1


def _column(
    bench: Workbench, record: ComparisonRecord, arm: int, row: int, outcomes: Mapping[str, Outcome], *, is_running: bool
) -> Column:
    answers = record.of(arm, row)
    known = [outcomes[answer.trial_id] for answer in answers if answer.trial_id in outcomes]
    shown = answers[0]
    if known and not is_running:
        heads = _folds(known)
        chosen = st.session_state.get(_choice(arm))
        head = chosen if chosen in heads else next(iter(heads))
        shown = next(answer for answer in answers if answer.trial_id == head)
    trial = bench.trials.watch(shown.trial_id) if shown.trial_id else None
    return Column(arm, labels(record.plan.arms)[arm], answers, known, shown, trial)


def _folds(outcomes: Sequence[Outcome]) -> dict[str, Fold]:
    """Group equal answers by the id of the first trial that gave each; the most frequent first."""
    return {outcomes[one.positions[0]].trial_id: one for one in fold([outcome.text for outcome in outcomes])}


@st.fragment(run_every=REFRESH_S)
def _follow(bench: Workbench, comparison_id: str, row: int, shown: Sequence[str]) -> None:
    """Draw the progress; the whole page is redrawn when a variant that is shown begins, and at the end."""
    running = bench.compare.running
    if running is None or running.record.id != comparison_id:
        st.rerun()
    record = bench.compare.comparison(comparison_id)
    if [record.of(arm, row)[0].trial_id for arm in range(len(record.plan.arms))] != shown:
        st.rerun()
    st.progress(running.share, plain(task_progress.line(running)))


def _facts(column: Column, likeness: str | None, *, is_running: bool) -> None:
    """Draw model and seed, the figures, and how similar the answer is to the first."""
    if column.trial is not None:
        model = column.trial.model
        st.caption(plain(f"{model.name} · {model.quantisation} · seed {column.trial.seed}"))
    if not is_running and column.outcomes:
        _figures(column)
    if likeness is not None:
        st.caption(plain(likeness), help=alike.HELP)


def _figures(column: Column) -> None:
    found = figures(column.outcomes)
    parts = [
        "" if found.decode_per_s is None else quantity(found.decode_per_s, "tok/s"),
        "" if found.ttft_s is None else f"first token {quantity(found.ttft_s, 's')}",
        "" if found.mean_surprise_bits is None else f"{quantity(found.mean_surprise_bits, 'bits')} per token",
        column.mark,
    ]
    st.caption(plain(" · ".join(one for one in parts if one)), help=f"{FORMULAS} {SHARED}" if column.mark else FORMULAS)


def _answers(column: Column) -> None:
    """Draw equal answers as one option, with their number; choosing one shows it."""
    if len(column.outcomes) < 2:
        return
    folds, total = _folds(column.outcomes), len(column.outcomes)
    options = distinct({
        head: f"{_often(len(one.positions))} · {' '.join(one.text.split())[:START_WIDTH]}"
        for head, one in folds.items()
    })  # fmt: skip
    st.session_state[_choice(column.arm)] = column.shown.trial_id
    st.selectbox(
        "Answer", list(options), format_func=options.__getitem__, key=_choice(column.arm), label_visibility="collapsed"
    )
    st.caption(f"{len(folds)} different answers in {total} repeats" if len(folds) > 1 else f"the same {total} times")


def _often(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _choice(arm: int) -> str:
    return f"arms_answer_{arm}"


def _text(column: Column, columns: Sequence[Column], view: str) -> None:
    """Draw the answer as text; in the differences view, against the first variant that has one."""
    reference = next(one for one in columns if one.text is not None)
    if view == DIFFERENCES and column is not reference:
        st.html(as_html(diff(column.text or "", reference.text or "")))
    else:
        st.html(as_html([Segment("same", column.text or "")]))
