"""Benchmark page: six questions about running models on this machine, planned, watched and answered on one page."""

import streamlit as st

from engine.workbench import current
from pages.parts.benchmark import on_nodes, plan_editor, run_list, run_state, run_view, watch
from pages.parts.notice import notice


def failures() -> None:
    """Show the error of the last failed action at the top of the page."""
    error = st.session_state.get(run_state.ERROR)
    if error is not None:
        notice(error)


bench = current()
st.title("Benchmark", anchor=False)
run = run_state.open_run(bench)
question = run_state.question_control(bench)
failures()
run_state.asked()
run_list.undo(bench)
run_list.interrupted(bench, run)
on_nodes.ended(bench, run)
running, over_nodes = bench.bench.running, bench.nodes_bench.running
if over_nodes is not None and (run is None or run.id in over_nodes.run_ids):
    on_nodes.watch(bench, over_nodes)
elif run is None:
    plan_editor.show(bench, question)
elif running is not None and running.run_id == run.id:
    watch.show(bench, run)
else:
    if bench.bench.is_only_in_memory(run.id):
        notice(
            "This run is in memory only and is saved once the history works again. Export it: it is lost if the "
            "workbench closes before then."
        )
    run_view.show(bench, run, plan_editor.fill)
run_list.show(bench, question, run)
