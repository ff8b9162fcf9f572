"""Variants of a comparison: the plan of one prompt for several of them, and the resulting trials."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from engine.comparing.templates import check_values, lengths, render, variables
from engine.errors import ConfigError, quoted
from engine.jsonable import spec_from_dict, spec_to_dict
from engine.specs import Sampling
from engine.units import exact
from engine.validation import Spec, plain_text

MAX_ARMS, MAX_ROWS, MAX_REPEATS, MAX_TRIALS = 8, 100, 100, 400
MAX_CHARACTERS = 1_000_000
LABEL_CHARACTERS = 80
MAX_PATH_CHARACTERS = 4096
NUM_SEEDS = 0xFFFFFFFF
ROLES = ("system", "user", "assistant")
_CONSTRAINTS = {"logit_bias": "logit bias", "grammar": "grammar", "json_schema": "JSON schema"}
"""Settings that a label names without their value, which is long."""


@dataclass(frozen=True, kw_only=True)
class Arm(Spec):
    """One variant. model: path of a GGUF file, "" for the loaded one; stop: strings that end the text.

    variables override those of a row. label "": the label is derived from the settings that distinguish the variant.
    """

    label: str = ""
    model: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "variables", _checked_row("variables", self.variables))
        self._whole("max_tokens", 1, 1 << 24)
        self._set("label", plain_text("label", self.label, LABEL_CHARACTERS))
        self._set("model", plain_text("model", self.model, MAX_PATH_CHARACTERS))

    def for_repeat(self, repeat: int) -> Sampling:
        """Return the sampling of one repeat: each has its own seed, counted up from the variant's where it has one."""
        if self.sampling.seed is None:
            return self.sampling
        return replace(self.sampling, seed=(self.sampling.seed + repeat) % NUM_SEEDS)


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan(Spec):
    """A prompt with {{variables}}, rows of their values, and variants; each variant answers each row `repeats` times.

    is_chat: the prompt is a message formatted with each model's own template, after the messages of `before`. is_apart:
    one trial at a time, so that speeds can be compared; otherwise variants on one model share the machine. Raises
    ConfigError for a variable without a value, for more than 400 trials, and for other values out of range.
    """

    prompt: str
    arms: tuple[Arm, ...]
    rows: tuple[Mapping[str, str], ...] = ({},)
    repeats: int = 1
    is_chat: bool = False
    before: tuple[Mapping[str, str], ...] = ()
    is_apart: bool = False

    def __post_init__(self) -> None:
        rows = tuple(_checked_row(f"row {number}", row) for number, row in enumerate(self.rows, 1))
        object.__setattr__(self, "rows", rows or ({},))
        object.__setattr__(self, "arms", tuple(self.arms))
        object.__setattr__(self, "before", tuple(map(dict, self.before)))
        if not 1 <= len(self.arms) <= MAX_ARMS:
            raise ConfigError(f"{len(self.arms)} variants: must be 1 to {MAX_ARMS}")
        if len(self.rows) > MAX_ROWS:
            raise ConfigError(f"{len(self.rows):,} rows: must be at most {MAX_ROWS}")
        self._whole("repeats", 1, MAX_REPEATS)
        for name in ("is_chat", "is_apart"):
            self._one_of(name, (True, False))
        if self.num_trials > MAX_TRIALS:
            raise ConfigError(
                f"{len(self.arms)} variants × {len(self.rows)} rows × {self.repeats} repeats are {self.num_trials:,} "
                f"trials: must be at most {MAX_TRIALS}. Reduce one of them."
            )
        self._check_messages()
        num_fixed, counts = lengths(self.prompt)
        for arm in self.arms:
            for row in self.rows:
                values = {**row, **arm.variables}
                check_values(counts, values)
                _check_length(num_fixed + sum(num * len(values[name]) for name, num in counts.items()))

    def _check_messages(self) -> None:
        plain_text("prompt", self.prompt, MAX_CHARACTERS)
        if self.before and not self.is_chat:
            raise ConfigError("before: earlier messages are only for a chat")
        for message in self.before:
            if set(message) != {"role", "content"} or message["role"] not in ROLES:
                known = ", ".join(ROLES)
                raise ConfigError(
                    f"before: {quoted(dict(message))} is not a message: needs content and a role, one of {known}"
                )
            plain_text("before", message["content"], MAX_CHARACTERS)

    @property
    def num_trials(self) -> int:
        """Variants times rows times repeats."""
        return len(self.arms) * len(self.rows) * self.repeats

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the prompt's variables."""
        return variables(self.prompt)

    def text(self, arm: Arm, row: Mapping[str, str]) -> str:
        """Return the prompt of a variant for a row of the plan."""
        return render(self.prompt, {**row, **arm.variables})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON.

        They include the defaults, so that a later change of defaults does not alter stored plans.
        """
        arms = [
            {**vars(arm), "sampling": spec_to_dict(arm.sampling), "variables": dict(arm.variables)} for arm in self.arms
        ]
        return {**vars(self), "arms": arms}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan that `to_dict` wrote; raises ConfigError for unknown names and values out of range."""
        arms = [
            {**arm, "sampling": spec_from_dict(Sampling, arm.get("sampling", {}))} for arm in values.get("arms", ())
        ]
        return cls(**{**values, "arms": tuple(Arm(**arm) for arm in arms)})


