"""Tokens of a text field while a person types, as a component: the browser reads the field and asks the web socket."""

from pathlib import Path

from pages.parts.component import component
from pages.parts.live import SOCKET_PATH
from pages.parts.live_ask import MAX_TEXT
from pages.parts.token_strip import module, token_style

_SCRIPTS = ("format", "theme", "element", "text", "socket", "memory")
_HERE = Path(__file__).parent
_component = component(
    "logitbench_typed_tokens",
    js=module(_SCRIPTS, _HERE / "typed.js", "TypedTokens"),
    css=f"{token_style()}\n{(_HERE / 'typed.css').read_text('utf-8')}",
)


def typed_tokens(
    field: str,
    text: str,
    *,
    model: str = "",
    loaded: str | None = None,
    special: bool = False,
    context: int | None = None,
    is_open: bool = True,
) -> None:
    """Show the tokens of the text area with the key `field`: of `text`, as this rerun has it, then of what is typed.

    model: path of the file that tokenises, "" for the loaded model, which is `loaded`; without either only the place
    of the tokens is kept. special: written control tokens count as such. context: tokens of one sequence, shown beside
    the number of tokens; None tells the number of characters. is_open: whether it is unfolded until a person folds it.
    """
    _component(
        key=f"{field}_tokens",
        data={
            "field": field,
            "text": text,
            "model": model,
            "loaded": loaded,
            "special": special,
            "context": context,
            "isOpen": is_open,
            "most": MAX_TEXT,
            "socket": SOCKET_PATH,
        },
    )
