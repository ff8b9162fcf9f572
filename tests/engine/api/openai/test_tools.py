"""Tools of /v1/chat/completions: calls that a grammar holds, calls in models' own forms, tools in the template."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.specs import Sampling
from tests.engine.api.openai.conftest import Answer, Api
from tests.waiting import until

PATH = "/v1/chat/completions"
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}bot: {% endif %}"
)
HERMES = (
    "{% if tools %}<tool_call>{{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls %}<{{ c.function.name }} {{ c.function.arguments.city }}>{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
)
USER = {"role": "user", "content": "Who?"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "A tool", "parameters": parameters}}


WEATHER = tool("weather", city={"enum": ["Bonn", "Köln"]}, is_long={"type": "boolean"})
CLOCK = tool("clock", zone={"$ref": "#/$defs/Zone"})
CLOCK["function"]["parameters"]["$defs"] = {"Zone": {"enum": ["UTC", "CET"]}}
OTHER = tool("other", zone={"$ref": "#/$defs/Zone"})
OTHER["function"]["parameters"]["$defs"] = {"Zone": {"const": 7}}
TOOLS = [WEATHER, CLOCK, OTHER]


@pytest.fixture
def chat(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Send a chat to the model with a template."""
    engine = api.bench.model.loaded()[0]

    def ask(template: str = PLAIN, **asked: Any) -> Answer:
        monkeypatch.setattr(engine, "chat_template", template)
        return api.ask(PATH, {"messages": [USER], "max_tokens": 64, **asked})

    yield ask