class Answer(NamedTuple):
    """One trial of a comparison, by the positions of variant, row and repeat.

    trial_id "": it has not run; error then gives the reason where it failed. is_shared: other trials ran concurrently,
    so its speed is not representative.
    """

    arm: int
    row: int
    repeat: int
    trial_id: str = ""
    error: str = ""
    is_shared: bool = False


@dataclass(frozen=True, kw_only=True)
class ComparisonRecord:
    """A comparison and its trials. id: a UUID as text, "" where it is not stored; created_at is timezone-aware.

    answers: exactly one for each trial of the plan, also where it has not run.
    """

    id: str
    created_at: datetime
    name: str
    plan: ComparisonPlan
    answers: tuple[Answer, ...]

    def of(self, arm: int, row: int) -> list[Answer]:
        """Return the answers of a variant to a row, by repeat."""
        return sorted(answer for answer in self.answers if (answer.arm, answer.row) == (arm, row))


class ComparisonSummary(NamedTuple):
    """One line of the list of comparisons."""

    id: str
    created_at: datetime
    name: str
    prompt: str
    num_arms: int
    num_trials: int


class Outcome(NamedTuple):
    """Outcome of one trial: its text and its figures (tokens per second, seconds, bits per token)."""

    trial_id: str
    text: str
    model_name: str
    quantisation: str
    seed: int | None
    num_generated: int
    decode_per_s: float | None
    ttft_s: float | None
    mean_surprise_bits: float | None


def labels(arms: Sequence[Arm]) -> list[str]:
    """Return the variants' labels: their own, else the settings that distinguish them; numbered if repeated."""
    differing = _differing(arms)
    names = [arm.label or _described(arm, differing) or f"variant {n}" for n, arm in enumerate(arms, 1)]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: n + 1].count(name)})" for n, name in enumerate(names)
    ]


def differences(arms: Sequence[Arm]) -> list[list[str]]:
    """Return for each variant what differs, a short text a setting: of the first all that any other variant changes,
    of the others what they change."""
    names = _differing(arms)
    settings = [_settings(arm) for arm in arms]
    return [
        [
            _in_words(name, one[name])
            for name in names
            if name in one and (not number or one[name] != settings[0].get(name))
        ]
        for number, one in enumerate(settings)
    ]


def planned_answers(plan: ComparisonPlan) -> list[Answer]:
    """Return all trials of a plan before they run, alternating between the variants."""
    return [
        Answer(arm, row, repeat)
        for repeat in range(plan.repeats)
        for row in range(len(plan.rows))
        for arm in range(len(plan.arms))
    ]


def check_answers(plan: ComparisonPlan, answers: Iterable[Answer]) -> None:
    """Raise ConfigError for an answer that belongs to no trial of the plan, and for a second one of the same trial."""
    planned, seen = {answer[:3] for answer in planned_answers(plan)}, set[tuple[int, ...]]()
    for number, answer in enumerate(answers, 1):
        which = f"answer {number} (arm {answer.arm}, row {answer.row}, repeat {answer.repeat}, counted from 0)"
        if answer[:3] not in planned:
            size = f"{len(plan.arms)} variants × {len(plan.rows)} rows × {plan.repeats} repeats"
            raise ConfigError(f"{which} is outside the plan of {size}")
        if answer[:3] in seen:
            raise ConfigError(f"{which} is the second of its trial")
        seen.add(answer[:3])


def one_answer_each(plan: ComparisonPlan, answers: Sequence[Answer]) -> tuple[Answer, ...]:
    """Return one answer for each trial of the plan, in its order: of several the first, for a missing one "not run"."""
    found = {answer[:3]: answer for answer in reversed(answers)}
    return tuple(found.get(blank[:3], blank) for blank in planned_answers(plan))


def _check_length(num_characters: int) -> None:
    """Raise ConfigError for a prompt that would be too long; rendering it first could fill the memory."""
    if num_characters > MAX_CHARACTERS:
        raise ConfigError(f"The prompt has {num_characters:,} characters: must be at most {MAX_CHARACTERS:,}")


def _checked_row(where: str, row: Mapping[str, str]) -> dict[str, str]:
    return {plain_text(where, name): plain_text(where, value, MAX_CHARACTERS) for name, value in row.items()}


def _settings(arm: Arm) -> dict[str, Any]:
    """Return the settings that may distinguish a variant, by name."""
    sampling = {field.name: getattr(arm.sampling, field.name) for field in fields(Sampling)}
    own = {"model": Path(arm.model).stem if arm.model else "loaded model"}
    return {**own, **sampling, "max_tokens": arm.max_tokens, "stop": arm.stop, **arm.variables}


def _differing(arms: Sequence[Arm]) -> list[str]:
    """Return the names of the settings in which variants differ."""
    settings = [_settings(arm) for arm in arms]
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]


def _described(arm: Arm, names: Sequence[str]) -> str:
    settings = _settings(arm)
    parts = [_in_words(name, settings[name]) for name in names if name in settings]
    return " · ".join(parts)[:LABEL_CHARACTERS]


def _in_words(name: str, value: object) -> str:
    if name == "model":
        return str(value)
    if name in _CONSTRAINTS:
        return f"{'' if value else 'no '}{_CONSTRAINTS[name]}"
    if name == "seed" and value is None:
        return "random seed"
    shown = exact(value) if isinstance(value, float) else str(value)
    return f"{name.replace('_', ' ')} {shown}"
