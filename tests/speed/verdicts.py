"""How often verdicts are wrong and how often right: one configuration under two names, and one made 5 % slower."""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from engine import Pool
from engine.models import embedded_model
from engine.stats import compare, noise_of, rounds_needed
from tests.speed.common import N_CTX, Row, at_least, at_most, model, prompts, sampling, warm

ROUNDS = 200
SHAPE = "shipped"
LENGTHENING = {"anchor": 1.0, "twin": 1.0, "slowed": 1.05}
NUM_PROMPT, NUM_TOKENS = 8, 32
NUM_ANCHORS = 60
MOST_WRONG, FEWEST_FOUND = 0.08, 0.8
POWER = 0.9
"""What a trial is planned for: more than FEWEST_FOUND, as the noise of the next minute is not that of the last."""

Sample = Callable[[float], float]


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Here a round is a trial, which takes as many rounds as the noise of the latest anchor samples asks for."""
    path = embedded_model() if shape == SHAPE else model(shape)
    words: dict[str, Counter[str]] = {"twin": Counter(), "slowed": Counter()}
    lengths = []
    with warm(Pool(path, threads=1, parallel=1, n_ctx=N_CTX)) as pool:
        sample = sampler(pool)
        anchors = [sample(1.0) for _ in range(NUM_ANCHORS)]
        for number in range(num_rounds):
            lengths.append(rounds_needed(noise_of(anchors[-NUM_ANCHORS:]), LENGTHENING["slowed"], power=POWER))
            figures = trial(sample, lengths[-1], random.Random(number))
            anchors += figures["anchor"].values()
            for name, counter in words.items():
                counter[compare(figures[name], figures["anchor"]).word] += 1
            print(f"  trial {number + 1} of {num_rounds}", end="\r", file=sys.stderr, flush=True)
    wrong = words["twin"]["faster"] + words["twin"]["slower"]
    found = 100 * words["slowed"]["slower"] / num_rounds
    beside = f"{min(lengths)} to {max(lengths)} rounds a trial, for a noise of {noise_of(anchors):.3f}"
    return [
        at_most("A/A trials called faster or slower", wrong, MOST_WRONG * num_rounds, said(words["twin"]), ""),
        at_least("A/B, 5 % slower: found", found, 100 * FEWEST_FOUND, f"{said(words['slowed'])}; {beside}", "%"),
    ]


def sampler(pool: Pool) -> Sample:
    """Tokens per second of one short request, after a busy wait that makes it `lengthening` times as long."""
    ids, chosen = prompts(1, NUM_PROMPT, most=len(pool.vocabulary))[0], sampling(pool)

    def sample(lengthening: float) -> float:
        began = time.perf_counter()
        pool.submit(ids, chosen, max_tokens=NUM_TOKENS, reuse_prefix=False).result()
        end = began + lengthening * (time.perf_counter() - began)
        while time.perf_counter() < end:
            pass
        return NUM_TOKENS / (time.perf_counter() - began)

    return sample


def trial(sample: Sample, num_rounds: int, order: random.Random) -> dict[str, dict[int, float]]:
    """Every arm once a round, in a shuffled order; figures by arm and round."""
    figures: dict[str, dict[int, float]] = {name: {} for name in LENGTHENING}
    for number in range(num_rounds):
        for name in order.sample(list(LENGTHENING), len(LENGTHENING)):
            figures[name][number] = sample(LENGTHENING[name])
    return figures


def said(words: Counter[str]) -> str:
    """How often each word was said, the most frequent first."""
    return ", ".join(f"{count} {word}" for word, count in words.most_common())
