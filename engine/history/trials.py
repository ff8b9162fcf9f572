"""Trial records, and their summaries for lists."""

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from typing import get_args

from engine.comparing.beams import Beams
from engine.errors import ConfigError
from engine.history.checks import checked_time
from engine.protocol import LogprobsOf
from engine.results import Completion
from engine.specs import MAX_CLIENT_CHARACTERS, MAX_NODE_CHARACTERS, PoolSpec, Request, Sampling
from engine.step_parts import INSPECTED
from engine.validation import plain_text

TITLE_CHARACTERS = 200
MOST_ENGINE_CHARACTERS = 500
_VERSIONS = ("logitbench", "numpy")
_OF_POOLS = ("llama-cpp-python",)
_OF_FOLDERS = ("torch", "transformers")
OUTPUT_CHARACTERS = 200  # length of the output's start that lists show


@dataclass(frozen=True)
class ModelIdentity:
    """Identity of the model that answered. `hash` is of the file's content; `path` is its location at that time."""

    name: str
    path: str
    hash: str
    quantisation: str
    num_parameters: int


@dataclass(frozen=True)
class EngineIdentity:
    """External engine that answered, as a record: its address may come from an import, and is not asked for that.

    name: what the person calls it; url: its address; dialect: the kind of server; logprobs_of: what its
    log-probabilities are of. Raises ConfigError for texts beyond their limits.
    """

    name: str
    url: str
    dialect: str
    logprobs_of: LogprobsOf = "model"

    def __post_init__(self) -> None:
        for name in ("name", "url", "dialect"):
            plain_text(name, getattr(self, name), MOST_ENGINE_CHARACTERS)
        if self.logprobs_of not in get_args(LogprobsOf):
            raise ConfigError(f"logprobs_of = {self.logprobs_of!r}: must be one of {', '.join(get_args(LogprobsOf))}")


class TrialLabel(StrEnum):
    """How a trial came about, as stored in the history. An archive may hold others, which are shown as they are."""

    RUN = ""
    STEP = "step"
    CONTINUE = "continue"
    REGENERATE = "regenerate"
    BRANCH = "branch"
    SAMPLE = "sample"
    TURN = "turn"
    EDIT = "edit"
    SCORE = "score"
    BEAMS = "beams"
    COMPARED = "compared"
    RECORDED = "recorded"
    LOG = "log"
    API = "api"


@dataclass(frozen=True)
class TrialRecord:
    """One trial with everything needed to show it, continue it and run it again.

    id is a UUIDv7 as text, created_at has a time zone. messages are empty in completion mode. parent: the trial that
    this one continues or regenerates, or whose chat it takes further or changes. label: see TrialLabel. unknown_fields:
    names of the fields of an API call that were ignored. engine: the external engine that answered, None for a pool.
    client: who asked, for a call of the API. node: of a cluster, whose worker answered. beams: the beam search
    whose best sequence this is, None for other trials.
    Raises ConfigError when id or parent is not a UUID, or for a created_at that cannot be kept.
    """

    id: str
    created_at: datetime
    prompt: str
    messages: tuple[dict[str, str], ...]
    sampling: Sampling
    request: Request
    pool: PoolSpec
    model: ModelIdentity
    versions: dict[str, str]
    completion: Completion = field(repr=False)
    parent: str | None = None
    label: str = TrialLabel.RUN
    unknown_fields: tuple[str, ...] = ()
    engine: EngineIdentity | None = None
    client: str = ""
    node: str = ""
    beams: Beams | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("id", "parent"):
            value = getattr(self, name)
            if value is not None and as_uuid(value) is None:
                raise ConfigError(f"{name} = {value!r}: must be a UUID as text")
        checked_time(self.created_at)
        plain_text("client", self.client, MAX_CLIENT_CHARACTERS)
        plain_text("node", self.node, MAX_NODE_CHARACTERS)

    @property
    def title(self) -> str:
        """The trial's title in lists."""
        return title_of(self.prompt, self.messages)

    @property
    def mean_surprise_bits(self) -> float | None:
        """Mean surprise in bits, -log2 of the model's probability: of the generated tokens, or of a scored prompt."""
        steps = self.completion.steps if len(self.completion.steps) else self.completion.prompt_steps
        inspected = steps.records[steps.records["flags"] & INSPECTED != 0]
        return float(-inspected["logprob"].mean() / math.log(2)) if len(inspected) else None


@dataclass(frozen=True)
class TrialSummary:
    """Summary of a trial, one line of a list; rates in tokens per second, surprise in bits per token."""

    id: str
    created_at: datetime
    title: str
    output_start: str
    model_name: str
    num_generated: int
    decode_per_s: float | None
    mean_surprise_bits: float | None
    label: str
    parent: str | None = None


def title_of(prompt: str, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the first non-blank line of the prompt, or in chat mode of the user's last message."""
    asked = [message.get("content", "") for message in messages if message.get("role") == "user"]
    lines = (asked[-1] if asked else prompt).splitlines()
    return next((line.strip()[:TITLE_CHARACTERS] for line in lines if line.strip()), "")


def versions(pool: PoolSpec, engine: EngineIdentity | None = None) -> dict[str, str]:
    """Return the versions to record with a trial of a pool, or of an external engine: of the packages here that its
    result depends on, by name."""
    ran = () if engine is not None else (*_OF_POOLS, *(_OF_FOLDERS if pool.dtype else ()))
    return {name: _version(name) for name in sorted((*_VERSIONS, *ran))}


@cache
def _version(name: str) -> str:
    return version(name)


def as_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID written as `text`, None where it is not one."""
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        return None
