"""Watched words as a page's web socket sends them: their tokens, then each word's figures as they are computed."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from engine.watched_words import Variant
from engine.workbench.word_watching import Figures, Line, Watching
from pages.parts.live_ask import Watch
from pages.parts.wire import Words, finite


class WatchesWords(Protocol):
    """Interface of the watcher of words that the socket needs; provided by `engine.workbench`."""

    def watch(self, trial_id: str, typed: Sequence[str], phrases: Collection[str] = ()) -> Watching:
        """Begin to compute the words of a trial. Raises EngineError where that cannot be."""


class WordFeed:
    """Messages on the words watched at one trial that one page has not received yet. is_over: there are no more."""

    def __init__(self, asked: Watch, words: Words) -> None:
        self.is_over = False
        self._asked, self._words = asked, words
        self._watching: Watching | None = None
        self._is_stopped = False
        self._num_sent = 0
        self._unsent: list[int] = []

    def begin(self, watcher: WatchesWords) -> None:
        """Begin to compute what is asked for; blocks while words are tokenised. Raises EngineError."""
        asked = self._asked
        if not asked.words:
            self.is_over = True
            return
        watching = watcher.watch(asked.job, asked.words, asked.phrases)
        self._unsent = [*range(len(watching.lines))]
        self._watching = watching
        if self._is_stopped:
            watching.stop()

    def stop(self) -> None:
        """Stop computing, also where that has not begun yet."""
        self._is_stopped = True
        if self._watching is not None:
            self._watching.stop()

    def message(self) -> dict[str, Any] | None:
        """Return the next message, None where no word is watched; sets `is_over` with the last one."""
        watching = self._watching
        if watching is None:
            return None
        is_over = watching.is_over  # read first: what comes after it is sent with the next message
        body: dict[str, Any] = {}
        if not self._num_sent:
            ids = [token for line in watching.lines for variant in _variants(line) for token in variant.ids]
            body = self._words.of(watching.vocabulary, ids) | {"lines": [_described(line) for line in watching.lines]}
        found = {index: figures for index in self._unsent if (figures := watching.lines[index].figures) is not None}
        self._unsent = [index for index in self._unsent if index not in found]
        body["figures"] = [{"index": index, **_columns(figures)} for index, figures in found.items()]
        if (progress := watching.progress) is not None:
            body["progress"] = progress._asdict()
        if watching.shift is not None:
            body["shift"] = watching.shift
        self._num_sent, self.is_over = self._num_sent + 1, is_over
        return self._message({**body, "over": is_over, "error": watching.error})

    def refusal(self, error: str) -> dict[str, Any]:
        """Return the message that nothing is computed, with the reason."""
        return self._message({"over": True, "error": error})

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"job": self._asked.job, "watch": {"number": self._asked.number, **body}}


def _variants(line: Line) -> tuple[Variant, ...]:
    return (*line.word.watched, *line.word.offered) if line.word else ()


def _described(line: Line) -> dict[str, Any]:
    """Return a word with its variants, each with what to type for it alone."""
    if line.word is None:
        return {"typed": line.typed, "error": line.error}
    watched, offered = ([variant._asdict() for variant in some] for some in (line.word.watched, line.word.offered))
    passes = line.word.passes
    return {"typed": line.typed, "watched": watched, "offered": offered, "passes": passes, "error": line.error}


def _columns(figures: Figures) -> dict[str, Any]:
    return {"logprob": finite(figures.logprob).tolist(), "rank": figures.rank.tolist()}
