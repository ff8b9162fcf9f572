"""`python -m engine beams`: the sequences as text and as JSON, and the search that is saved."""

import json

import pytest

import engine
from engine import __main__ as shell
from engine.history import History, TrialLabel
from engine.pool.pool import Pool
from engine.settings import Settings

PROMPT = "Once upon a time"

Capture = pytest.CaptureFixture[str]


def output(capsys: Capture, *words: str) -> str:
    assert shell.main(["beams", "--prompt", PROMPT, *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_the_sequences_are_printed_and_the_search_is_saved(capsys: Capture, pool: Pool) -> None:
    out = output(capsys, "--num-beams", "3", "--max-new-tokens", "8", "--early-stopping", "never")
    found = engine.beam_search(PROMPT, pool=pool, num_beams=3, max_new_tokens=8, early_stopping="never")
    head, *lines = out.splitlines()
    assert head.split() == ["score", "logprob", "tokens", "text"]
    for line, one in zip(lines[:3], found.sequences, strict=True):
        score, logprob, tokens = line.split()[:3]
        assert (float(score), float(logprob)) == pytest.approx((one.score, one.logprob), abs=1e-3)
        assert tokens == "8" and line.endswith(one.text)
    with History.open(Settings.from_environment().history) as history:
        (listed,) = history.recent(10)
        stored = history.trial(listed.id)
    assert stored is not None and stored.label == TrialLabel.BEAMS and stored.beams is not None
    assert stored.beams.ids == found.ids and tuple(stored.completion.ids) == found.sequences[0].ids


def test_json_has_the_tokens_of_each_sequence(capsys: Capture, pool: Pool) -> None:
    words = ("--num-beams", "4", "--num-return-sequences", "2", "--max-new-tokens", "5", "--length-penalty", "0")
    given = json.loads(output(capsys, *words, "--json", "--no-keep"))
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 5, "length_penalty": 0.0}
    found = engine.beam_search(pool.tokenize(PROMPT), pool=pool, **options)  # type: ignore[arg-type]
    assert [tuple(one["ids"]) for one in given["sequences"]] == [one.ids for one in found.sequences]
    assert given["spec"] == {"early_stopping": False, **options}
    assert given["prompt_ids"] == pool.tokenize(PROMPT)
    assert not Settings.from_environment().history.exists()


def test_prompt_and_sequences_may_fill_the_context(capsys: Capture, pool: Pool) -> None:
    fits = "a" + " a" * (250 - len(pool.tokenize("a")))
    assert len(pool.tokenize(fits)) == 250
    words = ("--num-beams", "2", "--n-ctx", "256", "--prompt", fits)
    assert "not saved" not in output(capsys, *words, "--max-new-tokens", "6")
    with History.open(Settings.from_environment().history) as history:
        assert len(history.recent(10)) == 1
    assert shell.main(["beams", *words, "--max-new-tokens", "7"]) == shell.ERROR
    assert "at most 249 fit into the context of 256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--num-beams", "99"], "num_beams = 99"),
        (["--num-beams", "2", "--num-return-sequences", "3"], "num_return_sequences = 3"),
        (["--max-new-tokens", "600"], "max_new_tokens = 600"),
    ],
)
def test_what_cannot_be_is_refused(capsys: Capture, words: list[str], error: str) -> None:
    assert shell.main(["beams", "--prompt", PROMPT, *words]) == shell.ERROR
    captured = capsys.readouterr()
    assert error in captured.err and not captured.out


def test_parameters_of_a_pool_that_is_given_are_refused(pool: Pool) -> None:
    with pytest.raises(engine.ConfigError, match="n_ctx is a parameter of the pool"):
        engine.beam_search(PROMPT, pool=pool, n_ctx=1024)
    with pytest.raises(engine.ConfigError, match="beams"):
        engine.beam_search(PROMPT, pool=pool, beams=4)  # type: ignore[call-arg]
