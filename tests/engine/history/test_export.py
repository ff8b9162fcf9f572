"""Export of a trial as JSON and CSV."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from engine.history import History, TrialRecord
from engine.history.export import CSV_COLUMNS, to_csv, to_json
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
