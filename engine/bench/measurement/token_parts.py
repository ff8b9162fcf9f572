"""Parts of the time of a token, and their running totals over the samples of one configuration."""

from collections.abc import Mapping

PARTS = {
    "tokenise": "text to token ids",
    "prefill": "llama_decode of the prompt",
    "decode": "llama_decode of the tokens",
    "sample": "choosing the token",
    "distribution": "exact distribution of each token",
    "transport": "messages between processes",
    "rest": "the program's own work",
}
"""Parts of a request's time, with their descriptions. A runtime in one process has no transport; "rest" is the time
that no other part accounts for."""


class PartTotals:
    """Running totals of the parts over the samples of one configuration."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._num_tokens = 0

    def add(self, seconds: Mapping[str, float], wall_s: float, num_tokens: int) -> None:
        """Add a sample of `num_tokens` generated tokens: seconds of some parts; the remainder of `wall_s` is rest."""
        for name, each in seconds.items():
            self._seconds[name] += each
        self._seconds["rest"] += max(0.0, wall_s - sum(seconds.values()))
        self._num_tokens += num_tokens

    def facts(self) -> dict[str, float]:
        """Return a configuration's facts: seconds of each part per generated token; none before the first sample."""
        if not self._num_tokens:
            return {}
        return {fact_name(name): seconds / self._num_tokens for name, seconds in self._seconds.items()}


def seconds_of_pool(gained: Mapping[str, float], wall_s: float) -> dict[str, float]:
    """Return the seconds of each part of one stream in a pool.

    `gained`: increase of the worker's figures (`Pool.measure`) during `wall_s`. Time outside the worker loop counts as
    transport: messages in both directions.
    """
    return {
        "prefill": gained["prefill_s"],
        "decode": gained["decode_s"] - gained["prefill_s"],
        **{name: gained.get(f"{name}_s", 0.0) for name in ("tokenise", "sample", "distribution")},
        "transport": max(0.0, wall_s - gained["loop_s"]),
    }


def fact_name(part: str) -> str:
    """Return the name under which CellRecord.facts holds the seconds per token of a part."""
    return f"{part}_part_s"
