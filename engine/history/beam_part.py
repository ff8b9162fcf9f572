"""Beam search of a trial, as the history, trial files and JSON have it."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

import msgspec

from engine.comparing.beams import MOST_BEAMS, MOST_NODES, BeamEnd, Beams, BeamSpec
from engine.errors import ConfigError
from engine.jsonable import spec_from_dict, spec_to_dict
from engine.vocabulary import Vocabulary

Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class EndPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Complete sequence: the node of its last token, and its score."""

    node: Whole
    score: float


class BeamPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Serialised Beams; `spec` has all values of the BeamSpec by name."""

    spec: dict[str, Any]
    parents: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_NODES)]
    ids: Annotated[tuple[Whole, ...], msgspec.Meta(max_length=MOST_NODES)]
    logprobs: Annotated[tuple[float, ...], msgspec.Meta(max_length=MOST_NODES)]
    ends: Annotated[tuple[EndPart, ...], msgspec.Meta(max_length=MOST_BEAMS)]
    num_computed: Whole
    num_least: Whole

    @classmethod
    def of(cls, beams: Beams | None) -> Self | None:
        """Return the part for a beam search, None for none."""
        if beams is None:
            return None
        ends = tuple(EndPart(*end) for end in beams.ends)
        counts = beams.num_computed, beams.num_least
        return cls(spec_to_dict(beams.spec), beams.parents, beams.ids, beams.logprobs, ends, *counts)

    def read(self, vocabulary: Vocabulary) -> Beams:
        """Return the beam search, with tokens for `check_beams`. Raises ConfigError for one that no search makes."""
        return Beams(
            spec_from_dict(BeamSpec, self.spec),
            self.parents,
            self.ids,
            self.logprobs,
            tuple(BeamEnd(end.node, end.score) for end in self.ends),
            self.num_computed,
            self.num_least,
            vocabulary,
        )


def check_beams(beams: Beams, size: int, ids: Sequence[int]) -> None:
    """Raise ConfigError for a beam search with a token outside the `size` tokens of its tokenizer, or of a trial whose
    generated tokens `ids` are not its best sequence, or the first of it where the trial was stopped."""
    if max(beams.ids) >= size:
        raise ConfigError(f"token {max(beams.ids):,} of a beam search is outside the tokenizer's {size:,} tokens")
    if tuple(ids) != beams.best_ids[: len(ids)]:
        raise ConfigError("the tokens of a trial are not the best sequence of its beam search")


def beams_to_json(beams: Beams | None) -> str | None:
    """Return a beam search as the history's column has it, None for none."""
    return None if beams is None else msgspec.json.encode(BeamPart.of(beams)).decode()


def beams_from_json(column: str | None, vocabulary: Vocabulary) -> Beams | None:
    """Return the beam search of the history's column. Raises ValueError for another content."""
    return None if column is None else msgspec.json.decode(column, type=BeamPart).read(vocabulary)
