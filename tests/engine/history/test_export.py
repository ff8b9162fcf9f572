"""Export of trials as JSON, CSV and text."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from engine.history import History, TrialRecord
from engine.history.export import CSV_COLUMNS, family_to_text, to_csv, to_json, to_text
from engine.jsonable import completion_to_dict, spec_from_dict, spec_to_dict
from engine.results import Completion
from engine.specs import Sampling
from tests.engine.history.trial_maker import NASTY, make_steps, make_trial


def nasty_completion() -> Completion:
    """Return a completion with all sorts of text, an infinite figure, and a prompt whose first token has no figures."""
    trial = make_trial(6, 8)
    completion, prompt_steps = trial.completion, make_steps(2, 8, is_prompt=True)
    prompt_steps.records["flags"][0] = 0
    prompt_steps.records["p_final"] = prompt_steps.records["draw"] = np.nan
    completion.steps.records["id"][:] = [256, 0xF0, 0x9F, 0xA7, 0x91, 0]
    completion.steps.records["logprob"][1] = -np.inf
    completion.steps.top_logprobs[0, 7] = -np.inf
    return replace(completion, prompt_steps=prompt_steps, text=completion.steps.text)


def kept_of(history: History, trial: TrialRecord) -> TrialRecord:
    """Return the trial as the history gives it back once it is stored."""
    history.record(trial).result(60)
    kept = history.trial(trial.id)
    assert kept is not None
    return kept


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_json_has_everything_and_no_infinity(history: History) -> None:
    trial = make_trial(prompt=NASTY, sampling=Sampling(logit_bias=((5, -np.inf),)))
    trial = replace(trial, completion=replace(nasty_completion(), id=trial.id))
    values = json.loads(to_json(kept_of(history, trial)), parse_constant=refuse)
    assert (values["prompt"], values["model"]["quantisation"]) == (NASTY, "Q8_0")
    assert values["sampling"]["logit_bias"] == [[5, "-inf"]]
    assert values["completion"] == json.loads(json.dumps(completion_to_dict(trial.completion), allow_nan=False))
    steps = values["completion"]["steps"]
    assert steps[1]["logprob"] == "-inf"
    assert steps[0]["top"][7]["logprob"] == "-inf"
    assert steps[0]["top"][6]["logprob"] == float(trial.completion.steps.top_logprobs[0, 6])
    assert [step["text"] for step in steps] == [NASTY, "", "", "", "🧑", "\0"]
    assert bytes(byte for step in steps for byte in step["bytes"]) == NASTY.encode() + "🧑\0".encode()
    first = values["completion"]["prompt_steps"][0]
    assert (first["logprob"], first["rank"], first["draw"], first["top"]) == (None, None, None, [])
    assert values["completion"]["timings"]["decode_per_s"] == pytest.approx(5 / 0.4)


def test_csv_has_a_row_for_each_step(history: History) -> None:
    trial = make_trial()
    trial = replace(trial, completion=nasty_completion())
    content = to_csv(kept_of(history, trial)).decode()
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [(row["part"], row["position"]) for row in rows] == [
        *(("prompt", str(n)) for n in range(2)),
        *(("output", str(n)) for n in range(6)),
    ]
    steps = [*trial.completion.prompt_steps, *trial.completion.steps]
    assert [row["text"] for row in rows] == [step.text for step in steps]
    assert [bytes.fromhex(row["bytes_hex"]) for row in rows] == [step.bytes for step in steps]
    assert [float(row["logprob"] or "nan") for row in rows][1:] == [step.logprob for step in steps][1:]
    assert (rows[0]["logprob"], rows[0]["draw"], rows[3]["logprob"]) == ("", "", "-inf")


def test_specs_come_back_from_json_with_their_infinities() -> None:
    sampling = Sampling(logit_bias=((3, -math.inf), (4, 0.5)), mirostat_tau=math.inf, temperature=1, seed=0)
    values = json.loads(json.dumps(spec_to_dict(sampling), allow_nan=False))
    assert set(values) == set(Sampling.__dataclass_fields__)
    assert spec_from_dict(Sampling, values) == sampling


# text


def family_of(*texts: str) -> list[TrialRecord]:
    """Return trials of the same prompt with these answers, a token for each byte; each the child of the one before."""
    found: list[TrialRecord] = []
    for text in texts:
        trial = make_trial(0, parent=found[-1].id if found else None, prompt="Once")
        steps = make_steps(len(text.encode()), 0)
        steps.records["id"] = list(text.encode())
        found.append(replace(trial, completion=replace(trial.completion, steps=steps, text=text)))
    return found


def test_text_is_the_prompt_and_the_answer() -> None:
    (trial,) = family_of("upon a\ntime")
    assert to_text(trial).decode() == "prompt:\nOnce\n\nanswer:\nupon a\ntime\n"
    messages = ({"role": "system", "content": NASTY}, {"role": "user", "content": "Hi"})
    assert to_text(replace(trial, messages=messages)).decode() == (
        f"system:\n{NASTY}\n\nuser:\nHi\n\nanswer:\nupon a\ntime\n"
    )
    assert to_text(make_trial(0)).decode() == "prompt:\nOnce upon a time\n"


def test_text_of_a_family_is_an_outline() -> None:
    family = family_of("a king\nwas", "a queen", "a queen saw")
    assert family_to_text([family[2], family[0], family[1]]).decode().splitlines() == [
        "prompt:",
        "Once",
        "",
        "answers:",
        "- a ",
        "  - queen",
        "    -  saw",
        "  - king",
        "    was",
    ]
    assert family_to_text([]) == b"\n"
    assert "answers:\n- a\n" in family_to_text(family_of("a", "a", "")).decode()
