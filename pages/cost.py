"""Cost page: hours and dollars of a job on every machine of known speed; the answer comes first, as a sentence."""

import streamlit as st

from engine.workbench import current
from pages.parts.cost import asked, controls, documents, job_form, price_table, reckoning, results
from pages.parts.notice import notice

bench = current()
st.title("Cost", anchor=False)
wanted = asked.read()
if wanted.error is not None:
    notice(wanted.error)
prices = price_table.kept(bench)
known = reckoning.rates(bench)
looked = reckoning.looked_at(known)
found = reckoning.reckon(wanted.job, wanted.goals, looked, prices) if wanted.job is not None else None
if found is not None:
    results.sentence(found)
job_form.show(wanted.values)
controls.show(known, looked, wanted.values)
if found is not None:
    results.drawn(found, wanted.goals)
    results.rests_on(found, documents.origin(found.job))
documents.show(bench)
if found is not None:
    results.table(found)
price_table.show(bench, prices, looked.rates, is_open=found is not None and not results.has_prices(found))
