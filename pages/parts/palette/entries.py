"""Entries of the command palette: pages, actions, models, runs and trials that match a text, and what it asks for."""

from collections.abc import Iterator
from typing import NamedTuple

from engine.history import History
from engine.history.filters import Filter
from engine.history.search import Found
from engine.models import ModelFile, read_library
from engine.models.details import readable
from engine.workbench import Workbench
from pages.parts.labels import one_line
from pages.parts.models.alike import distinguishing_ends
from pages.parts.models.place import facts_of, label_of
from pages.parts.palette import questions
from pages.parts.units import moment

MOST_CHARACTERS = 200
MOST_OF_A_KIND = 6
TITLE_CHARACTERS = 80


class Entry(NamedTuple):
    """One line of the palette. page: script of the page that it opens, with the query of its address."""

    kind: str
    title: str
    detail: str
    page: str
    query: dict[str, str]


PAGES = (
    Entry("Page", "Overview", "this machine, latest trials and runs", "overview.py", {}),
    Entry("Page", "Prompt lab", "run a prompt, token probabilities", "prompt_lab.py", {}),
    Entry("Page", "Compare", "prompts or runs side by side", "compare.py", {}),
    Entry("Page", "Traffic", "calls of other programs", "traffic.py", {}),
    Entry("Page", "Benchmark", "speed and settings", "benchmark.py", {}),
    Entry("Page", "History", "runs and trials", "history.py", {}),
    Entry("Page", "Cost", "time and price of a job", "cost.py", {}),
    Entry("Page", "Models", "files on this machine", "models.py", {}),
    Entry("Page", "Embeddings", "similar sentences, vectors", "embeddings.py", {}),
)
ACTIONS = (
    Entry("Action", "See what fits into memory", "RAM, context length", "models.py", {"view": "fit"}),
    Entry("Action", "Download a model", "catalogue, hub", "models.py", {"view": "get"}),
    Entry("Action", "Quantise a model", "smaller file", "models.py", {"view": "quantise"}),
    Entry("Action", "Compare two temperatures", "prompts", "compare.py", {"temperatures": "0,1"}),
    Entry("Action", "Query the history with SQL", "DuckDB", "history.py", {"view": "sql"}),
    Entry("Action", "List trials", "history of prompts", "history.py", {"view": "trials"}),
    Entry("Action", "Published reference timings", "other machines", "history.py", {"view": "reference"}),
    Entry("Action", "Point a program here", "OpenAI API, key", "traffic.py", {}),
)
OPENED = {entry.page for entry in PAGES}
"""Scripts that an entry may open."""


def entries(bench: Workbench, text: str) -> list[Entry]:
    """Return the entries for a text, best first; for an empty one the pages and what was run last.

    Raises EngineError where the history or the models cannot be read.
    """
    asked = text[:MOST_CHARACTERS].strip()
    history = bench.history
    if not asked:
        return [*PAGES, *(_stored(history, Filter(), 3) if history else ())]
    words = asked.casefold().split()
    named = [entry for entry in (*PAGES, *ACTIONS) if _matches(words, entry)]
    return [
        *(Entry("Question", *answer) for answer in questions.asked(asked)),
        *named,
        *_models(words),
        *(_stored(history, Filter(text=asked), MOST_OF_A_KIND) if history else ()),
    ]


def _matches(words: list[str], entry: Entry) -> bool:
    """Return whether each word begins a word of the entry."""
    there = f"{entry.title} {entry.detail}".casefold().replace(",", " ").split()
    return all(any(one.startswith(word) for one in there) for word in words)


def _models(words: list[str]) -> Iterator[Entry]:
    found, library = 0, read_library()
    files = {one.file.path: one.file for one in library if isinstance(one.file, ModelFile)}
    ends = distinguishing_ends({path: label_of(file) for path, file in files.items()})
    for each in library:
        file = each.file
        if isinstance(file, ModelFile) and all(word in f"{each.name} {file.quantisation}".casefold() for word in words):
            found += 1
            detail = " · ".join(filter(None, (facts_of(file), one_line(ends[file.path]))))
            yield Entry(
                "Model", one_line(each.name, TITLE_CHARACTERS), detail, "models.py", {"model": readable(file.path)}
            )
        if found == MOST_OF_A_KIND:
            return


def _stored(history: History, wanted: Filter, most: int) -> Iterator[Entry]:
    """Yield the newest runs and trials that match."""
    yield from _rows("Run", history.find.runs(wanted, limit=most), "name", "benchmark.py", "run")
    yield from _rows("Trial", history.find.trials(wanted, limit=most), "title", "prompt_lab.py", "trial")


def _rows(kind: str, found: Found, name: str, page: str, parameter: str) -> Iterator[Entry]:
    for row in found.rows:
        title = one_line(str(row[name] or ""), TITLE_CHARACTERS) or "(empty)"
        facts = (str(row["model_name"] or ""), moment(row["created_at"]))
        detail = " · ".join(one_line(fact, TITLE_CHARACTERS) for fact in facts if fact)
        yield Entry(kind, title, detail, page, {parameter: str(row["id"])})
