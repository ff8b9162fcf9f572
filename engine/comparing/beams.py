"""Beam search: the best sequences of tokens by a score, found with a fixed number of beams. Pure: the caller asks the
model.

The same search as transformers' `generate(do_sample=False, num_beams=...)`. A sequence's score is the sum of its
log-probabilities / length ** length_penalty, with the generated tokens as length, the end of text included: the
length normalisation of Wu et al. 2016 (https://arxiv.org/abs/1609.08144, section 7) in the form of transformers
(`GenerationMixin._update_finished_beams`), from which the rules of `early_stopping` are, too
(`GenerationMixin._check_early_stop_heuristic`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, NamedTuple, TypedDict

from engine.comparing.probable import Candidates
from engine.errors import ConfigError
from engine.specs import MAX_ID
from engine.validation import Spec
from engine.vocabulary import Vocabulary

MOST_BEAMS, MOST_NEW_TOKENS = 16, 1024
MOST_NODES = 2 * MOST_BEAMS * MOST_NEW_TOKENS
ROOT = -1
"""Parent of the first tokens."""

LEAST_LOGPROB, MOST_LOGPROB = -1e12, 1e-4
"""Bounds of a token's log-probability, nats: float32 rounds that of a probability of 1 to a little above 0."""

EarlyStopping = Literal["never"] | bool


class BeamOptions(TypedDict, total=False):
    """The parameters of BeamSpec, as keywords of `beam_search`."""

    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    max_new_tokens: int
    num_return_sequences: int | None


@dataclass(frozen=True, kw_only=True)
class BeamSpec(Spec):
    """Parameters of a beam search, with the names and the meaning that they have in transformers' generate.

    length_penalty: exponent of the length in the score; above 0 favours long sequences, below 0 short ones.
    early_stopping: True ends the search once num_beams sequences are complete; False once no beam has a better score at
    its present length than the worst of them; "never" once none can have a better one at any length, which for a
    length_penalty above 0 is computed for max_new_tokens. num_return_sequences None: as many as there are beams.
    """

    goes_into = "beam_search"
    options = BeamOptions

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    max_new_tokens: int = 20
    num_return_sequences: int | None = None

    def __post_init__(self) -> None:
        self._whole("num_beams", 1, MOST_BEAMS)
        self._real("length_penalty", -100, 100)
        self._one_of("early_stopping", (False, True, "never"))
        self._whole("max_new_tokens", 1, MOST_NEW_TOKENS)
        if self.num_return_sequences is not None:
            self._whole("num_return_sequences", 1, MOST_BEAMS)
            if self.num_return_sequences > self.num_beams:
                raise ConfigError(
                    f"num_return_sequences = {self.num_return_sequences}: must not exceed num_beams = {self.num_beams}"
                )

    @property
    def num_returned(self) -> int:
        """Number of sequences that are returned."""
        return self.num_return_sequences or self.num_beams

    def score(self, logprob: float, length: int) -> float:
        """Return the score of a sequence of `length` generated tokens whose log-probabilities sum to `logprob`."""
        return float(logprob / length**self.length_penalty)


