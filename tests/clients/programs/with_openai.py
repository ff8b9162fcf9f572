"""OpenAI's own client: completions with echo, chats, streams, parsed answers, calls of tools, errors."""

import json
import time
from collections.abc import Callable
from typing import Any, Literal

import openai
from pydantic import BaseModel

client = openai.OpenAI()
models = [one.id for one in client.models.list()]
model = models[0]
asked = {"model": model, "temperature": 0, "seed": 1}
messages = [{"role": "user", "content": "Where does the fox live?"}]


class Animal(BaseModel):
    """Finite, as the story model closes no text by itself."""

    animal: Literal["fox", "hen"]
    is_old: bool


def completion() -> object:
    done = client.completions.create(prompt="Once upon a time", max_tokens=4, echo=True, logprobs=3, **asked)
    return done.model_dump()


def several() -> object:
    done = client.completions.create(prompt=["The fox", "The hen"], max_tokens=2, n=2, **asked)
    return [[choice.index, choice.text] for choice in done.choices]


def chat() -> object:
    done = client.chat.completions.create(messages=messages, max_tokens=4, logprobs=True, top_logprobs=2, **asked)
    return done.model_dump()


def stream() -> object:
    chunks = client.chat.completions.create(
        messages=messages, max_tokens=4, stream=True, stream_options={"include_usage": True}, **asked
    )
    return [chunk.model_dump() for chunk in chunks]


def parsed() -> object:
    done = client.chat.completions.parse(messages=messages, response_format=Animal, max_tokens=64, **asked)
    found = done.choices[0].message.parsed
    assert isinstance(found, Animal)
    return found.model_dump()


def batch() -> object:
    """A file of requests, one of them wrong, answered in the background; the files are deleted."""
    bodies = [{"prompt": "The fox", "max_tokens": 2, **asked}, {"prompt": "The fox", "max_tokens": -1}]
    lines = [
        json.dumps({"custom_id": f"n{number}", "method": "POST", "url": "/v1/completions", "body": body})
        for number, body in enumerate(bodies)
    ]
    given = client.files.create(file=("requests.jsonl", "\n".join(lines).encode()), purpose="batch")
    made = client.batches.create(input_file_id=given.id, endpoint="/v1/completions", completion_window="24h")
    while made.status not in ("completed", "failed", "cancelled"):
        time.sleep(0.05)
        made = client.batches.retrieve(made.id)
    assert made.output_file_id and made.error_file_id
    assert made.id in [each.id for each in client.batches.list()]
    (good,), (bad,) = (
        [json.loads(line) for line in client.files.content(id).text.splitlines()]
        for id in (made.output_file_id, made.error_file_id)
    )
    for id in (given.id, made.output_file_id, made.error_file_id):
        client.files.delete(id)
    left = [each.id for each in client.files.list()]
    return {
        "status": made.status,
        "good": [good["custom_id"], good["response"]["body"]["choices"][0]["text"]],
        "bad": [bad["custom_id"], bad["response"]["body"]["error"]["param"]],
        "left": left,
    }


def tools() -> object:
    """Calls that the request demands, streamed too, and one in the form of the template, with an answer to it."""
    given: dict[str, Any] = {"tools": [openai.pydantic_function_tool(Animal)], "messages": messages, **asked}
    named = {"type": "function", "function": {"name": "Animal"}}
    parsed = client.chat.completions.parse(tool_choice="required", max_tokens=64, **given).choices[0]
    with client.chat.completions.stream(tool_choice=named, max_tokens=64, **given) as events:
        streamed = events.get_final_completion().choices[0]
    call_text = '<tool_call>{"name": "Animal", "arguments": {"animal": "hen", "is_old": true}}</tool_call>'
    says = {"grammar": f"root ::= {json.dumps(call_text)}"}
    auto = client.chat.completions.create(max_tokens=128, extra_body=says, **given).choices[0]
    with client.chat.completions.stream(max_tokens=128, extra_body=says, **given) as events:
        auto_streamed = events.get_final_completion().choices[0]
    (call,) = auto.message.tool_calls
    answers = [auto.message, {"role": "tool", "tool_call_id": call.id, "content": "It lives here."}]
    after = client.chat.completions.create(**{**given, "messages": [*messages, *answers]}, max_tokens=4)
    return {
        "parsed": parsed.message.tool_calls[0].function.parsed_arguments.model_dump(),
        "choices": [one.model_dump() for one in (parsed, streamed, auto, auto_streamed)],
        "after": after.model_dump(),
    }


def embeddings() -> object:
    """Dimension and one product of the vectors of each form: base64, which the client asks for itself, and floats."""
    found = {}
    forms: dict[str, dict[str, Any]] = {"base64": {}, "float": {"encoding_format": "float"}, "cut": {"dimensions": 64}}
    for name, form in forms.items():
        one, two = client.embeddings.create(model=models[-1], input=["a fox", "a hen"], **form).data
        found[name] = [len(one.embedding), sum(a * b for a, b in zip(one.embedding, two.embedding, strict=True))]
    return found


def errors() -> object:
    """Kind of exception, its parameter and its code, for each wrong request."""
    wrong: dict[str, Callable[[], object]] = {
        "key": lambda: client.with_options(api_key="wrong").models.list(),
        "model": lambda: client.completions.create(model="other", prompt="a"),
        "type": lambda: client.completions.create(model=model, prompt="a", max_tokens="many"),
        "length": lambda: client.completions.create(model=model, prompt="word " * 20_000),
        "route": lambda: client.images.generate(prompt="a fox"),
    }
    found = {}
    for name, ask in wrong.items():
        try:
            ask()
        except openai.APIStatusError as error:
            found[name] = [type(error).__name__, error.param, error.code]
    return found


tried = (completion, several, chat, stream, parsed, tools, batch, embeddings, errors)
print(json.dumps({one.__name__: one() for one in tried}))