def streamed(events: list[Any]) -> tuple[str, list[dict[str, Any]], str]:
    """Return content, calls and finish reason of a stream; each call begins with its id and name."""
    content, finish = "", ""
    calls: list[dict[str, Any]] = []
    for event in events:
        (choice,) = event["choices"]
        content += choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
        for part in choice["delta"].get("tool_calls", ()):
            if part["index"] == len(calls):
                assert part["id"] and part["type"] == "function" and part["function"]["name"]
                assert part["function"]["arguments"] == ""
                calls.append({name: part[name] for name in ("id", "type", "function")})
            else:
                assert part.keys() == {"index", "function"} and part["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += part["function"]["arguments"]
    return content, calls, finish


ZONES: dict[str, list[object]] = {"clock": ["UTC", "CET"], "other": [7]}


def check_arguments(function: dict[str, str]) -> None:
    arguments = json.loads(function["arguments"])
    if function["name"] == "weather":
        assert arguments["city"] in ("Bonn", "Köln") and isinstance(arguments["is_long"], bool)
        assert arguments.keys() == {"city", "is_long"}
    else:
        assert arguments.keys() == {"zone"} and arguments["zone"] in ZONES[function["name"]]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("choice", ["required", "weather", "clock", "other"])
def test_a_demanded_call_is_held_by_its_schema(chat: Any, seed: int, choice: str) -> None:
    wanted = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
    asked = {"tools": TOOLS, "tool_choice": wanted, "seed": seed, "temperature": 2, "cache_prompt": False}
    whole = chat(**asked)
    assert whole.status == 200, whole.body
    (found,) = whole.json["choices"]
    assert (found["finish_reason"], found["message"]["content"]) == ("tool_calls", None)
    (call,) = found["message"]["tool_calls"]
    assert choice in ("required", call["function"]["name"])
    check_arguments(call["function"])
    content, calls, finish = streamed(chat(**asked, stream=True).events)
    assert (content, finish) == ("", "tool_calls")
    assert calls[0]["function"] == call["function"]


def test_the_arguments_are_the_text_that_was_generated(api: Api, chat: Any) -> None:
    answer = chat(tools=TOOLS, tool_choice="required", seed=1)
    text = api.bench.trials.trial(answer.headers["x-logitbench-trial"]).steps.text
    (call,) = answer.json["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] in text
    assert json.loads(text)["arguments"] == json.loads(call["function"]["arguments"])


def test_a_demanded_call_that_is_cut_short_says_so(chat: Any) -> None:
    (found,) = chat(tools=TOOLS, tool_choice="required", max_tokens=2).json["choices"]
    assert found["finish_reason"] == "length" and "tool_calls" not in found["message"]
    asked = {"tools": [WEATHER], "tool_choice": "required", "seed": 1, "cache_prompt": False}
    whole = chat(**asked).json
    cut = chat(**asked, max_tokens=whole["usage"]["completion_tokens"] - 2).json["choices"][0]
    assert cut["finish_reason"] == "length"
    (one,), (other,) = (found["message"]["tool_calls"] for found in (cut, whole["choices"][0]))
    assert one["function"]["name"] == "weather"
    assert other["function"]["arguments"].startswith(one["function"]["arguments"]) and one != other


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["cit", '"B', "nn", "K", '":', "is_", "e}", "}"])
@pytest.mark.parametrize("seed", range(2))
def test_a_call_that_a_stop_string_cuts_short_is_not_one_to_be_made(
    chat: Any, stop: str, seed: int, stream: bool
) -> None:
    """A client that is told of a call reads its arguments, which must then be whole."""
    answer = chat(tools=[WEATHER], tool_choice="required", seed=seed, stop=stop, stream=stream)
    if stream:
        content, calls, finish = streamed(answer.events)
    else:
        (choice,) = answer.json["choices"]
        content, calls = choice["message"]["content"] or "", choice["message"].get("tool_calls", [])
        finish = choice["finish_reason"]
    assert stop not in content + "".join(call["function"]["arguments"] for call in calls)
    if finish == "tool_calls":
        check_arguments(calls[0]["function"])
    else:
        assert finish == "stop"


@pytest.mark.parametrize("given", [{}, {"parameters": None}, {"parameters": {"type": "object", "properties": {}}}])
def test_a_function_without_parameters_takes_no_arguments(chat: Any, given: dict[str, Any]) -> None:
    clear = {"type": "function", "function": {"name": "clear", **given}}
    for choice in ("required", {"type": "function", "function": {"name": "clear"}}):
        (found,) = chat(tools=[clear], tool_choice=choice, temperature=3).json["choices"]
        (call,) = found["message"]["tool_calls"]
        assert (found["finish_reason"], json.loads(call["function"]["arguments"])) == ("tool_calls", {})


FORMS = {
    "hermes": (HERMES, "<tool_call>\n{'name': 'weather', 'arguments': {'city': 'Bonn'}}\n</tool_call>"),
    "mistral": (
        HERMES.replace("<tool_call>", "[TOOL_CALLS]"),
        "[TOOL_CALLS][{'name': 'weather', 'arguments': {'city': 'Bonn'}}]",
    ),
    "llama": (HERMES.replace("<tool_call>", "<|python_tag|>"), "{'name': 'weather', 'parameters': {'city': 'Bonn'}}"),
}  # fmt: skip


def says(text: str) -> dict[str, Any]:
    """Return fields that make the model write this text."""
    return {"grammar": f"root ::= {json.dumps(text)}", "max_tokens": 120}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_the_form_of_the_template_is_found(chat: Any, form: str) -> None:
    template, text = FORMS[form]
    asked = {"tools": [WEATHER], **says(text.replace("'", '"'))}
    (found,) = chat(template, **asked).json["choices"]
    assert (found["finish_reason"], found["message"]["content"]) == ("tool_calls", None)
    (call,) = found["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Bonn"}'}
    assert len(call["id"]) == (9 if form == "mistral" else 29)
    content, calls, finish = streamed(chat(template, **asked, stream=True).events)
    assert (content, finish, calls[0]["function"]) == ("", "tool_calls", call["function"])


@pytest.mark.parametrize(
    "text", ["No call at all.", '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>', "<tool_"]
)
def test_what_is_no_call_stays_content(chat: Any, text: str) -> None:
    (found,) = chat(HERMES, tools=[WEATHER], **says(text)).json["choices"]
    assert (found["finish_reason"], found["message"]["content"]) == ("stop", text)
    assert streamed(chat(HERMES, tools=[WEATHER], **says(text), stream=True).events) == (text, [], "stop")


@pytest.mark.parametrize("other", ["<function=weather>", "weather\n<arg_key>city</arg_key>", "<tool_calls>[", "[ARGS]"])
def test_a_template_with_another_form_of_calls_is_refused_unless_a_call_is_demanded(chat: Any, other: str) -> None:
    template = HERMES.replace("<tool_call>", f"<tool_call>{other}")
    answer = chat(template, tools=[WEATHER])
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")
    (found,) = chat(template, tools=[WEATHER], tool_choice="required").json["choices"]
    assert found["finish_reason"] == "tool_calls"


def test_without_parallel_calls_there_is_one(chat: Any) -> None:
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    for is_parallel in (True, False):
        (found,) = chat(HERMES, tools=[CLOCK], parallel_tool_calls=is_parallel, **says(call * 2)).json["choices"]
        assert len(found["message"]["tool_calls"]) == 1 + is_parallel


def test_with_none_the_text_is_not_searched_and_the_template_gets_no_tools(api: Api, chat: Any) -> None:
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    answer = chat(HERMES, tools=[CLOCK], tool_choice="none", **says(call))
    assert answer.json["choices"][0]["message"]["content"] == call
    assert api.bench.trials.trial(answer.headers["x-logitbench-trial"]).draft.prompt == "user: Who?\n"


def test_the_trial_shows_the_rendered_tools_and_calls(api: Api, chat: Any) -> None:
    messages = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Rain"},
    ]
    answer = chat(HERMES, messages=messages, tools=[WEATHER], max_tokens=1)
    assert answer.status == 200, answer.body
    history, id = api.bench.history, answer.headers["x-logitbench-trial"]
    assert history is not None
    until(lambda: history.trial(id) is not None, "the trial was not stored")
    trial = history.trial(id)
    assert trial is not None
    head, _, rest = trial.prompt.removeprefix("<tool_call>").partition("\n")
    assert json.loads(head) == [WEATHER]
    assert rest == "user: Who?\nassistant: <weather Bonn>\ntool: Rain\n"


