"""Answers of servers as steps of a job: token ids, texts and times, and the end of the text."""

import math
import time
from collections.abc import Sequence

import numpy as np

from engine.backends.seen_vocabulary import SeenVocabulary
from engine.backends.sent import Sent, SentToken
from engine.errors import ServerFailed
from engine.jobs import Job
from engine.step_parts import INSPECTED, SHARED_MOMENT, step_dtype
from engine.vocabulary import Vocabulary

MOST_EMPTY = 10_000
"""Events in a row that bring no token: more of them are no answer."""
MOST_TEXT_BYTES = 64 << 20
"""Of one answer."""


class Answer:
    """The answer to one job, as a server sends it.

    known: the tokens of the server, all of them or those that were seen before; those of a server without ids are
    numbered as they come. Stop strings are looked for here, as servers leave out what they send of them: the text ends
    before the first.
    """

    def __init__(self, job: Job, known: Vocabulary) -> None:
        self.job = job
        self._vocabulary, self._known = job.vocabulary, known
        self._row = np.zeros(1, step_dtype(job.request.top_k))
        self._stops = [stop.encode() for stop in job.request.stop]
        self._text = bytearray()
        self._end: tuple[str, int] | None = None
        self.num_taken = self._num_empty = 0
        self._has_ids = False
        self._counts = Sent()
        self.sent_at = self._last_at = time.monotonic()
        self._first_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the text has ended here: by a stop string, or at the token limit."""
        return self._end is not None

    @property
    def has_end(self) -> bool:
        """Whether the server has said why the answer ended."""
        return bool(self._counts.finish)

    def take(self, sent: Sent, at: float) -> None:
        """Append what an event brings that came at a moment of time.monotonic().

        Raises ServerFailed for an answer that never ends.
        """
        self.num_taken += 1
        if sent.prompt:
            self._take_prompt(sent.prompt)
        num_before = len(self.job.steps)
        if self.is_over or (not sent.tokens and not sent.text):
            self._num_empty += 1
        elif sent.tokens:
            self._take_tokens(sent.tokens, sent.text, at)
        else:
            self._step(SentToken(None, sent.text.encode("utf-8", "replace")), at, is_shared=False)
        self._counts = _later(self._counts, sent)
        if len(self.job.steps) > num_before:
            self._num_empty = 0
        elif self._num_empty > MOST_EMPTY:
            raise ServerFailed(f"the server sent {MOST_EMPTY:,} events without a token")

    def finish(self) -> None:
        """End the job. Raises ServerFailed where the server broke off."""
        job = self.job
        if self._end is None and not self.has_end:
            raise ServerFailed(
                f"the server broke the answer off after {len(job.steps):,} tokens, without saying why: try again"
            )
        reason, num_bytes = self._end or (self._counts.finish, len(self._text))
        if self._end is None and reason == "stop":
            self._mark_end()
        self._close(reason, num_bytes)

    def end(self, reason: str) -> None:
        """End the job here, with what has come."""
        self._close(reason, len(self._text))

    def _close(self, reason: str, num_bytes: int) -> None:
        first_at = self._first_at or time.monotonic()
        self.job.on_ended(
            reason,
            num_bytes,
            prefill_s=first_at - self.sent_at,
            decode_s=max(self._last_at - first_at, 0.0),
            num_prompt=self._counts.num_prompt,
            num_cached=self._counts.num_cached,
            num_generated=self._counts.num_generated,
        )

    def _take_prompt(self, tokens: Sequence[SentToken]) -> None:
        """Append the scored tokens of the prompt, of which the first has no log-probability."""
        for token in tokens[1:]:
            self.job.on_steps(self._row_of(token, self._id_of(token, ""), elapsed_s=0.0), is_prompt=True)

    def _take_tokens(self, tokens: Sequence[SentToken], text: str, at: float) -> None:
        parts = _parts(tokens, text)
        for place, token in enumerate(tokens):
            if not self.is_over:
                part, last = parts[place], place == len(tokens) - 1
                self._step(token, at, is_shared=place > 0, text=text if last else "", part=part)

    def _step(self, token: SentToken, at: float, *, is_shared: bool, text: str = "", part: bytes | None = None) -> None:
        """Append a generated token. part: what it adds to the text, where the server returns no ids."""
        elapsed_s = at - (self._last_at if self._first_at else self.job.submitted)
        self._first_at, self._last_at = self._first_at or at, at
        if token.id is None and part is not None and isinstance(self._vocabulary, SeenVocabulary):
            number = self._vocabulary.number(part, told=token.piece or b"")
        else:
            number = self._id_of(token, text)
        row = self._row_of(token, number, elapsed_s=0.0 if is_shared else elapsed_s, is_shared=is_shared)
        self.job.on_steps(row)
        before = len(self._text)
        self._text += self._vocabulary.pieces[number]
        if len(self._text) > MOST_TEXT_BYTES:
            raise ServerFailed(f"the server's answer is longer than {MOST_TEXT_BYTES:,} bytes")
        self._look_for_stop(before)
        if self._end is None and len(self.job.steps) >= self.job.request.max_tokens:
            self._end = "length", len(self._text)

    def _look_for_stop(self, before: int) -> None:
        """End the text before the first stop string that ends in what was added after `before` bytes."""
        found = [at for stop in self._stops if (at := self._text.find(stop, max(before - len(stop) + 1, 0))) >= 0]
        if found:
            self._end = "stop", min(found)

    def _id_of(self, token: SentToken, text: str) -> int:
        """Return the id of a token, or its number, and note its bytes. text: what it adds, for unknown bytes."""
        vocabulary = self._vocabulary
        if not isinstance(vocabulary, SeenVocabulary):
            return self._id_in(vocabulary, token)
        if token.id is None:
            return vocabulary.number(token.piece or b"")
        self._has_ids = True
        assert isinstance(self._known, SeenVocabulary)
        if token.piece is not None:
            self._known.learn(token.id, token.piece)
        if not vocabulary.learn_from(self._known, token.id):
            vocabulary.learn(token.id, text.encode("utf-8", "replace"))
        return token.id

    def _id_in(self, vocabulary: Vocabulary, token: SentToken) -> int:
        """Return the id of a token of a server whose vocabulary is known."""
        if token.id is None or token.id >= len(vocabulary):
            raise ServerFailed(
                f"the server sent the token id {token.id}, beyond the {len(vocabulary):,} of its model, or none"
            )
        return token.id

    def _row_of(self, token: SentToken, number: int, *, elapsed_s: float, is_shared: bool = False) -> bytes:
        """Return the step_dtype row of a token. Its rank is known where it is among its candidates."""
        row, k = self._row, self.job.request.top_k
        record = row["record"]
        for name in ("entropy", "normaliser", "p_final", "draw"):
            record[name] = np.nan
        record["id"], record["elapsed_s"], record["num_kept"] = number, elapsed_s, 0
        record["logprob"] = token.logprob
        is_told = not math.isnan(token.logprob)
        record["flags"] = INSPECTED * is_told + SHARED_MOMENT * is_shared
        top = token.top[:k]
        record["rank"] = _rank(token.logprob, [one.logprob for one in top]) if is_told else 0
        if k:
            row["top_ids"], row["top_logprobs"], row["top_p_final"] = -1, -np.inf, np.nan
            if top:
                row["top_ids"][0, : len(top)] = [
                    number if one.id is None and one.piece == token.piece else self._id_of(SentToken(*one[:2]), "")
                    for one in top
                ]
                row["top_logprobs"][0, : len(top)] = [one.logprob for one in top]
        return row.tobytes()

    def _mark_end(self) -> None:
        """Note that the model ended the text: the last token has no bytes, or the server sends none for the end."""
        steps, vocabulary = self.job.steps, self._vocabulary
        if not isinstance(vocabulary, SeenVocabulary):
            return
        if len(steps) and not vocabulary.pieces[last := steps.ids[-1]]:
            vocabulary.mark_end(last)
            if self._has_ids:
                assert isinstance(self._known, SeenVocabulary)
                self._known.mark_end(last)
        elif not self._has_ids:  # servers with ids send that of the end
            end = vocabulary.number_of_end()
            self.job.on_steps(self._row_of(SentToken(end, None), end, elapsed_s=0.0, is_shared=True))


def _parts(tokens: Sequence[SentToken], text: str) -> list[bytes]:
    """Return the bytes that each token of an event adds to its text, as servers without ids tell them.

    They name the token that ends a text, and write U+FFFD for one within a character, of which the text has nothing:
    such a token adds none, and the last one all that is left.
    """
    whole, parts, at = text.encode("utf-8", "replace"), [], 0
    for token in tokens:
        piece = token.piece or b""
        part = piece if whole.startswith(piece, at) else b""
        parts.append(part)
        at += len(part)
    parts[-1] += whole[at:]
    return parts


def _rank(logprob: float, top: Sequence[float]) -> int:
    """Return the rank of a log-probability among those of the candidates; 0, unknown, where it is below all of them."""
    rank = 1 + sum(one > logprob for one in top)
    return rank if rank <= len(top) else 0


def _later(before: Sent, sent: Sent) -> Sent:
    """Return the counts and the end that a server has reported so far."""
    return Sent(
        finish=sent.finish or before.finish,
        num_prompt=before.num_prompt if sent.num_prompt is None else sent.num_prompt,
        num_cached=before.num_cached if sent.num_cached is None else sent.num_cached,
        num_generated=before.num_generated if sent.num_generated is None else sent.num_generated,
    )
