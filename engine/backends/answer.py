"""Answers of servers as steps of a job: token ids, texts and times, and the end of the text."""

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from operator import neg

from engine.backends.seen_vocabulary import SeenVocabulary
from engine.backends.sent import Name, Sent, SentCandidate, SentToken, nats_of, piece_of
from engine.errors import ServerFailed
from engine.jobs import Job
from engine.step_parts import INSPECTED, SHARED_MOMENT, row_packer
from engine.vocabulary import Vocabulary

MOST_EMPTY = 10_000
"""Events in a row that bring no token: more of them are no answer."""
MOST_AFTER = 16
"""Events after the last token that a request allows: they say why the answer ended, and count. More are no end."""
MOST_TEXT_BYTES = 64 << 20
"""Of one answer."""
_NONE = object()
"""In place of the name of a chosen token where there is none: a token's own name may be None."""


class Answer:
    """The answer to one job, as a server sends it.

    started_at: when the job left the queue, on the monotonic clock; the prefill begins then, with the request that
    tokenizes its prompt where there is one. known: the tokens of the server, all of them or those that were seen
    before; those of a server without ids are numbered as they come. Stop strings are looked for here, as servers leave
    out what they send of them: the text ends before the first.
    """

    def __init__(self, job: Job, known: Vocabulary, started_at: float) -> None:
        self.job = job
        self._vocabulary = job.vocabulary
        self._seen = job.vocabulary if isinstance(job.vocabulary, SeenVocabulary) else None
        self._known = known if isinstance(known, SeenVocabulary) else None
        self._numbers: dict[Name, int] = {}
        self._k, self._packed = job.request.top_k, row_packer(job.request.top_k)
        self._no_p_final = (math.nan,) * self._k
        self._rows: list[bytes] = []
        self._stops = [stop.encode() for stop in job.request.stop]
        self._text = bytearray()
        self._end: tuple[str, int] | None = None
        self.num_taken = self._num_steps = self._num_empty = self._num_after = 0
        self._has_ids = False
        self._finish = ""
        self._num_prompt: int | None = None
        self._num_cached: int | None = None
        self._num_generated: int | None = None
        self._started_at = started_at
        self._first_at = self._last_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the text has ended here: by a stop string, or at the token limit."""
        return self._end is not None

    @property
    def is_enough(self) -> bool:
        """Whether nothing more of it is read: it goes on after a stop string, or long after the token limit.

        At the limit the server ends it by itself, and only then can its connection serve another request.
        """
        return self._end is not None and (self._end[0] == "stop" or self._num_after > MOST_AFTER)

    @property
    def has_end(self) -> bool:
        """Whether the server has said why the answer ended."""
        return bool(self._finish)

    def take(self, events: Sequence[Sent], at: float) -> None:
        """Append what events bring that came together, at a moment of time.monotonic().

        Raises ServerFailed for an answer that never ends, after what it has brought was appended.
        """
        try:
            for sent in events:
                self._take(sent, at)
        finally:
            if self._rows:
                rows, self._rows = self._rows, []
                self.job.on_steps(b"".join(rows))
            self.num_taken += len(events)

    def _take(self, sent: Sent, at: float) -> None:
        if sent.prompt:
            self._take_prompt(sent.prompt)
        self._num_after += self.is_over
        num_before = self._num_steps
        if sent.tokens:
            self._take_tokens(sent.tokens, sent.text, at)
        elif sent.text and not self.is_over:
            self._step(SentToken(), at, part=sent.text.encode("utf-8", "replace"))
        self._count(sent)
        if self._num_steps > num_before:
            self._num_empty = 0
            return
        self._num_empty += 1
        if self._num_empty > MOST_EMPTY and not self.is_over:
            raise ServerFailed(f"the server sent {MOST_EMPTY:,} events without a token")

    def _count(self, sent: Sent) -> None:
        """Note the end and the counts that the server has reported so far."""
        self._finish = sent.finish or self._finish
        if sent.num_generated is not None:
            self._num_generated = sent.num_generated
        if sent.num_prompt is not None:
            self._num_prompt = sent.num_prompt
        if sent.num_cached is not None:
            self._num_cached = sent.num_cached

    def finish(self) -> None:
        """End the job. Raises ServerFailed where the server broke off."""
        if self._end is None and not self.has_end:
            raise ServerFailed(
                f"the server broke the answer off after {self._num_steps:,} tokens, without saying why: try again"
            )
        reason, num_bytes = self._end or (self._finish, len(self._text))
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
            prefill_s=first_at - self._started_at,
            decode_s=max(self._last_at - first_at, 0.0),
            num_prompt=self._num_prompt,
            num_cached=self._num_cached,
            num_generated=self._num_generated,
        )

    def _take_prompt(self, tokens: Sequence[SentToken]) -> None:
        """Append the scored tokens of the prompt, of which the first has no log-probability."""
        rows = [self._row_of(token, self._id_of(token)) for token in tokens[1:]]
        self.job.on_steps(b"".join(rows), is_prompt=True)

    def _take_tokens(self, tokens: Sequence[SentToken], text: str, at: float) -> None:
        has_parts = self._seen is not None and None in [token.id for token in tokens]
        parts = _parts(tokens, text) if has_parts else [None] * len(tokens)
        for place, (token, part) in enumerate(zip(tokens, parts, strict=True), 1):
            if not self.is_over:
                self._step(token, at, text=text if place == len(tokens) else "", part=part)

    def _step(self, token: SentToken, at: float, *, text: str = "", part: bytes | None = None) -> None:
        """Append a generated token. part: what it adds to the text, where the server returns no ids.

        A token at the moment of the one before it came together with it.
        """
        is_shared = at == self._last_at
        elapsed_s = at - (self._last_at if self._first_at else self.job.submitted)
        self._first_at, self._last_at = self._first_at or at, at
        if token.id is None and part is not None and self._seen is not None:
            number = self._seen.number(part, name=b"" if part else token.piece or b"")
        else:
            number = self._id_of(token, text)
            self._has_ids |= token.id is not None
        self._rows.append(self._row_of(token, number, elapsed_s, SHARED_MOMENT * is_shared))
        self._num_steps += 1
        before = len(self._text)
        self._text += self._vocabulary.pieces[number]
        if len(self._text) > MOST_TEXT_BYTES:
            raise ServerFailed(f"the server's answer is longer than {MOST_TEXT_BYTES:,} bytes")
        if self._stops:
            self._look_for_stop(before)
        if self._end is None and self._num_steps >= self.job.request.max_tokens:
            self._end = "length", len(self._text)

    def _look_for_stop(self, before: int) -> None:
        """End the text before the first stop string that ends in what was added after `before` bytes."""
        found = [at for stop in self._stops if (at := self._text.find(stop, max(before - len(stop) + 1, 0))) >= 0]
        if found:
            self._end = "stop", min(found)

    def _id_of(self, token: SentCandidate, text: str = "") -> int:
        """Return the id of a token, or its number, and note its bytes. text: what it adds, for unknown bytes."""
        return self._ids_of((token,), text)[0]

    def _ids_of(self, tokens: Sequence[SentCandidate], text: str = "") -> list[int]:
        """As `_id_of`, of several tokens."""
        ids = [token.id for token in tokens]
        if self._seen is None:
            self._check(ids)
        elif None in ids:
            return [self._numbers_of([one.name])[0] if one.id is None else self._id_of(one, text) for one in tokens]
        else:
            assert self._known is not None
            for number in self._seen.learn_from(self._known, ids):  # type: ignore[arg-type]  # none of them is None
                self._learn(self._seen, self._known, tokens[ids.index(number)], text)
        return ids  # type: ignore[return-value]

    def _numbers_of(self, names: Sequence[Name], chosen: object = _NONE, number: int = 0) -> list[int]:
        """Return the numbers of tokens of a server without ids; `number` is that of the one with the name `chosen`."""
        numbers = self._numbers
        found = list(map(numbers.get, names))
        if None in found:
            new = [name for name, one in zip(names, found, strict=True) if one is None and name != chosen]
            if new:
                assert self._seen is not None
                numbered = self._seen.numbers([piece_of(name) or b"" for name in new])
                numbers.update(zip(new, numbered, strict=True))
            found = [number if name == chosen else numbers[name] for name in names]
        elif chosen in names and found[names.index(chosen)] != number:
            found = [number if name == chosen else one for name, one in zip(names, found, strict=True)]
        return found  # type: ignore[return-value]  # none of them is None

    def _learn(self, seen: SeenVocabulary, known: SeenVocabulary, token: SentCandidate, text: str) -> None:
        """Note the bytes of an id that no job has seen yet."""
        assert token.id is not None
        if (piece := token.piece) is None:
            seen.learn(token.id, text.encode("utf-8", "replace"))
            return
        known.learn(token.id, piece)
        seen.learn_from(known, (token.id,))

    def _check(self, ids: Sequence[int | None]) -> None:
        """Raise ServerFailed for an id that a vocabulary which is known does not have."""
        num_tokens = len(self._vocabulary)
        for number in ids:
            if number is None or number >= num_tokens:
                raise ServerFailed(
                    f"the server sent the token id {number}, beyond the {num_tokens:,} of its model, or none"
                )

    def _row_of(self, token: SentToken, number: int, elapsed_s: float = 0.0, flags: int = 0) -> bytes:
        """Return the step_dtype row of a token. Its rank is known where it is among its candidates."""
        if token.id is None:
            names, logprobs = token.named(self._k)
            ids = self._numbers_of(names, token.name, number)
        else:
            top = token.top[: self._k]
            ids, logprobs = self._ids_of(top), nats_of(top)
        logprob, rank = token.nats, 0
        if token.logprob is not None:
            flags, rank = flags | INSPECTED, _rank(logprob, logprobs)
        if num_left := self._k - len(ids):
            ids, logprobs = [*ids, *[-1] * num_left], [*logprobs, *[-math.inf] * num_left]
        record = number, rank, logprob, math.nan, math.nan, math.nan, math.nan, elapsed_s, flags, 0
        return self._packed(*record, *ids, *logprobs, *self._no_p_final)

    def _mark_end(self) -> None:
        """Note that the model ended the text: the last token has no bytes, or the server sends none for the end."""
        steps, seen = self.job.steps, self._seen
        if seen is None:
            return
        if len(steps) and not seen.pieces[last := steps.ids[-1]]:
            seen.mark_end(last)
            if self._has_ids:
                assert self._known is not None
                self._known.mark_end(last)
        elif not self._has_ids:  # servers with ids send that of the end
            end = seen.number_of_end()
            self.job.on_steps(self._row_of(SentToken(end), end, flags=SHARED_MOMENT))


def _parts(tokens: Sequence[SentToken], text: str) -> list[bytes]:
    """Return the bytes that each token of an event adds to its text, as servers without ids tell them.

    They name the token that ends a text, and write U+FFFD for one within a character, of which the text has nothing:
    such a token adds none, and the last one all that is left.
    """
    whole, parts, at = text.encode("utf-8", "replace"), [], 0
    if len(tokens) == 1:
        return [whole]
    for token in tokens:
        piece = token.piece or b""
        part = piece if whole.startswith(piece, at) else b""
        parts.append(part)
        at += len(part)
    parts[-1] += whole[at:]
    return parts


def _rank(logprob: float, top: Sequence[float]) -> int:
    """Return the rank of a log-probability among those of the candidates; 0, unknown, where it is below all of them."""
    if top and logprob >= top[0]:
        return 1
    rank = 1 + bisect_left(top, -logprob, key=neg)
    return rank if rank <= len(top) else 0