def test_template_variables_and_turns(api: Api, chat: Any) -> None:
    def prompt(**asked: Any) -> str:
        answer = chat(PLAIN + "{{ mood }}", max_tokens=1, **asked)
        assert answer.status == 200, answer.body
        return api.bench.trials.trial(answer.headers["x-logitbench-trial"]).draft.prompt

    assert prompt(chat_template_kwargs={"mood": "calm", "big": 1 << 70}) == "user: Who?\nbot: calm"
    assert prompt(add_generation_prompt=False) == "user: Who?\n"
    assert prompt(continue_final_message=True) == "user: Who?"


def test_an_answer_can_be_scored_and_its_ids_given(api: Api, chat: Any) -> None:
    engine = api.bench.model.loaded()[0]
    found = chat(prompt_logprobs=2, return_token_ids=True, max_tokens=4, temperature=0).json
    ids = found["prompt_token_ids"]
    own = engine.submit(ids, Sampling(temperature=0), max_tokens=4, top_k=20, prompt_logprobs=True).result(60)
    assert found["choices"][0]["token_ids"] == list(own.ids)
    scored = found["prompt_logprobs"]
    assert scored[0] is None and len(scored) == len(ids)
    for token, step, given in zip(ids[1:], own.prompt_steps[1:], scored[1:], strict=True):
        assert next(iter(given)) == str(token) and len(given) in (2, 3)
        assert given[str(token)]["logprob"] == pytest.approx(step.logprob, abs=1e-4)
        assert given[str(token)]["rank"] == step.rank
    events = chat(return_token_ids=True, max_tokens=4, temperature=0, stream=True).events
    assert events[0]["prompt_token_ids"] == ids
    assert [id for one in events for id in one["choices"][0].get("token_ids", ())] == list(own.ids)


DEEP: Any = {}
for _ in range(70):
    DEEP = {"properties": {"a": DEEP}}
NEST: Any = []
for _ in range(900):
    NEST = [NEST]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a\n"}}]}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER] * 129}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": DEEP}}]}, "tools"),
        ({"tools": [tool("a", b={"$ref": "#/properties/c"})], "tool_choice": "required"}, "tools"),
        ({"tools": [tool("a", b={"type": "nothing"})], "tool_choice": "required"}, "tools"),
        ({"tools": [WEATHER]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "required", "grammar": 'root ::= "a"'}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "response_format",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "b" * 70_000}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages"),
    ],
)
def test_a_wrong_field_is_named(chat: Any, asked: dict[str, Any], param: str) -> None:
    answer = chat(PLAIN, **asked)
    assert answer.status == 400, answer.body
    assert answer.json["error"]["param"] == param, answer.body


def test_nested_arguments_and_variables_are_no_defect(chat: Any) -> None:
    call = {"type": "function", "function": {"name": "a", "arguments": json.dumps({"a": NEST})}}
    assert chat(HERMES, messages=[{"role": "assistant", "tool_calls": [call]}], max_tokens=1).status in (200, 400)
    assert chat(chat_template_kwargs={"a": NEST}, max_tokens=1).status in (200, 400)


@pytest.mark.parametrize(
    "template", ["{{ tools[0].function.name.__class__ }}", "{{ tools.append(1) }}", "{{ mood ** mood ** mood }}"]
)
def test_a_hostile_template_gets_no_further_with_tools(chat: Any, template: str) -> None:
    answer = chat(template + "<tool_call>", tools=[WEATHER], chat_template_kwargs={"mood": 99999}, max_tokens=1)
    assert answer.status in (200, 400), answer.body
