"""What a benchmark shall measure: a question, the axes that vary, what is asked of each cell, and how often."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError
from engine.specs import PoolSpec, Spec

Question = Literal["speed", "settings", "python", "users", "embedding"]
QUESTIONS: tuple[Question, ...] = ("speed", "settings", "python", "users", "embedding")
Asked = Literal["tokens", "prompts"]
Arrival = Literal["together", "users", "poisson"]
Arm = Literal["pool", "loop", "create_completion", "llama-bench"]
ARMS: tuple[Arm, ...] = ("llama-bench", "loop", "pool", "create_completion")
Goal = Literal["stream", "throughput", "first-token", "memory"]
GOALS: tuple[Goal, ...] = ("stream", "throughput", "first-token", "memory")


@dataclass(frozen=True, kw_only=True)
class Workload(Spec):
    """What one sample asks of a cell.

    asked "tokens": prompts of num_prompt random ids and num_generated tokens, end of sequence barred, after `depth`
    ids that are not timed, as llama-bench does; "prompts": the texts of `prompts`, one after the other, at most
    num_generated tokens each. arrival "together": one request for every sequence, submitted at once; "users": `users`
    of them, each of whom asks again once answered; "poisson": rate_per_s requests a second, for duration_s seconds.
    """

    asked: Asked = "tokens"
    num_prompt: int = 128
    num_generated: int = 64
    depth: int = 0
    prompts: tuple[str, ...] = ()
    arrival: Arrival = "together"
    users: int = 1
    rate_per_s: float = 1.0
    duration_s: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", tuple(self.prompts))
        self._one_of("asked", ("tokens", "prompts"))
        self._one_of("arrival", ("together", "users", "poisson"))
        self._whole("num_prompt", 0, 1 << 20)
        self._whole("num_generated", 0, 1 << 20)
        self._whole("depth", 0, 1 << 20)
        self._whole("users", 1, 4096)
        self._real("rate_per_s", 0.001, 10_000)
        self._real("duration_s", 0.1, 3600)
        if self.asked == "prompts" and not self.prompts:
            raise ConfigError("asked = 'prompts': there are no prompts; give at least one text")
        if self.num_prompt + self.num_generated == 0:
            raise ConfigError("num_prompt and num_generated are both 0: nothing would be measured")


@dataclass(frozen=True, kw_only=True)
class TextWorkload(Spec):
    """What one sample of the question "embedding" asks of a cell: num_texts texts at once, again and again.

    They are made of the words of the sentences that ship, num_words on average; their lengths are log-normal, `spread`
    being the standard deviation of the logarithm (0: all alike). texts: these instead, one after the other.
    """

    num_texts: int = 128
    num_words: int = 32
    spread: float = 0.8
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(self.texts))
        self._whole("num_texts", 1, 100_000)
        self._whole("num_words", 1, 10_000)
        self._real("spread", 0, 2)


@dataclass(frozen=True, kw_only=True)
class Objective(Spec):
    """What a person is content with: seconds to the first token, tokens per second of each stream, at this share."""

    ttft_s: float = 1.0
    per_s: float = 10.0
    share: float = 0.95

    def __post_init__(self) -> None:
        self._real("ttft_s", 0.001, 3600)
        self._real("per_s", 0.01, 100_000)
        self._real("share", 0.5, 1)


@dataclass(frozen=True, kw_only=True)
class Plan(Spec):
    """A question with everything needed to answer it; `engine.bench.planning.cells.cells_of` makes its cells.

    model: GGUF file of every cell unless an axis `model` varies it. axes: name -> values, see `axes`; the cells
    are their product. pool, workload: what no axis varies, as plain values: of PoolSpec and Workload, for the question
    "embedding" of EmbedSpec and TextWorkload, whose `model` is a folder or name. rounds: samples of each cell.
    timeout_s: the longest that one sample may take. anchor: number of the cell that is measured again and again.
    measures_cold: load every cell once with its file out of the page cache. compares_answers: also ask a fixed prompt
    set greedily and compare with the first cell. goal, budget_s, may_change_answers: of the question "settings".
    """

    name: str = ""
    question: Question = "speed"
    model: str = ""
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    objective: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 8
    seed: int = 0
    timeout_s: float = 120.0
    anchor: int = 0
    measures_cold: bool = False
    compares_answers: bool = False
    goal: Goal = "throughput"
    budget_s: float = 300.0
    may_change_answers: bool = False

    def __post_init__(self) -> None:
        axes = {name: tuple(values) for name, values in self.axes.items()}
        object.__setattr__(self, "axes", axes)
        self._one_of("question", QUESTIONS)
        self._one_of("goal", GOALS)
        self._whole("rounds", 1, 10_000)
        self._whole("seed", 0, 1 << 31)
        self._whole("anchor", 0, 1 << 20)
        self._real("timeout_s", 1, 86_400)
        self._real("budget_s", 1, 86_400)
        for name in ("measures_cold", "compares_answers", "may_change_answers"):
            self._one_of(name, (True, False))
        workers, asked = (EmbedSpec, TextWorkload) if self.is_embedding else (PoolSpec, Workload)
        workers.from_dict(self.pool)
        asked.from_dict(self.workload)
        Objective.from_dict(self.objective)

    @property
    def is_embedding(self) -> bool:
        """True where texts are embedded, and nothing is generated."""
        return self.question == "embedding"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `Plan.from_dict` reads them back."""
        values = super().to_dict()
        return {**values, "axes": {name: list(chosen) for name, chosen in self.axes.items()}}


@dataclass(frozen=True, kw_only=True)
class _Configuration:
    """What cells of every question have. label: what sets a cell apart from the others.

    settings: its values by axis. notes: what is odd but allowed, such as more threads than cores. refusal: why it will
    not be measured, empty when it will.
    """

    number: int
    label: str
    model: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell(_Configuration):
    """A configuration of a plan that generates, resolved: threads are a number here.

    build: folder of llama.cpp libraries, empty for those of the Python package. objective: what goodput counts.
    """

    build: str
    arm: Arm
    pool: PoolSpec
    workload: Workload
    objective: Objective = field(default_factory=Objective)

    @property
    def worker_key(self) -> tuple[object, ...]:
        """Cells with the same key differ only in what is asked, and share their workers."""
        return self.model, self.build, self.arm, self.pool


@dataclass(frozen=True, kw_only=True)
class EmbeddingCell(_Configuration):
    """A configuration of a plan that embeds texts, resolved: threads are a number here, the model is that of `spec`."""

    spec: EmbedSpec
    workload: TextWorkload

    @property
    def worker_key(self) -> tuple[object, ...]:
        """As of a Cell."""
        return (self.spec,)


PlannedCell = Cell | EmbeddingCell
