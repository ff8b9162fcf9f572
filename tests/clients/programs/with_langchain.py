"""LangChain's client for OpenAI: an answer with log-probabilities, a stream, an answer by a schema, calls of tools."""

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
asks = ChatOpenAI(model="story", temperature=0, max_tokens=128, seed=1)
demands = asks.bind_tools([Animal], tool_choice="any")
call_text = '<tool_call>{"name": "Animal", "arguments": {"animal": "hen"}}</tool_call>'
chooses = asks.bind_tools([Animal], extra_body={"grammar": f"root ::= {json.dumps(call_text)}"})
called = chooses.invoke("Which animal?")
result = {"role": "tool", "tool_call_id": called.tool_calls[0]["id"], "content": "It lives here."}
pieces = list(demands.stream("Which animal?"))
streamed = pieces[0]
for piece in pieces[1:]:
    streamed += piece
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
            "calls": {
                "demanded": demands.invoke("Which animal?").tool_calls,
                "streamed": streamed.tool_calls,
                "chosen": called.tool_calls,
            },
            "by_call": asks.with_structured_output(Animal, method="function_calling").invoke("Which animal?").animal,
            "after": chat.bind_tools([Animal]).invoke([("user", "Which animal?"), called, result]).content,
            "completion": text.invoke("Once upon a time"),
        }
    )
)
