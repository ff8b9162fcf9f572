"""Hostile models: GGUF files that are damaged or lie, file names that are markup, chat templates that never end."""

import random
import struct
from pathlib import Path
from urllib.parse import urlencode

from engine.models.library import embedded_model
from tests.engine.models import headers
from tests.faults import foreign
from tests.faults.app import until
from tests.faults.failure import Failure
from tests.faults.foreign import nasty
from tests.faults.world import CANARY, World

LOADS_WITHIN_S = 30.0
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATES = (
    "{{ (7 ** 5000000) % 10 }}" + LOOP,
    "{{ 2 ** 8000000000 }}",
    "{{ 9**9**9**9 }}",
    "{{ 'x'|center(3000000000) }}",
    LOOP,
    "{{ messages|tojson(indent=3000000000) }}",
    "{{ 'x' * 3000000000 }}",
    "{{ range(99999)|list|string * 9999 }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{{ " + "(" * 5000,
    "{% if " * 5000,
    "{{ 'a'.join(['b'] * 99999999) }}",
    "{{ 'a'|replace('', 'b' * 99999) * 99999 }}",
    "{{ messages|map('upper')|join * 100000 }}",
    "{% set x = 'a' %}" + "{% set x = x ~ x %}" * 40 + "{{ x }}",
    "{{ strftime_now('%' * 99999999) }}",
    "{{ messages|batch(1)|list|string|urlize }}",
    "{{ lipsum(n=1000000) }}",
    "{{ ('%999999999d' % 1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ messages[0]['content'].format(x=1) }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch /tmp/" + CANARY + "') }}",
    "{{ raise_exception('" + foreign.MARKUP[0].replace("'", "") + "') }}",
    "{% include '/etc/passwd' %}",
    "\0",
    "{{",
    "",
    "{{ 1e308 * 10 }}",
)


def hostile_model(world: World, draw: random.Random) -> None:
    """A model file that lies lies among the models: listed, looked at and loaded, it does no harm."""
    content, what = _model(draw)
    world.doing = f"{what} among the models"
    path = _laid(world, _name(draw), content)
    try:
        page = world.tab()
        page.go_to("models")
        page.go_to("models", urlencode({"model": str(path)}, errors="replace"))
        world.doing = f"{what}, loaded"
        _load(world, path)
    finally:
        path.unlink()
        _load_story(world)


def hostile_template(world: World, draw: random.Random) -> None:
    """A model whose chat template never ends, or wants out: the chat says so in time, other trials go on."""
    template = draw.choice(TEMPLATES)
    world.doing = f"chat template {template[:120]!r}"
    path = _laid(world, "chat.gguf", foreign.story_with("tokenizer.chat_template", template))
    try:
        _load(world, path)
        page = world.tab()
        page.go_to("")
        if page.find("lab_mode") is not None:
            page.choose("lab_mode", "Chat")
            page.fill(lab_message=f"Hello {nasty(draw)[:200]}")
            page.press("do_send")
            if page.trial and not page.errors():
                world.ending(page.trial)
                world.ended.clear()
    finally:
        path.unlink()
        world.lose_tab()
        _load_story(world)


def _model(draw: random.Random) -> tuple[bytes, str]:
    """A file, and what it is."""
    how = draw.randrange(6)
    if how == 0:
        return foreign.damaged(draw, foreign.story()[: draw.choice((300_000, 9_000_000))]), "a damaged model"
    if how == 1:
        return headers.gguf(num_keys=draw.choice((0, 1, 1 << 40, (1 << 64) - 1))), "a model with a wrong number of keys"
    if how == 2:
        keys = [*headers.KEYS, headers.key("general.name", headers.TEXT, headers.text(nasty(draw)))]
        return headers.gguf(keys), "a model whose name is nasty"
    if how == 3:
        keys = [headers.array("a", headers.ARRAY, 1, b"") * draw.choice((1, 1000)), *headers.KEYS]
        return headers.gguf(keys), "a model with arrays in arrays"
    if how == 4:
        big = [
            headers.u32(f"llama.{name}", draw.choice((0, (1 << 32) - 1, 7)))
            for name in ("block_count", "context_length")
        ]
        return headers.gguf([*headers.KEYS[:5], *big, *headers.KEYS[7:]]), "a model with sizes that cannot be"
    changed = bytearray(foreign.story())
    for _ in range(draw.randint(1, 20)):
        place = draw.randrange(24, 200_000)
        struct.pack_into("<Q", changed, place, draw.choice((0, 1 << 31, (1 << 64) - 1, draw.randrange(1 << 16))))
    return bytes(changed), "a model with numbers changed in its header"


def _name(draw: random.Random) -> str:
    names = (
        "plain",
        "<img src=x onerror=window.canary=1>",
        "**a** `b` $c$",
        "é\u202ex",
        "a\nb",
        " ",
        "-",
        "x" * 200,
        "[a](b)",
    )
    return f"{draw.choice(names)}.gguf".replace("/", "_")


def _laid(world: World, name: str, content: bytes) -> Path:
    folder = world.home.path / "models"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


def _load(world: World, path: Path) -> None:
    """Load a file through the model bar, as a person does, where it may be loaded at all; waits for the end of that."""
    world.lose_tab()
    page = world.tab()
    page.go_to("")
    page.press("model_change")
    page.choose("pick_source", "Path")
    page.fill(pick_path=str(path))
    load = page.find("pick_load")
    if load is None or load.disabled:
        if not page.errors():
            raise Failure(f"the picker neither loads {path.name!r} nor says why not")
        return
    page.press("pick_load")

    def is_over() -> bool:
        page.rerun()
        return page.find("model_cancel") is None

    until(is_over, "the model neither loaded nor failed", LOADS_WITHIN_S)


def _load_story(world: World) -> None:
    _load(world, embedded_model())
    page = world.tab()

    def can_run() -> bool:
        page.go_to("")
        if page.find("do_send") is not None:  # opened on the last trial, a chat, for which this model has no template
            page.choose("lab_mode", "Completion")
        run = page.find("do_run")
        return run is not None and not run.disabled

    until(can_run, "the model that ships could not be loaded again", LOADS_WITHIN_S)
