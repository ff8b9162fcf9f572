"""Results of a comparison: a sentence on where the answers diverge, then the answers side by side with figures."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import streamlit as st

from engine.comparing.alignment import Fold, Segment, diff, fold, parting, parting_sentence
from engine.comparing.arms import Answer, ComparisonRecord, Outcome, labels
from engine.errors import EngineError
from engine.units import quantity
from engine.workbench import Workbench
from engine.workbench.comparison_manager import figures
from engine.workbench.trials import Trial
from pages.parts import address, job_tray
from pages.parts.compare import alike, trial_answers
from pages.parts.compare.trial_file import as_file
from pages.parts.compare.trial_text import as_html
from pages.parts.labels import distinct
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.token_strip import token_strip

TOKENS, TEXTS, DIFFERENCES = "Tokens", "Texts", "Differences"
VIEWS = (TOKENS, TEXTS, DIFFERENCES)
REFRESH_S = 0.5
COLUMNS, COLUMN_WIDTH = 3, 260
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


def show(bench: Workbench, record: ComparisonRecord, *, is_running: bool) -> None:
    """Draw the answers to one row, live while the comparison runs."""
    try:
        outcomes = bench.compare.outcomes(record)
        row = _row(record)
        columns = [
            _column(bench, record, arm, row, outcomes, is_running=is_running) for arm in range(len(record.plan.arms))
        ]
    except EngineError as error:
        notice(error)
        return
    ended = [(column, column.trial) for column in columns if column.trial and column.trial.completion]
    tables = [trial.steps for _, trial in ended]
    sentence = parting_sentence([column.label for column, _ in ended], tables) or "Answers"
    if is_running:
        _follow(bench, record.id, row, [column.shown.trial_id for column in columns])
    else:
        st.subheader(plain(sentence), anchor=False)
    with st.container(horizontal=True, vertical_alignment="center"):
        view = st.segmented_control(
            "View", VIEWS, required=True, label_visibility="collapsed",
            **address.bound("view", "arms_view", _asked("view", VIEWS)),
        )  # fmt: skip
        if len(ended) > 1 and not is_running:
            alike.control()
        if ended and not is_running:
            st.download_button(
                "HTML", lambda: as_file(sentence, [(column.label, column.mark, trial) for column, trial in ended]),
                f"comparison-{record.id or 'trials'}.html", "text/html",
                key="arms_html", icon=":material/download:", type="tertiary", on_click="ignore",
                help="Download these answers as one HTML file that opens offline",
            )  # fmt: skip
    said = [alike.Said(column.label, column.shown.trial_id, column.text or "") for column, _ in ended]
    likeness = {} if is_running else alike.show(bench, said)
    _beside(bench, columns, view, None if is_running else parting(tables), likeness, is_running=is_running)
    with st.expander("All answers", key="arms_all"):
        trial_answers.show(record, outcomes)


def _beside(
    bench: Workbench,
    columns: Sequence[Column],
    view: str,
    num_shared: int | None,
    likeness: Mapping[str, str],
    *,
    is_running: bool,
) -> None:
    """Draw the variants side by side, each as tokens or as text."""
    if view == TOKENS:
        token_strip(None, key="arms_controls", inspector=False)
    with st.grid(min(len(columns), COLUMNS), min_column_width=COLUMN_WIDTH, gap="medium"):
        for column in columns:
            with st.container(gap="xsmall"):
                _head(column, is_running=is_running)
                if column.shown.trial_id in likeness:
                    st.caption(plain(likeness[column.shown.trial_id]), help=alike.HELP)
                if column.trial is not None and view == TOKENS:
                    token_strip(
                        column.trial.id, key=f"arms_strip_{column.arm}", k=bench.settings.shown_top_k, controls=False,
                        num_shared=num_shared,
                    )  # fmt: skip
                elif column.text is not None:
                    _text(column, columns, view)


def _asked(name: str, allowed: Sequence[str]) -> str:
    """Return the query parameter `name` if its value is allowed, else the first allowed value."""
    value = st.query_params.get(name)
    return value if value is not None and value in allowed else allowed[0]


def _row(record: ComparisonRecord) -> int:
    """Draw the choice of the table's row; return its number, counted from 0."""
    rows = record.plan.rows
    if len(rows) == 1:
        return 0
    told = {
        str(n): f"{n} · " + ", ".join(f"{name}: {text}" for name, text in row.items()) for n, row in enumerate(rows, 1)
    }
    options = distinct(told)
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
    st.progress(running.share, plain(f"{running.doing} · {job_tray.left(running)}"))


def _head(column: Column, *, is_running: bool) -> None:
    """Draw the name of the variant, model and seed, its figures, and which of its answers is shown."""
    st.markdown(f"**{plain(column.label)}**")
    if column.trial is not None:
        model = column.trial.model
        st.caption(plain(f"{model.name} · {model.quantisation} · seed {column.trial.seed}"))
    if column.shown.error:
        notice(column.shown.error)
    elif column.trial is None:
        st.caption("Waiting to start." if is_running else "Not run, or its trial was deleted.")
    if not is_running and column.outcomes:
        _figures(column)
        _answers(column)


def _figures(column: Column) -> None:
    found = figures(column.outcomes)
    told = [
        "" if found.decode_per_s is None else quantity(found.decode_per_s, "tok/s"),
        "" if found.ttft_s is None else f"first token {quantity(found.ttft_s, 's')}",
        "" if found.mean_surprise_bits is None else f"{quantity(found.mean_surprise_bits, 'bits')} per token",
        column.mark,
    ]
    st.caption(plain(" · ".join(one for one in told if one)), help=f"{FORMULAS} {SHARED}" if column.mark else FORMULAS)


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
