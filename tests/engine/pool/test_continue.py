"""Continuing with a reused cache gives what one run gives, whichever samplers keep their own state."""

import pytest

from engine import Pool, Sampling

PROMPT = "Once upon a time there was a little"
BANNED_WORDS = "root ::= ([A-Z ,.\"'!?\\n] | [b-df-hj-np-tv-z])*"
"""Grammar without a, e, i, o and u: most first draws are refused and drawn again."""
STATEFUL = {
    "grammar that resamples": Sampling(seed=3, grammar=BANNED_WORDS),
    "xtc": Sampling(seed=3, xtc_probability=0.5, xtc_threshold=0.05),
    "xtc and grammar": Sampling(seed=4, xtc_probability=0.7, xtc_threshold=0.02, grammar=BANNED_WORDS),
    "mirostat 1": Sampling(seed=5, mirostat=1),
    "mirostat 2": Sampling(seed=6, mirostat=2, mirostat_tau=4.0),
    "penalties and dry": Sampling(seed=7, repeat_penalty=1.2, dry_multiplier=0.8, temperature=1.1),
    "nothing of the kind": Sampling(seed=8),
}


@pytest.mark.parametrize("first", [1, 7, 20])
@pytest.mark.parametrize("kind", STATEFUL)
def test_two_parts_are_one_run(pool: Pool, kind: str, first: int) -> None:
    sampling = STATEFUL[kind]
    whole = pool.submit(PROMPT, sampling, max_tokens=24, top_k=4, reuse_prefix=False).result(60)
    half = pool.submit(PROMPT, sampling, max_tokens=first, reuse_prefix=False).result(60)
    if half.finish_reason != "length":
        pytest.fail(f"{kind} ends before {first} tokens: choose another seed")
    rest = pool.submit([*half.prompt_ids, *half.ids], sampling, max_tokens=24 - first, top_k=4, generated=first).result(
        60
    )
    assert [*half.ids, *rest.ids] == list(whole.ids)
    assert [step.draw for step in rest.steps] == pytest.approx([step.draw for step in whole.steps[first:]], nan_ok=True)


def test_the_prompt_is_reused_where_tokens_are_sampled_again(pool: Pool) -> None:
    prompt = PROMPT + " boat" * 40
    half = pool.submit(prompt, STATEFUL["xtc"], max_tokens=6).result(60)
    rest = pool.submit([*half.prompt_ids, *half.ids], STATEFUL["xtc"], max_tokens=2, generated=6).result(60)
    assert rest.timings.num_cached == len(half.prompt_ids) - 1
