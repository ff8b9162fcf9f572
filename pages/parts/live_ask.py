"""What a page may ask on its web socket, and which of its questions are answered."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Generic, TypeVar

import msgspec

from engine.watched_words import MAX_WORD_CHARACTERS, MAX_WORDS
from engine.workbench.resampling import SLIDERS

MAX_JOBS = 64
MOST_ASKED = 100  # trials of one message
MAX_TEXT = 20_000  # characters that are tokenised while they are typed: a worker takes at most 0.25 s for these
MAX_PATH = 4_096
MAX_MESSAGE = 100 * MOST_ASKED + 6 * (MAX_TEXT + MAX_PATH)  # characters; a job takes about 50, an escaped one six

Question = TypeVar("Question")

Id = Annotated[str, msgspec.Meta(max_length=64)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Step(msgspec.Struct, forbid_unknown_fields=True):
    """A generated token of a trial."""

    job: Id
    step: Index


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """Changed sampling parameters of a trial, by name; `shown` is the step whose distribution is wanted."""

    job: Id
    changed: Annotated[dict[Id, float], msgspec.Meta(max_length=len(SLIDERS))]
    shown: Index | None = None


class Text(msgspec.Struct, forbid_unknown_fields=True):
    """A text as it stands in a field.

    field and number: named in the answer; model: path of a file, "" for the loaded model; special: written control
    tokens count as such.
    """

    field: Id
    number: Index
    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    model: Annotated[str, msgspec.Meta(max_length=MAX_PATH, pattern=r"^[^\x00]*$")] = ""
    special: bool = False


Typed = Annotated[str, msgspec.Meta(max_length=MAX_WORD_CHARACTERS)]
TypedWords = Annotated[list[Typed], msgspec.Meta(max_length=MAX_WORDS)]


class Watch(msgspec.Struct, forbid_unknown_fields=True):
    """Words to watch at a trial, as typed; none stops what is computed. number: named in the answers; phrases: those of
    several tokens to compute."""

    number: Index
    job: Id
    words: TypedWords
    phrases: TypedWords


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """Message from a page.

    `jobs` maps a trial's id to the index of the first step needed; `latency` requests time stamps; `flips` asks at
    which sampling parameters a step draws another token; `resample` asks what all steps draw with other parameters;
    `text` asks for the tokens of a text; `watch` for the probabilities of words at each position of a trial.
    """

    jobs: Annotated[dict[Id, Index], msgspec.Meta(max_length=MOST_ASKED)]
    latency: bool = False
    flips: Step | None = None
    resample: Change | None = None
    text: Text | None = None
    watch: Watch | None = None


_decode = msgspec.json.Decoder(Ask).decode


def read_ask(message: str) -> Ask:
    """Read a message of a page. Raises MsgspecError where it is too long or not one."""
    if len(message) > MAX_MESSAGE:
        raise msgspec.ValidationError("the message is too long")
    return _decode(message)


class Latest(Generic[Question]):
    """Questions of one kind from a page, answered in turn: of those that wait about the same thing only the latest, as
    a reader may walk, or drag a slider, quickly."""

    def __init__(self, answer: Callable[[Question], Awaitable[None]]) -> None:
        self._answer = answer
        self._waiting: dict[str, Question] = {}
        self._task: asyncio.Task[None] | None = None

    def ask(self, question: Question, about: str = "") -> None:
        """Answer a question as soon as those before are answered; none about more than MAX_JOBS things at once."""
        if about in self._waiting or len(self._waiting) < MAX_JOBS:
            self._waiting[about] = question
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer_all())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The task that answers, if any."""
        return [self._task] if self._task else []

    async def _answer_all(self) -> None:
        while self._waiting:
            await self._answer(self._waiting.pop(next(iter(self._waiting))))
