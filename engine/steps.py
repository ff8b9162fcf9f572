"""Steps of a job: one record for each token with its candidates, stored in a table, read as TokenStep."""

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Self, overload

import numpy as np

from engine.specs import TokenSets
from engine.step_parts import (
    FORCED,
    INSPECTED,
    RESAMPLED,
    SHARED_MOMENT,
    Candidate,
    Floats,
    Ints,
    Records,
    Stage,
    StageColumns,
    WatchedColumns,
    WatchedWord,
    step_dtype,
)
from engine.vocabulary import TextDecoder, Vocabulary


def _bytes_of(rows: Records) -> memoryview:
    return rows.view(np.uint8).data


class StepTable(Sequence["TokenStep"]):
    """Table of steps with column access: `records` (n,) of RECORD; `top_ids`, `top_logprobs`, `top_p_final` (n, k).

    stages: names of the s sampler stages that were recorded, in their order; `stage_columns` has what each left.
    watched: sets of token ids whose probabilities were recorded, in `watched_columns`.
    Also a sequence of TokenStep. One thread appends; other threads may read the rows present at that moment.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        k: int,
        *,
        is_prompt: bool = False,
        stages: tuple[str, ...] = (),
        watched: TokenSets = (),
    ) -> None:
        self.vocabulary, self.k, self.stages, self.watched = vocabulary, k, stages, watched
        self._is_prompt = is_prompt
        self._size = 0
        self._use(np.zeros(64, step_dtype(k, len(stages), len(watched))))
        self._texts: list[str] = []
        self._reading = threading.Lock()
        self._decoder = TextDecoder(vocabulary, strip_first_space=is_prompt)

    @classmethod
    def of(
        cls,
        vocabulary: Vocabulary,
        records: Records,
        ids: Ints,
        logprobs: Floats,
        p_final: Floats,
        *,
        is_prompt: bool,
        stages: tuple[str, ...] = (),
        stage_columns: StageColumns | None = None,
    ) -> Self:
        """Return a complete table from its columns, as read back from history."""
        table = cls(vocabulary, ids.shape[1], is_prompt=is_prompt, stages=stages)
        table.append(records, ids, logprobs, p_final, stage_columns)
        return table

    def append(
        self, records: Records, ids: Ints, logprobs: Floats, p_final: Floats, stage_columns: StageColumns | None = None
    ) -> None:
        """Append n steps; those of a table with stages have their columns. Nothing is known of watched words."""
        rows = np.zeros(len(records), self._rows.dtype)
        rows["record"], rows["top_ids"], rows["top_logprobs"], rows["top_p_final"] = records, ids, logprobs, p_final
        if self.stages and stage_columns is not None:
            rows["stage_kept"], rows["stage_mass"], rows["top_cut"] = stage_columns
        if self.watched:
            rows["watched_logprob"] = np.nan
        self.append_bytes(_bytes_of(rows))

    def append_bytes(self, rows: bytes | memoryview) -> None:
        """Append n steps from the bytes of their step_dtype rows; the table grows by doubling."""
        width, start, end = self._width, self._size, self._size + len(rows) // self._width
        if end > self._room:
            self._grow(max(end, 2 * self._room))
        self._memory[start * width : end * width] = rows
        self._size = end

    def _grow(self, size: int) -> None:
        grown = np.zeros(size, self._rows.dtype)
        _bytes_of(grown)[: len(self._memory)] = self._memory
        self._use(grown)

    def _use(self, rows: Records) -> None:
        self._rows, self._memory, self._ids = rows, _bytes_of(rows), rows["record"]["id"]
        self._width, self._room = rows.itemsize, len(rows)

    @property
    def records(self) -> Records:
        """Fixed-size record of each step, shape (n,)."""
        column: Records = self._rows["record"]
        return column[: self._size]

    @property
    def top_ids(self) -> Ints:
        """Candidate ids, most probable first, shape (n, k)."""
        column: Ints = self._rows["top_ids"]
        return column[: self._size]

    @property
    def top_logprobs(self) -> Floats:
        """Natural log-probabilities of the candidates, shape (n, k)."""
        column: Floats = self._rows["top_logprobs"]
        return column[: self._size]

    @property
    def top_p_final(self) -> Floats:
        """Probabilities just before the draw, 0 where a sampler cut the candidate, shape (n, k)."""
        column: Floats = self._rows["top_p_final"]
        return column[: self._size]

    @property
    def stage_columns(self) -> StageColumns | None:
        """What each stage left; None where no stages were recorded."""
        if not self.stages:
            return None
        rows = self._rows[: self._size]
        return StageColumns(rows["stage_kept"], rows["stage_mass"], rows["top_cut"])

    @property
    def watched_columns(self) -> WatchedColumns | None:
        """Log-probability and rank of each watched word; None where none was watched."""
        if not self.watched:
            return None
        rows = self._rows[: self._size]
        return WatchedColumns(rows["watched_logprob"], rows["watched_rank"])

    @property
    def ids(self) -> list[int]:
        """Token ids in order."""
        ids: list[int] = self._ids[: self._size].tolist()
        return ids

    def texts_of(self, here: range) -> list[str]:
        """Return the readable text that each of some successive steps adds."""
        with self._reading:
            for token in self._ids[len(self._texts) : here.stop].tolist():
                self._texts.append(self._decoder.step(token))
        return self._texts[here.start : here.stop]

    @property
    def text(self) -> str:
        """All steps as readable text; an incomplete character at the end becomes U+FFFD."""
        raw = self.vocabulary.join(self.ids)
        if self._is_prompt and self.vocabulary.add_space_prefix:
            raw = raw.removeprefix(b" ")
        return raw.decode("utf-8", "replace")

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> "TokenStep": ...
    @overload
    def __getitem__(self, index: slice) -> list["TokenStep"]: ...
    def __getitem__(self, index: int | slice) -> "TokenStep | list[TokenStep]":
        if isinstance(index, slice):
            return [TokenStep(self, i) for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"step {index} of {self._size}")
        return TokenStep(self, index % self._size)

    def __iter__(self) -> Iterator["TokenStep"]:
        return (TokenStep(self, index) for index in range(self._size))

    def __repr__(self) -> str:
        return f"StepTable({self._size:,} steps, k={self.k})"

    def __eq__(self, other: object) -> bool:
        """Compare steps bit for bit, and their vocabularies."""
        if not isinstance(other, StepTable):
            return NotImplemented
        if self is other:
            return True
        about = [(table.k, table.stages, table.watched, table._is_prompt, len(table)) for table in (self, other)]
        return about[0] == about[1] and self._bytes() == other._bytes() and _is_same(self.vocabulary, other.vocabulary)

    def __hash__(self) -> int:
        return hash((self.k, self._is_prompt))  # the table grows: nothing else is constant

    def _row(self, index: int) -> bytes:
        return bytes(self._memory[index * self._width : (index + 1) * self._width])

    def _bytes(self) -> bytes:
        return bytes(self._memory[: self._size * self._width])

    def __copy__(self) -> "StepTable":
        return _table_of(self.vocabulary, self.k, self._bytes(), self._is_prompt, self.stages, self.watched)

    def __deepcopy__(self, _known: dict[int, Any]) -> "StepTable":
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        used = np.unique(np.concatenate([self.records["id"], self.top_ids.ravel()]))
        part = self.vocabulary.part(used[used >= 0].tolist())
        return _table_of, (part, self.k, self._bytes(), self._is_prompt, self.stages, self.watched)


def _table_of(
    vocabulary: Vocabulary,
    k: int,
    rows: bytes,
    is_prompt: bool,
    stages: tuple[str, ...] = (),
    watched: TokenSets = (),
) -> StepTable:
    """Return a table rebuilt from its rows, for copies and unpickling."""
    table = StepTable(vocabulary, k, is_prompt=is_prompt, stages=stages, watched=watched)
    table.append_bytes(rows)
    return table


def _is_same(one: Vocabulary, other: Vocabulary) -> bool:
    return one is other or one.hash == other.hash


class TokenStep:
    """One token with its statistics, which are None where none were recorded (top_k=0, a prompt's first token).

    logprob, rank and entropy are exact over the whole vocabulary, of the model's own distribution before any sampler,
    in nats; rank 1 is the most probable and ties share the better rank. p_final is the probability just before the
    draw, draw the uniform number used, elapsed_s the seconds since the job's previous step. An external engine does not
    report all of these; those that it does not report are None too.
    """

    __slots__ = ("_index", "_table")

    def __init__(self, table: StepTable, index: int) -> None:
        self._table, self._index = table, index

    @property
    def id(self) -> int:
        """Id of this token in the vocabulary."""
        return int(self._table._ids[self._index])

    @property
    def text(self) -> str:
        """Readable text that this token adds; empty while its character is incomplete."""
        return self._table.texts_of(range(self._index, self._index + 1))[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenStep):
            return NotImplemented
        mine, theirs = self._table, other._table
        if self._index != other._index or self.id != other.id:
            return False
        return mine is theirs or (
            mine._row(self._index) == theirs._row(self._index) and _is_same(mine.vocabulary, theirs.vocabulary)
        )

    def __hash__(self) -> int:
        return hash((self.id, self._index))

    def _figure(self, name: str) -> float | None:
        """Return a figure of the record; None where nothing was recorded, or the engine does not tell this one."""
        record = self._table.records[self._index]
        if not record["flags"] & INSPECTED:
            return None
        figure: float = record[name].item()
        return None if math.isnan(figure) else figure

    @property
    def bytes(self) -> bytes:
        """The bytes that this token adds; empty for control tokens."""
        return self._table.vocabulary.pieces[self.id]

    @property
    def logprob(self) -> float | None:
        """Natural log of the model's probability of this token."""
        return self._figure("logprob")

    @property
    def rank(self) -> int | None:
        """Rank in the model's distribution, 1 for the most probable token."""
        record = self._table.records[self._index]
        return int(record["rank"]) or None if record["flags"] & INSPECTED else None

    @property
    def entropy(self) -> float | None:
        """Entropy of the model's distribution, in nats."""
        return self._figure("entropy")

    @property
    def normaliser(self) -> float | None:
        """Log of the sum of exponentiated logits: logit minus this is the log-probability."""
        return self._figure("normaliser")

    @property
    def p_final(self) -> float | None:
        """Probability just before the draw; None for prompt tokens, which were not drawn."""
        return self._figure("p_final")

    @property
    def draw(self) -> float | None:
        """The uniform number in [0, 1) used for the draw; None where nothing was drawn."""
        draw = float(self._table.records["draw"][self._index])
        return None if math.isnan(draw) else draw

    @property
    def elapsed_s(self) -> float:
        """Seconds since this job's previous step; for the first, since submit."""
        return float(self._table.records["elapsed_s"][self._index])

    @property
    def num_kept(self) -> int | None:
        """Number of candidates left by the samplers; None where nothing was drawn."""
        kept = int(self._table.records["num_kept"][self._index])
        return kept or None

    @property
    def is_forced(self) -> bool:
        """True where the token was forced, not drawn."""
        return bool(self._table.records["flags"][self._index] & FORCED)

    @property
    def is_resampled(self) -> bool:
        """True where the grammar rejected the first draw and the sampler chain ran again."""
        return bool(self._table.records["flags"][self._index] & RESAMPLED)

    @property
    def shares_moment(self) -> bool:
        """True where it came together with the token before it, so that its time is not its own."""
        return bool(self._table.records["flags"][self._index] & SHARED_MOMENT)

    @property
    def top(self) -> list[Candidate]:
        """The recorded candidates, most probable first; built on access."""
        table, index = self._table, self._index
        if not table.k or not table.records["flags"][index] & INSPECTED:
            return []
        rows = zip(
            table.top_ids[index].tolist(),
            table.top_logprobs[index].tolist(),
            table.top_p_final[index].tolist(),
            strict=True,
        )
        vocabulary = table.vocabulary
        return [Candidate(i, vocabulary.pieces[i], vocabulary.text(i), lp, p) for i, lp, p in rows if i >= 0]

    @property
    def stages(self) -> list[Stage]:
        """What each sampler stage left, in their order; empty where that was not recorded."""
        table, index = self._table, self._index
        if (columns := table.stage_columns) is None:
            return []
        ids, cut_by = table.top_ids[index], columns.cut_by[index]
        left = zip(table.stages, columns.kept[index].tolist(), columns.mass[index].tolist(), strict=True)
        return [Stage(*one, tuple(ids[cut_by == number].tolist())) for number, one in enumerate(left, 1)]

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Ids of the recorded candidates that the grammar forbids, most probable first; empty without stages.

        The grammar is asked after the draw, so that a forbidden candidate may have a final probability: drawn, it is
        rejected, and the chain runs again on what the grammar allows.
        """
        table, index = self._table, self._index
        if (columns := table.stage_columns) is None:
            return ()
        return tuple(table.top_ids[index][columns.is_forbidden[index]].tolist())

    @property
    def watched(self) -> list[WatchedWord]:
        """Probability and rank of each watched word; empty where none was watched or nothing recorded."""
        columns = self._table.watched_columns
        if columns is None or not self._table.records["flags"][self._index] & INSPECTED:
            return []
        figures = zip(columns.logprob[self._index].tolist(), columns.rank[self._index].tolist(), strict=True)
        return [WatchedWord(ids, *found) for ids, found in zip(self._table.watched, figures, strict=True)]

    @property
    def top_logprobs(self) -> list[tuple[int, float]]:
        """Id and log-probability of each recorded candidate, most probable first: `top` without its texts."""
        table, index = self._table, self._index
        if not table.k or not table.records["flags"][index] & INSPECTED:
            return []
        rows = zip(table.top_ids[index].tolist(), table.top_logprobs[index].tolist(), strict=True)
        return [(token, logprob) for token, logprob in rows if token >= 0]

    def __repr__(self) -> str:
        figure = "" if self.logprob is None else f", logprob={self.logprob:.3f}, rank={self.rank}"
        return f"TokenStep(id={self.id}, text={self.text!r}{figure})"
