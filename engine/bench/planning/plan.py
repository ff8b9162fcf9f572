"""Benchmark plan: a question, the axes that vary, the requests to each configuration, and the number of rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.bench.planning.prompts import MAX_PROMPTS
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError
from engine.specs import MAX_PROMPT_CHARACTERS, PoolSpec
from engine.validation import Spec, plain_text

Question = Literal["speed", "settings", "python", "engines", "users", "embedding"]
QUESTIONS: tuple[Question, ...] = ("speed", "settings", "python", "engines", "users", "embedding")
Asked = Literal["tokens", "prompts"]
Arrival = Literal["together", "users", "poisson"]
Arm = str
"""An engine: what runs a configuration, see engine.bench.planning.engines."""
MOST_BUDGET_S = 86_400.0
MAX_NAME_CHARACTERS, MAX_PATH_CHARACTERS = 1000, 4096
ARMS: tuple[Arm, ...] = ("llama-bench", "loop", "pool", "create_completion")
"""Ways of calling llama.cpp, for the question "python"."""
Goal = Literal["stream", "throughput", "first-token", "memory"]
GOALS: tuple[Goal, ...] = ("stream", "throughput", "first-token", "memory")


@dataclass(frozen=True, kw_only=True)
class Workload(Spec):
    """Requests of one sample of a configuration.

    asked "tokens": prompts of num_prompt random ids and num_generated tokens, end of sequence barred, after `depth` ids
    that are not timed, as in llama-bench; "prompts": the texts of `prompts` in sequence, at most num_generated tokens
    each. arrival "together": one request per sequence, submitted at once; "users": `users` clients, each of which sends
    its next request once answered; "poisson": rate_per_s requests per second; the latter two last duration_s seconds.
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
        self._texts("prompts", MAX_PROMPTS, MAX_PROMPT_CHARACTERS)
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
    """Texts of one sample of the question "embedding": num_texts texts at once, repeatedly.

    They are made of the words of the bundled sentences, num_words on average; their lengths are log-normal, `spread`
    being the standard deviation of the logarithm (0: all equal). texts: used instead of these, in sequence.
    """

    num_texts: int = 128
    num_words: int = 32
    spread: float = 0.8
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._texts("texts", MAX_PROMPTS, MAX_PROMPT_CHARACTERS)
        self._whole("num_texts", 1, 100_000)
        self._whole("num_words", 1, 10_000)
        self._real("spread", 0, 2)


@dataclass(frozen=True, kw_only=True)
class Objective(Spec):
    """Service objective: seconds to the first token, tokens per second of each stream, and share of requests."""

    ttft_s: float = 1.0
    per_s: float = 10.0
    share: float = 0.95

    def __post_init__(self) -> None:
        self._real("ttft_s", 0.001, 3600)
        self._real("per_s", 0.01, 100_000)
        self._real("share", 0.5, 1)


@dataclass(frozen=True, kw_only=True)
class Plan(Spec):
    """Benchmark plan: a question with everything needed to answer it.

    `engine.bench.planning.cells.cells_of` makes its configurations. model: GGUF file of every configuration unless an
    axis `model` varies it. axes: name -> values, see `axes`; the configurations are their product. pool, workload:
    settings that no axis varies, as plain values: of PoolSpec and Workload, for the question "embedding" of EmbedSpec
    and TextWorkload, whose `model` is a folder or name. rounds: samples of each configuration. timeout_s: time limit of
    one sample. anchor: number of the control, the configuration that is measured repeatedly. measures_cold: load every
    configuration once with its file evicted from the page cache. compares_answers: also have a fixed prompt set
    answered greedily and compared with the first configuration. goal, budget_s, may_change_answers: for the question
    "settings".
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
        self._set("name", plain_text("name", self.name, MAX_NAME_CHARACTERS))
        self._set("model", plain_text("model", self.model, MAX_PATH_CHARACTERS))
        for name, values in axes.items():
            for value in (one for one in values if isinstance(one, str)):
                plain_text(name, value, MAX_PATH_CHARACTERS)
        self._one_of("question", QUESTIONS)
        self._one_of("goal", GOALS)
        self._whole("rounds", 1, 10_000)
        self._whole("seed", 0, 1 << 31)
        self._whole("anchor", 0, 1 << 20)
        self._real("timeout_s", 1, 86_400)
        self._real("budget_s", 1, MOST_BUDGET_S)
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
        """Return plain values for JSON; `Plan.from_dict` reads them back."""
        values = super().to_dict()
        return {**values, "axes": {name: list(chosen) for name, chosen in self.axes.items()}}


@dataclass(frozen=True, kw_only=True)
class _Configuration:
    """Common fields of configurations of every question. label: what distinguishes it from the others.

    settings: its values by axis. notes: unusual but allowed properties, such as more threads than cores. refusal: why
    it will not be measured, empty where it will.
    """

    number: int
    label: str
    model: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell(_Configuration):
    """Resolved configuration of a plan that generates: threads are a number.

    arm: its engine. build: folder of llama.cpp libraries, empty for those of the Python package. objective: defines
    goodput.
    """

    build: str
    arm: Arm
    pool: PoolSpec
    workload: Workload
    objective: Objective = field(default_factory=Objective)

    @property
    def worker_key(self) -> tuple[object, ...]:
        """Worker identity: configurations with the same key differ only in their requests, and share their workers."""
        return self.model, self.build, self.arm, self.pool


@dataclass(frozen=True, kw_only=True)
class EmbeddingCell(_Configuration):
    """Resolved configuration of a plan that embeds texts: threads are a number, the model is that of `spec`.

    An external engine has a model of its own: then `model` is the plan's, with which its vectors are compared.
    """

    spec: EmbedSpec
    workload: TextWorkload

    @property
    def worker_key(self) -> tuple[object, ...]:
        """Worker identity, as for a Cell."""
        return (self.spec,)


PlannedCell = Cell | EmbeddingCell
