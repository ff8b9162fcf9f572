"""Instructor: an answer as a Pydantic model, through the response format and as a call of a tool."""

import json
from typing import Literal

import instructor
import openai
from pydantic import BaseModel


class Animal(BaseModel):
    """An animal of a story."""

    animal: Literal["fox", "hen"]
    legs: Literal[2, 4]


found = {}
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    client = instructor.from_openai(openai.OpenAI(), mode=mode)
    answer = client.chat.completions.create(
        model="story",
        response_model=Animal,
        messages=[{"role": "user", "content": "Which animal?"}],
        max_tokens=64,
        temperature=0,
        max_retries=0,
    )
    found[mode.name] = answer.model_dump()
print(json.dumps(found))
