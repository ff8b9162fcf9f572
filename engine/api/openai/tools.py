"""Tools of a chat request: their definitions, checked, and the JSON schema that holds an answer to a call of them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from engine.api.openai.errors import refusal
from engine.api.openai.tool_calls import ToolForm, form_of

MOST_TOOLS = MOST_CALLS = 128
MOST_LEVELS = 64
"""Levels of JSON in the parameters of a function."""
NO_PARAMETERS: dict[str, Any] = {"properties": {}, "additionalProperties": False}
"""Parameters of a function that gives none: OpenAI says that it takes no arguments."""

Name = Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """Function that a model may call. parameters: JSON schema of an object with its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """Tool of a request; functions are the only kind."""

    type: Literal["function"]
    function: Function


class NamedFunction(msgspec.Struct, frozen=True):
    """Name of a function."""

    name: Name


class NamedTool(msgspec.Struct, frozen=True):
    """Tool that the answer must call."""

    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], msgspec.Meta(max_length=MOST_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


class ToolUse(NamedTuple):
    """How an answer may call tools. form: of its calls, None for no calls; names, most: as for parser_of.

    given: the tools that the chat template gets.
    """

    form: ToolForm | None
    names: tuple[str, ...]
    most: int
    given: tuple[Tool, ...]


NO_TOOLS = ToolUse(None, (), 0, ())


def tool_use(tools: Sequence[Tool], choice: ToolChoice, template: str, *, is_parallel: bool) -> ToolUse:
    """Return how an answer may call tools. Raises ApiError for auto with a template that has no known form."""
    names = tuple(tool.function.name for tool in tools)
    if choice == "none":
        return ToolUse(None, names, 0, ())
    form = form_of(template)
    given = tuple(tools) if "tools" in template else ()
    if choice != "auto":
        return ToolUse(ToolForm.HELD, names, 1, given)
    if form is None:
        raise refusal(
            "tools: this model's chat template has no known form of calls; use tool_choice = required, or name a "
            "function",
            "tools",
        )
    return ToolUse(form, names, MOST_CALLS if is_parallel else 1, given)


def checked_tools(tools: Sequence[Tool]) -> None:
    """Raise ApiError for two functions of one name, and for parameters that are no schema of an object."""
    names = [tool.function.name for tool in tools]
    wrong = next((name for name in names if name.endswith("\n")), None)
    if wrong is not None:
        raise refusal(f"tools: {wrong!r} is not a name of a function", "tools")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refusal(f"tools: two functions are named {twice!r}", "tools")
    for tool in tools:
        parameters = tool.function.parameters or {}
        if parameters.get("type", "object") != "object":
            raise refusal(f"tools: the parameters of {tool.function.name!r} must have the type object", "tools")
        _check_levels(parameters, tool.function.name, 0)


def template_tools(tools: Sequence[Tool]) -> str:
    """Return the tools as JSON for a chat template."""
    return msgspec.json.encode(tools).decode()


def call_schema(tools: Sequence[Tool], choice: ToolChoice) -> dict[str, Any]:
    """Return the schema of one call: an object with the name of a function and its arguments.

    choice: "required" or the tool that must be called. Raises ApiError for a tool that is not among them, and for
    references to anything but definitions.
    """
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
        if not tools:
            raise refusal(f"tool_choice: {choice.function.name!r} is not among the tools", "tool_choice")
    definitions: dict[str, Any] = {}
    calls = [_call(tool.function, number, definitions) for number, tool in enumerate(tools)]
    return {"anyOf": calls, **({"$defs": definitions} if definitions else {})}


def _call(function: Function, number: int, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a call of one function; its definitions are added under names of their own."""
    given = NO_PARAMETERS if function.parameters is None else function.parameters
    parameters = {"type": "object", **given}
    moved: dict[str, str] = {}
    inner: list[tuple[str, Any]] = []
    for place in ("$defs", "definitions"):
        own = parameters.pop(place, None)
        for name, schema in own.items() if isinstance(own, dict) else ():
            new = f"tool{number}-{len(moved)}"
            moved[f"#/{place}/{name}"] = f"#/$defs/{new}"
            inner.append((new, schema))
    for new, schema in inner:
        definitions[new] = _moved(schema, moved)
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": _moved(parameters, moved)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, moved: dict[str, str]) -> Any:
    """Return a schema whose references name the moved definitions."""
    if isinstance(schema, list):
        return [_moved(inner, moved) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in moved:
            raise refusal(f"tools: the reference {reference[:80]!r} is not to one of the schema's $defs", "tools")
        return {"$ref": moved[reference]}
    return {name: _moved(inner, moved) for name, inner in schema.items()}


def _check_levels(schema: Any, name: str, level: int) -> None:
    if level > MOST_LEVELS:
        raise refusal(f"tools: the parameters of {name!r} have more than {MOST_LEVELS} levels, the limit", "tools")
    if isinstance(schema, dict | list):
        for inner in schema.values() if isinstance(schema, dict) else schema:
            _check_levels(inner, name, level + 1)
