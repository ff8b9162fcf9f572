"""Result of a job: its text, its steps and its timings, collected in a Completion."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from engine.steps import StepTable

if TYPE_CHECKING:
    import pandas

FinishReason = Literal["stop", "length", "cancelled"]


class Timings(NamedTuple):
    """Time breakdown of a job: seconds, token counts, tokens per second (None: undefined).

    threads, threads_batch: thread counts of most decodes with steps only, and of most decodes with prompt tokens, while
    the job ran; None where there were none, or unknown.
    """

    queue_s: float
    load_s: float
    prefill_s: float
    ttft_s: float
    decode_s: float
    num_prompt: int
    num_cached: int
    num_generated: int
    threads: int | None = None
    threads_batch: int | None = None

    @property
    def prefill_per_s(self) -> float | None:
        """Prompt tokens computed (cached ones excluded) per second of prefill."""
        computed = self.num_prompt - self.num_cached
        return computed / self.prefill_s if self.prefill_s > 0 else None

    @property
    def decode_per_s(self) -> float | None:
        """Generated tokens after the first, per second of decoding."""
        return (self.num_generated - 1) / self.decode_s if self.decode_s > 0 and self.num_generated > 1 else None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return all values by name, including the two rates."""
        return {**self._asdict(), "prefill_per_s": self.prefill_per_s, "decode_per_s": self.decode_per_s}


def is_context_full(reason: FinishReason, num_generated: int, max_tokens: int) -> bool:
    """Return whether a job ended because its context was full, with fewer than max_tokens generated."""
    return reason == "length" and num_generated < max_tokens


_STEP_VALUES = (
    "id", "text", "bytes", "logprob", "rank", "entropy", "normaliser", "p_final", "draw", "elapsed_s", "num_kept",
    "is_forced", "is_resampled",
)  # fmt: skip


@dataclass(frozen=True)
class Completion:
    """Result of a finished job. `text` ends before the stop string; `steps` include its tokens. `seed` is the one used.

    is_context_full: it ended by "length" because the context was full before max_tokens. Copies and unpickled
    completions equal the original; a pickle contains only the vocabulary entries that occur in it.
    """

    text: str
    steps: StepTable
    prompt_steps: StepTable
    prompt_ids: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings
    seed: int
    id: str = ""
    is_context_full: bool = False

    @property
    def ending(self) -> str:
        """Reason for the end, in words: finish_reason, or that the context is full."""
        return "the context is full" if self.is_context_full else self.finish_reason

    @property
    def ids(self) -> list[int]:
        """Generated token ids."""
        return self.steps.ids

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values, the candidates of each step under "top"."""
        from engine.jsonable import completion_to_dict  # imports this module, so it cannot be imported at the top

        return completion_to_dict(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with a row for each step; `part`: "prompt" or "output", `position`: index there.

        The other columns are the values of TokenStep; `to_dict` has the candidates too. Raises ImportError where pandas
        is not installed.
        """
        import pandas  # not needed by the engine itself

        rows = [
            (part, position, *(getattr(step, name) for name in _STEP_VALUES))
            for part, steps in (("prompt", self.prompt_steps), ("output", self.steps))
            for position, step in enumerate(steps)
        ]
        return pandas.DataFrame(rows, columns=["part", "position", *_STEP_VALUES])

    def _repr_html_(self) -> str:
        """Render for a notebook: the coloured token strip with candidates on hover."""
        from engine.notebook import to_html  # imports this module, so it cannot be imported at the top

        return to_html(self)
