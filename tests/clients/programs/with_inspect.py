"""Inspect: an evaluation of two samples with log-probabilities, in memory of what the model said."""

import json
import os

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

model = get_model(
    "openai-api/logitbench/story",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
task = Task(
    dataset=[Sample("Where does the fox live?", target="fox"), Sample("Where does the hen live?", target="fox")],
    solver=generate(),
    scorer=includes(),
)
(log,) = eval(
    task,
    model,
    display="none",
    log_dir="memory://logs",
    temperature=0,
    seed=1,
    max_tokens=4,
    logprobs=True,
    top_logprobs=2,
)
assert log.status == "success" and log.results is not None and log.samples is not None, log.error
choices = [sample.output.choices[0] for sample in log.samples]
print(
    json.dumps(
        {
            "texts": [choice.message.text for choice in choices],
            "accuracy": log.results.scores[0].metrics["accuracy"].value,
            "logprobs": [[entry.logprob for entry in choice.logprobs.content] for choice in choices],
            "top": [[len(entry.top_logprobs) for entry in choice.logprobs.content] for choice in choices],
            "num_tokens": [sample.output.usage.output_tokens for sample in log.samples],
        }
    )
)
