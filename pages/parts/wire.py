"""Wire format of steps and token texts: columns of plain numbers, without an object per candidate."""

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.llama.frozen import Resampled
from engine.stages import GRAMMAR
from engine.step_parts import INSPECTED
from engine.steps import StepTable
from engine.vocabulary import Vocabulary
from engine.workbench.resampling import SampledAgain

MAX_CANDIDATES = 50
LEAST_LOGPROB = -1e4
"""Nats, of a watched word whose probability is 0: JSON has no infinity."""
_LEAST_P = 1e-7


def _rounded_p(p: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Round to seven decimals; values that were not cut stay above 0, because 0 means cut."""
    exact: npt.NDArray[np.float64] = p.astype(np.float64)
    rounded = exact.round(7)
    return np.where((exact > 0) & (rounded == 0), _LEAST_P, rounded)


def columns(table: StepTable, start: int, stop: int) -> dict[str, Any]:
    """Return steps `start` to `stop` as lists, None where nothing was recorded.

    logprob and entropy are in nats, ms is the time since the previous step. `top_*` hold a row for each step, at most
    MAX_CANDIDATES long; a row of top_p ends with its last candidate that was not cut, and all further ones are 0.
    Where stages were recorded: their names, what each left, and the stage that cut each candidate, from 1, or 0; with a
    grammar also whether it forbids each candidate. Where words were watched: their token ids, and of each step their
    log-probabilities and ranks.
    """
    records = table.records[start:stop]
    is_inspected = (records["flags"] & INSPECTED) != 0
    sent: dict[str, Any] = {
        "id": records["id"].tolist(),
        "ms": np.round(records["elapsed_s"] * 1e3, 3).tolist(),
        "flags": records["flags"].tolist(),
        "kept": records["num_kept"].tolist(),
    }
    if not is_inspected.any():
        return sent
    sent["rank"] = records["rank"].tolist()
    for name, digits in (("logprob", 6), ("entropy", 5)):
        sent[name] = np.where(is_inspected, np.round(records[name], digits), np.nan).tolist()
    sent["p"] = np.where(is_inspected, _rounded_p(records["p_final"]), np.nan).tolist()
    sent["draw"] = np.round(records["draw"], 6).tolist()
    if table.k:
        p_final = _rounded_p(table.top_p_final[start:stop, :MAX_CANDIDATES])
        ends = (p_final > 0) * np.arange(1, p_final.shape[1] + 1)
        lengths = ends.max(axis=1).tolist()
        sent["top_id"] = table.top_ids[start:stop, :MAX_CANDIDATES].tolist()
        logprobs = table.top_logprobs[start:stop, :MAX_CANDIDATES].astype(np.float64)
        sent["top_logprob"] = np.round(logprobs, 6).tolist()
        sent["top_p"] = [row[:length] for row, length in zip(p_final.tolist(), lengths, strict=True)]
    if (left := table.stage_columns) is not None:
        sent["stages"] = list(table.stages)
        sent["stage_kept"] = left.kept[start:stop].tolist()
        sent["stage_mass"] = np.round(left.mass[start:stop].astype(np.float64), 7).tolist()
        here = left.rows(slice(start, stop))
        sent["top_cut"] = here.cut_by[:, :MAX_CANDIDATES].tolist()
        if GRAMMAR in table.stages:
            sent["top_forbidden"] = here.is_forbidden[:, :MAX_CANDIDATES].tolist()
    if (words := table.watched_columns) is not None:
        sent["watched"] = [list(ids) for ids in table.watched]
        sent["watched_logprob"] = finite(words.logprob[start:stop]).tolist()
        sent["watched_rank"] = words.rank[start:stop].tolist()
    return sent


def finite(logprobs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return log-probabilities rounded to six decimals, with LEAST_LOGPROB for those of a probability of 0."""
    return np.maximum(logprobs, LEAST_LOGPROB).round(6)


class Words:
    """Token texts that a page already has; vocabularies are numbered in the order in which the page meets them."""

    def __init__(self) -> None:
        self._known: list[tuple[Vocabulary, npt.NDArray[np.bool_]]] = []

    def copy(self) -> "Words":
        """Return the same, for texts that may not be sent after all."""
        copied = Words()
        copied._known = [(vocabulary, is_sent.copy()) for vocabulary, is_sent in self._known]
        return copied

    def _entry(self, vocabulary: Vocabulary) -> tuple[int, npt.NDArray[np.bool_]]:
        for number, (known, is_sent) in enumerate(self._known):
            if known is vocabulary:
                if len(is_sent) < len(vocabulary):  # that of a server grows
                    is_sent = np.pad(is_sent, (0, len(vocabulary) - len(is_sent)))
                    self._known[number] = known, is_sent
                return number, is_sent
        is_sent = np.zeros(len(vocabulary), np.bool_)
        self._known.append((vocabulary, is_sent))
        return len(self._known) - 1, is_sent

    def new_in(self, table: StepTable, start: int, stop: int) -> dict[str, Any]:
        """Return number and size of the vocabulary, and [id, text, hex bytes, kind] of each token seen first."""
        ids = table.records["id"][start:stop]
        if table.k:
            ids = np.concatenate([ids, table.top_ids[start:stop, :MAX_CANDIDATES].ravel()])
        return self.new_of(table.vocabulary, ids)

    def of(self, vocabulary: Vocabulary, ids: list[int]) -> dict[str, Any]:
        """Return the ids of a text with what `new_in` returns."""
        return {"id": ids, **self.new_of(vocabulary, np.array(ids, np.int64))}

    def new_of(self, vocabulary: Vocabulary, ids: npt.NDArray[Any]) -> dict[str, Any]:
        """As `new_in`, for these ids; negative ones are no tokens."""
        number, is_sent = self._entry(vocabulary)
        ids = ids[ids >= 0]
        new = np.unique(ids[~is_sent[ids]])
        is_sent[new] = True
        words = [[i, vocabulary.text(i), vocabulary.pieces[i].hex(), vocabulary.kinds[i]] for i in new.tolist()]
        return {
            "v": number,
            "num_vocabulary": len(vocabulary),
            "add_space_prefix": vocabulary.add_space_prefix,
            "words": words,
        }


def sampled_again(again: SampledAgain, table: StepTable, shown: int | None) -> dict[str, Any]:
    """Return steps that were sampled again, as a page shows them.

    own: the trial's own parameters; idle: those that do nothing; num_candidates: recorded with each step; other:
    [index, id] of each step that draws another token; open: indices of the steps whose candidates do not decide that;
    step: the token of the step that is shown, and its row of `top_p` as in `columns`, None where it is forced.
    """
    result = again.result
    drawn = list(zip(result.ids, table.ids, result.is_exact, strict=False))  # a running trial has grown meanwhile
    return {
        "own": again.own,
        "idle": again.idle,
        "num_candidates": again.num_candidates,
        "other": [[index, new] for index, (new, old, is_exact) in enumerate(drawn) if is_exact and new != old],
        "open": [index for index, is_exact in enumerate(result.is_exact) if not is_exact],
        "step": None if shown is None or not result.p_final else _step(result, table, shown),
    }


def _step(result: Resampled, table: StepTable, index: int) -> dict[str, Any]:
    token, ids = result.ids[index], table.top_ids[index].tolist()
    p_final = _rounded_p(np.frombuffer(result.p_final, np.float32))
    place = ids.index(token) if token in ids else None
    return {
        "index": index,
        "id": token,
        "p": None if place is None else float(p_final[place]),
        "logprob": None if place is None else round(float(table.top_logprobs[index, place]), 6),
        "kept": result.num_kept,
        "top_p": np.trim_zeros(p_final[:MAX_CANDIDATES], "b").tolist(),
    }
