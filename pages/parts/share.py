"""Share popover of a trial: itself or its whole family as an HTML page, as JSON, as text; a trial as CSV too."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import streamlit as st

from engine.comparing.branch_tree import branches_of
from engine.history import TrialRecord
from engine.history.export import family_to_json, family_to_text, to_csv, to_json, to_text
from engine.units import counted
from engine.workbench import Workbench
from engine.workbench.branching import Relative
from engine.workbench.trial_records import record_of
from engine.workbench.trials import StoredTrial, Trial, steps_of
from pages.parts.strip_file import strip_html
from pages.parts.units import size

SCOPE = "lab_share_scope"
WIDTH = 360
MOST_BYTES = 64_000_000
"""Size of a file from which a browser, or whoever opens it, would have trouble."""

MEASURED_STEPS = 32
"""Steps of which the size of a file is known exactly; that of a longer one is estimated from its first ones."""

CACHED_SIZES = 64


class Form(NamedTuple):
    """A form of sharing. make: returns the file of a trial; make_family: that of several, None where there is none;
    is_outline: what trials have in common is in that file once."""

    name: str
    ending: str
    mime: str
    icon: str
    help: str
    make: Callable[[TrialRecord], bytes]
    make_family: Callable[[Sequence[TrialRecord], Sequence[Relative]], bytes] | None
    is_outline: bool = False


FORMS = (
    Form(
        "HTML page", "html", "text/html", "public",
        "Opens in any browser, without a network: every token with its candidates and the sampler X-ray.",
        lambda record: strip_html([StoredTrial(record)]),
        lambda records, family: strip_html([StoredTrial(record) for record in records], family),
    ),
    Form(
        "JSON", "json", "application/json", "data_object",
        "All that is stored. Import on the History page restores it exactly.",
        to_json, lambda records, _family: family_to_json(records),
    ),
    Form(
        "Text", "txt", "text/plain", "notes", "The prompt and the answer; of branches an outline.",
        to_text, lambda records, _family: family_to_text(records), is_outline=True,
    ),
    Form("CSV", "csv", "text/csv", "table", "A row for each token, without its candidates.", to_csv, None),
)  # fmt: skip


def popover(bench: Workbench, trial: Trial, family: Sequence[Relative]) -> None:
    """Draw the button with the forms and their sizes below it; call with an ended trial that has a result."""
    # Drawn whether it is open or not: one that fills when it is open may reach beyond the window.
    with (
        st.popover("Share", icon=":material/ios_share:", type="tertiary", key="lab_share"),
        st.container(width=WIDTH, gap="small"),
    ):
        _choose(bench, trial, [one for one in family if not one.is_running])


def _choose(bench: Workbench, trial: Trial, family: Sequence[Relative]) -> None:
    has_all = False
    if len(family) > 1:
        scopes = "This trial", f"All {len(family):,} branches"
        chosen = st.segmented_control(
            "Share", scopes, default=scopes[0], key=SCOPE, required=True, label_visibility="collapsed"
        )
        has_all = chosen == scopes[1]
    record = record_of(trial)
    for form in FORMS:
        if not has_all:
            _download(form, partial(form.make, record), trial.id, *_size(form, record))
        elif form.make_family is not None:
            make = partial(_family_file, bench, form.make_family, trial.id, family)
            _download(form, make, trial.id, *_family_size(form, record, family))


def _download(form: Form, make: Callable[[], bytes], id: str, num_bytes: int, is_exact: bool) -> None:
    size_text = f"{'' if is_exact else 'about '}{size(num_bytes) if num_bytes >= 1000 else counted(num_bytes, 'byte')}"
    is_too_large = num_bytes > MOST_BYTES
    with st.container(gap=None):
        st.download_button(
            f"{form.name} · {size_text}", make, f"trial-{id}.{form.ending}", form.mime, key=f"lab_share_{form.ending}",
            icon=f":material/{form.icon}:", on_click="ignore", width="stretch", disabled=is_too_large,
        )  # fmt: skip
        st.caption(f"More than {size(MOST_BYTES)}: share single branches." if is_too_large else form.help)


def _family_file(
    bench: Workbench,
    make: Callable[[Sequence[TrialRecord], Sequence[Relative]], bytes],
    first: str,
    family: Sequence[Relative],
) -> bytes:
    """Return the file of those trials of a family that have a result, the one on the screen first."""
    trials = [bench.trials.trial(one.id) for one in sorted(family, key=lambda one: one.id != first)]
    records = [record_of(one) for one in trials if one.completion is not None]
    ids = {record.id for record in records}
    return make(records, [one for one in family if one.id in ids])


def _num_steps(record: TrialRecord) -> int:
    return len(record.completion.prompt_steps) + len(record.completion.steps)


def _size(form: Form, record: TrialRecord) -> tuple[int, bool]:
    """Return the bytes of a trial's file, and whether they are exact."""
    fixed, of_step = _rates(form.ending, record.id, record)
    return round(fixed + of_step * _num_steps(record)), _num_steps(record) <= MEASURED_STEPS


def _family_size(form: Form, record: TrialRecord, family: Sequence[Relative]) -> tuple[int, bool]:
    """Return about how many bytes the file of a family has, whose trials have steps like those of `record`."""
    fixed, of_step = _rates(form.ending, record.id, record)
    paths = [one.path for one in family]
    if form.is_outline:
        num_steps = sum(branch.end - branch.start for branch in branches_of(paths))
    else:
        num_steps = sum(len(record.completion.prompt_steps) + len(path.ids) for path in paths)
    return round(fixed + of_step * num_steps), False


@st.cache_data(max_entries=CACHED_SIZES, show_spinner=False)
def _rates(ending: str, id: str, _record: TrialRecord) -> tuple[int, float]:
    """Return the bytes of a file without steps, and those of a step, from the first steps."""
    make = next(form.make for form in FORMS if form.ending == ending)
    empty, some = (_cut(_record, num) for num in (0, MEASURED_STEPS))
    fixed = len(make(empty))
    return fixed, (len(make(some)) - fixed) / max(_num_steps(some), 1)


def _cut(record: TrialRecord, num_steps: int) -> TrialRecord:
    completion = record.completion
    prompt_steps, steps = (steps_of(table, slice(num_steps)) for table in (completion.prompt_steps, completion.steps))
    return replace(record, completion=replace(completion, prompt_steps=prompt_steps, steps=steps, text=steps.text))
