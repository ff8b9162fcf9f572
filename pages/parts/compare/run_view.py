"""Runs side by side: one sentence to act on, warnings, the table of differences, charts."""

from collections.abc import Sequence

import streamlit as st

from engine.bench.analysis.comparison import Comparison, compare_runs
from engine.bench.analysis.entries import Entry
from engine.runs import RunRecord
from engine.workbench import Workbench
from pages.parts import address
from pages.parts.compare import offline, run_charts, run_choice, run_entries
from pages.parts.plain import plain


def show(bench: Workbench) -> None:
    """Draw the comparison of the runs in the URL."""
    runs = run_choice.open_runs(bench)
    comparison = compared(runs)
    if comparison.entries:
        st.subheader(plain(comparison.sentence), anchor=False)
        if comparison.between_runs:
            st.markdown(plain(comparison.between_runs))
    for warning in comparison.warnings:
        st.caption(plain(warning))
    run_choice.pick_runs(bench, runs)
    if not comparison.offered:
        st.caption("No runs to compare. Add one above, or run a benchmark on the Benchmark page.")
        return
    run_choice.pick_cells(comparison)
    if not comparison.entries:
        return
    chosen = run_entries.show(comparison)
    if chosen is not None:
        _of_entry(comparison, chosen)
    _actions(comparison)
    run_charts.show(comparison)
    same = run_entries.same(comparison)
    if same:
        st.caption(plain(same))
    with st.expander("Machines and versions", key="compare_machines"):
        st.dataframe(run_entries.machines(comparison), hide_index=True, alt="Machines and versions of the runs")


def compared(runs: Sequence[RunRecord]) -> Comparison:
    """Return the comparison that the URL describes."""
    states = tuple(
        (run.id, run.name, run.status, len(run.samples), int(run.samples["is_replaced"].sum())) for run in runs
    )
    asked = run_choice.wanted_cells(runs), st.query_params.get("baseline"), st.query_params.get("y", "")
    return _compared((states, *asked), runs, *asked)


@st.cache_resource(max_entries=8, show_spinner=False)
def _compared(
    key: tuple[object, ...],
    _runs: Sequence[RunRecord],
    _chosen: tuple[str, ...] | None,
    _baseline: str | None,
    _metric: str,
) -> Comparison:
    """Compare by `_metric` if the runs have it, else by their own main metric."""
    comparison = compare_runs(_runs, chosen=_chosen, baseline=_baseline)
    if _metric not in comparison.measured or _metric == comparison.main_metric:
        return comparison
    metrics = [_metric, *(name for name in comparison.metrics if name != _metric)]
    return compare_runs(_runs, chosen=_chosen, baseline=_baseline, metrics=metrics)


def _of_entry(comparison: Comparison, entry: Entry) -> None:
    """Draw the actions on an entry selected in the table."""
    rest = [other.key for other in comparison.entries if other is not entry]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(plain(entry.label), width="content")
        st.button(
            "Set as baseline", icon=":material/flag:", key="compare_as_baseline", on_click=address.put,
            args=("baseline", entry.key), disabled=entry.key == comparison.baseline,
        )  # fmt: skip
        st.button(
            "Remove", icon=":material/close:", key="compare_leave_out", on_click=address.put,
            args=("cells", ",".join(rest)), disabled=not rest,
        )  # fmt: skip
        st.page_link("benchmark.py", label="Open run", icon=":material/speed:", query_params={"run": entry.run.id})


def _actions(comparison: Comparison) -> None:
    """Draw the export of the comparison."""
    axes = run_charts.axes_of(comparison)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        with st.popover("Copy as Markdown", icon=":material/content_copy:", key="compare_markdown"):
            st.code(comparison.to_markdown().rstrip(), language="markdown", wrap_lines=True)
        st.download_button(
            "Download as HTML",
            lambda: offline.comparison_html(comparison, run_charts.figures(comparison, axes)), "comparison.html",
            "text/html", key="compare_download", icon=":material/download:", on_click="ignore",
        )  # fmt: skip
