"""LangChain's client for OpenAI: an answer with log-probabilities, a stream, an answer by a schema."""

import json
from typing import Literal

from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel


class Animal(BaseModel):
    """An animal of a story."""

    animal: Literal["fox", "hen"]


chat = ChatOpenAI(model="story", temperature=0, max_tokens=4, seed=1)
whole = chat.bind(logprobs=True, top_logprobs=2).invoke("Where does the fox live?")
chunks = list(chat.stream("Where does the fox live?", stream_usage=True))
by_schema = ChatOpenAI(model="story", temperature=0).with_structured_output(Animal, method="json_schema")
text = OpenAI(model="story", temperature=0, max_tokens=4, seed=1)
print(
    json.dumps(
        {
            "text": whole.content,
            "logprobs": [entry["logprob"] for entry in whole.response_metadata["logprobs"]["content"]],
            "usage": whole.usage_metadata,
            "streamed": "".join(str(chunk.content) for chunk in chunks),
            "stream_usage": next(chunk.usage_metadata for chunk in reversed(chunks) if chunk.usage_metadata),
            "animal": by_schema.invoke("Which animal?").animal,
            "completion": text.invoke("Once upon a time"),
        }
    )
)
