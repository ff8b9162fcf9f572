"""Cost page: time and money of a job, on this machine first, then on every machine of known speed."""

import streamlit as st

from engine.workbench import current
from pages.parts.cost import asked, controls, documents, job_estimates, own_price, price_table, results
from pages.parts.notice import notice

bench = current()
st.title("Cost", anchor=False)
wanted = asked.read()
if wanted.error is not None:
    notice(wanted.error)
prices = price_table.kept(bench)
known = job_estimates.rates(bench)
selection = job_estimates.select(known)
found = job_estimates.estimate(wanted.job, wanted.goals, selection, prices) if wanted.job is not None else None
if found is not None:
    results.sentence(bench, found, wanted.goals)
controls.first(known, selection, wanted.values)
if found is not None:
    own_price.show(bench, prices, found)
    results.drawn(found, wanted.goals)
    results.rests_on(found, documents.origin(found.job))
controls.advanced(selection, wanted.values, results.other_way(found) if found is not None else "")
documents.show(bench)
if found is not None:
    results.table(found)
price_table.show(bench, prices, is_open=found is not None and not found.has_prices and found.here is None)