class BeamSequence(NamedTuple):
    """Tokens of a beam, and the natural log-probability of each given those before it.

    score: None for a beam that was pruned, or not complete when the search ended. is_ended: its last token ends the
    text.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    score: float | None
    is_ended: bool

    @property
    def logprob(self) -> float:
        """Natural log-probability of all tokens together."""
        return math.fsum(self.logprobs)


class BeamEnd(NamedTuple):
    """A complete sequence: the node of its last token, and its score."""

    node: int
    score: float


@dataclass(frozen=True)
class Beams:
    """Result of a beam search: every token that a beam had, as a tree, and the complete sequences.

    parents: for each node the node before it, ROOT for a first token, (n,); ids, logprobs: its token and the natural
    log-probability of that, (n,). ends: the complete sequences that the search kept, the best score first.
    num_computed: tokens that the model computed, the prompt included; num_least: what each token computed once takes.
    Raises ConfigError for a tree that no search makes, as far as that shows without the vocabulary, which may be empty
    until `sequences` or `pruned` are read.
    """

    spec: BeamSpec
    parents: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ends: tuple[BeamEnd, ...]
    num_computed: int
    num_least: int
    vocabulary: Vocabulary = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        num = len(self.parents)
        if not 1 <= num <= MOST_NODES or len(self.ids) != num or len(self.logprobs) != num:
            raise ConfigError(f"a beam search of {num:,} parents, {len(self.ids):,} tokens: one of each is needed")
        if not all(ROOT <= parent < node for node, parent in enumerate(self.parents)):
            raise ConfigError("a token of a beam search comes before the one that it follows")
        if not 0 <= min(self.ids) <= max(self.ids) <= MAX_ID:
            raise ConfigError("a token of a beam search has an id that no vocabulary has")
        if not all(LEAST_LOGPROB <= logprob <= MOST_LOGPROB for logprob in self.logprobs):
            raise ConfigError("a log-probability of a beam search is above 0 or not a finite number")
        if max(self._depths) > self.spec.max_new_tokens:
            raise ConfigError("a sequence of a beam search is longer than its max_new_tokens")
        self._check_ends()

    def _check_ends(self) -> None:
        """Raise ConfigError where the complete sequences are not distinct ones, the best first, with their scores."""
        num, nodes, scores = len(self.ends), {one.node for one in self.ends}, [one.score for one in self.ends]
        if not 1 <= num <= self.spec.num_beams or len(nodes) < num:
            raise ConfigError(f"a beam search of {self.spec.num_beams} beams has {num:,} complete sequences")
        if not nodes <= self._leaves:
            raise ConfigError("a complete sequence of a beam search goes on")
        expected = [self.spec.score(self._totals[one.node], self._depths[one.node]) for one in self.ends]
        if not all(map(partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12), scores, expected)):
            raise ConfigError("a score of a beam search does not follow from its log-probabilities")
        if scores != sorted(scores, reverse=True):
            raise ConfigError("the complete sequences of a beam search are not in the order of their scores")

    @property
    def best_ids(self) -> tuple[int, ...]:
        """Token ids of the sequence with the best score."""
        return tuple(self.ids[node] for node in self._path(self.ends[0].node))

    @cached_property
    def sequences(self) -> tuple[BeamSequence, ...]:
        """The sequences that are returned, the best score first."""
        return tuple(self._sequence(end.node, end.score) for end in self.ends[: self.spec.num_returned])

    def pruned(self, most: int) -> list[BeamSequence]:
        """Return the beams that were not followed further and the complete ones that are not returned: at most `most`,
        the most probable first."""
        scores = {end.node: end.score for end in self.ends}
        best = sorted(self._pruned, key=lambda node: -self._totals[node])[:most]
        return [self._sequence(node, scores.get(node)) for node in best]

    @property
    def num_pruned(self) -> int:
        """Number of beams that `pruned` has without a limit."""
        return len(self._pruned)

    @property
    def _leaves(self) -> set[int]:
        return {*range(len(self.parents))} - {*self.parents}

    @property
    def _pruned(self) -> set[int]:
        return self._leaves - {end.node for end in self.ends[: self.spec.num_returned]}

    @cached_property
    def _totals(self) -> list[float]:
        """Log-probability of each node with all before it."""
        totals = list[float]()
        for parent, logprob in zip(self.parents, self.logprobs, strict=True):
            totals.append(logprob + (totals[parent] if parent != ROOT else 0.0))
        return totals

    @cached_property
    def _depths(self) -> list[int]:
        depths = list[int]()
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent != ROOT else 0))
        return depths

    def _path(self, node: int) -> list[int]:
        """Return the nodes from a first token to this one."""
        nodes = list[int]()
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def _sequence(self, node: int, score: float | None) -> BeamSequence:
        nodes = self._path(node)
        ids = tuple(self.ids[one] for one in nodes)
        text = self.vocabulary.join(ids).decode("utf-8", "replace")
        logprobs = tuple(self.logprobs[one] for one in nodes)
        return BeamSequence(ids, logprobs, text, score, self.vocabulary.is_end(ids[-1]))


class _Beam(NamedTuple):
    """Running beam: sum of its log-probabilities, the node of its last token, its tokens."""

    logprob: float
    node: int
    ids: tuple[int, ...]


class _Choice(NamedTuple):
    """Candidate that may follow a beam; logprob: of the whole beam with it."""

    logprob: float
    beam: _Beam
    token: int
    own_logprob: float
    is_end: bool


class BeamSearch:
    """Search for the sequences with the best scores.

    While it is not over, ask the model for the candidates after each of `prefixes`, at least `num_candidates` of them
    where the vocabulary has as many, and give them to `expand` in the same order.
    """

    def __init__(self, spec: BeamSpec) -> None:
        self.spec = spec
        self.is_over = False
        self.length = 0
        self._running = [_Beam(0.0, ROOT, ())]
        self._ends: list[BeamEnd] = []
        self._parents, self._ids, self._logprobs = list[int](), list[int](), list[float]()

    @staticmethod
    def num_candidates(spec: BeamSpec, num_ends: int) -> int:
        """Return how many candidates of a prefix can matter where `num_ends` tokens of the vocabulary end a text."""
        return spec.num_beams + num_ends

    @property
    def prefixes(self) -> list[tuple[int, ...]]:
        """The tokens of each running beam, the most probable first; one without tokens at the beginning."""
        return [beam.ids for beam in self._running]

    def expand(self, candidates: Sequence[Candidates]) -> None:
        """Take the candidates that follow each of `prefixes`. Raises ConfigError where there are none."""
        choices = [
            _Choice(beam.logprob + logprob, beam, token, logprob, is_end)
            for beam, found in zip(self._running, candidates, strict=True)
            for token, logprob, is_end in zip(*found, strict=True)
        ]
        if not choices:
            raise ConfigError("the model returned no candidates to follow the beams")
        self.length += 1
        is_last = self.length >= self.spec.max_new_tokens
        running, complete = self._chosen(choices, is_last=is_last)
        self._ends = sorted([*self._ends, *complete], key=lambda end: -end.score)[: self.spec.num_beams]
        self._running = running
        self.is_over = is_last or not running or not self._can_improve(running[0].logprob)

    def _chosen(self, choices: list[_Choice], *, is_last: bool) -> tuple[list[_Beam], list[BeamEnd]]:
        """Return the beams that run on, and those of the num_beams most probable choices that are complete."""
        running, complete = list[_Beam](), list[BeamEnd]()
        for place, choice in enumerate(sorted(choices, key=lambda one: -one.logprob)):
            if place >= self.spec.num_beams and (is_last or len(running) == self.spec.num_beams):
                break
            if choice.is_end or is_last:
                if place < self.spec.num_beams:
                    complete.append(BeamEnd(self._add(choice), self.spec.score(choice.logprob, self.length)))
            elif len(running) < self.spec.num_beams:
                running.append(_Beam(choice.logprob, self._add(choice), (*choice.beam.ids, choice.token)))
        return running, complete

    def _add(self, choice: _Choice) -> int:
        self._parents.append(choice.beam.node)
        self._ids.append(choice.token)
        self._logprobs.append(choice.own_logprob)
        return len(self._ids) - 1

    def _can_improve(self, best: float) -> bool:
        """Return whether a running beam, of which the best has the log-probability `best`, may still be among the best
        complete ones, by the rule of early_stopping."""
        if len(self._ends) < self.spec.num_beams:
            return True
        if self.spec.early_stopping is True:
            return False
        is_never = self.spec.early_stopping == "never" and self.spec.length_penalty > 0
        length = self.spec.max_new_tokens if is_never else self.length
        return self.spec.score(best, length) > self._ends[-1].score

    def result(self, vocabulary: Vocabulary, *, num_computed: int, num_least: int) -> Beams:
        """Return what the search has found; call when it is over. Raises ConfigError where nothing is complete."""
        return Beams(
            self.spec,
            tuple(self._parents),
            tuple(self._ids),
            tuple(self._logprobs),
            tuple(self._ends),
            num_computed,
            num_least,
            vocabulary,
        )
