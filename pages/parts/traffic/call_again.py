"""Request that asks for an answer again through the API: by the token ids of its prompt, with its settings and seed."""

import json
import math
from dataclasses import fields
from typing import Any

from engine.api.openai.requests import CompletionRequest
from engine.specs import Sampling
from engine.workbench.trials import Trial
from pages.parts.snippets import MOST_IDS

ENDPOINT = "/v1/completions"


def request_again(trial: Trial, model: str) -> dict[str, Any] | None:
    """Return the body of a completion request for the tokens of a trial; None where its prompt is too long for code."""
    if len(trial.prompt_ids) > MOST_IDS:
        return None
    asked, sampling = trial.draft.request, sampling_fields(trial.draft.sampling)
    if trial.seed is not None:
        sampling["seed"] = trial.seed
    body: dict[str, Any] = {"model": model, "prompt": list(trial.prompt_ids), "max_tokens": asked.max_tokens}
    body |= {"stop": list(asked.stop)} if asked.stop else {}
    body |= {} if asked.reuse_prefix else {"cache_prompt": False}
    return body | sampling


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return the fields of a request of the API that ask for this sampling, which came from one; defaults left out."""
    default = CompletionRequest(prompt="").sampling(())
    names = {field.name for field in fields(Sampling)} & set(CompletionRequest.__struct_fields__)
    found = {name: getattr(sampling, name) for name in sorted(names)}
    found = {name: value for name, value in found.items() if value != getattr(default, name)}
    if "logit_bias" in found:  # JSON has no infinity: -inf is what ignore_eos makes of the tokens that end a text
        biases = {str(token): bias for token, bias in found.pop("logit_bias") if math.isfinite(bias)}
        found |= {"logit_bias": biases} if biases else {}
        found |= {"ignore_eos": True} if len(biases) < len(sampling.logit_bias) else {}
    if "json_schema" in found:
        found["json_schema"] = json.loads(found["json_schema"])
    return found
