"""Notebook view of a completion."""

import math
from html.parser import HTMLParser

import numpy as np
import pytest

from engine.notebook import MAX_CANDIDATES, to_html
from engine.palette import surprise_band
from engine.pool.pool import Pool
from engine.results import Completion, Timings
from engine.specs import Sampling
from engine.step_parts import INSPECTED, RECORD
from engine.steps import StepTable
from engine.vocabulary import TokenKind, Vocabulary

HOSTILE = (b"<img src=x onerror=alert(1)>", b"</style><script>", b"&amp;", b"\n", b"\xe2\x80\xae", b"\x1b[31m", b"\xf0")


class Reader(HTMLParser):
    """Parser that collects the tags, attributes and visible text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.classes: list[str] = []
        self.text = ""
        self._is_style = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert all(name in ("class", "style") for name, _ in attrs)
        self.classes += [value or "" for name, value in attrs if name == "class"]
        self._is_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._is_style = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._is_style else data


@pytest.fixture
def hostile() -> Completion:
    vocabulary = Vocabulary(
        pieces=HOSTILE, kinds=bytes([TokenKind.NORMAL] * len(HOSTILE)), names={}, bos=None, add_bos=False,
        add_space_prefix=False,
    )  # fmt: skip
    records = np.zeros(len(HOSTILE), RECORD)
    records["id"] = range(len(HOSTILE))
    records["logprob"], records["rank"], records["flags"], records["p_final"] = -1.0, 1, INSPECTED, 0.5
    ids = np.tile(np.arange(len(HOSTILE), dtype=np.int32), (len(HOSTILE), 1))
    figures = np.full(ids.shape, -1.0, np.float32)
    steps = StepTable.of(vocabulary, records, ids, figures, np.zeros_like(figures), is_prompt=False)
    timings = Timings(0, 0, 0, 0, 0, 1, 0, len(HOSTILE))
    return Completion("", steps, StepTable(vocabulary, 0, is_prompt=True), (0,), "length", timings, seed=1)


def test_text_of_a_model_is_never_markup(hostile: Completion) -> None:
    read = Reader(to_html(hostile))
    assert {"img", "script"}.isdisjoint(read.tags)
    assert "<img src=x onerror=alert(1)>" in read.text
    assert "&amp;" in read.text


def test_what_would_steer_the_page_is_visible(hostile: Completion) -> None:
    read = Reader(to_html(hostile))
    assert "\u202e" not in read.text
    assert "\x1b" not in read.text
    assert "\\u202e" in read.text
    assert "↵\n" in read.text
    assert "<F0>" in read.text


def test_tokens_are_coloured_by_surprise_and_carry_candidates(pool: Pool) -> None:
    completion = pool.submit("Once upon a time", Sampling(seed=3), max_tokens=12, top_k=20).result()
    read = Reader(completion._repr_html_())
    tokens = [name for name in read.classes if name.startswith("t s")]
    logprobs = [step.logprob for step in completion.steps]
    assert tokens == [f"t s{surprise_band(math.exp(p))}" for p in logprobs if p is not None]
    assert read.tags.count("tr") == MAX_CANDIDATES * len(completion.steps)
    assert f"seed {completion.seed}" in read.text


def test_without_figures_it_is_the_plain_text(pool: Pool) -> None:
    completion = pool.submit("Once upon a time", Sampling(seed=3), max_tokens=12).result()
    read = Reader(to_html(completion))
    assert "tr" not in read.tags
    assert completion.text.replace("\n", "↵\n") in read.text
