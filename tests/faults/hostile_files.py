"""Hostile files: pasted, uploaded, laid into the inbox; archives that are broken, foreign, huge or of wrong types."""

import json
import random
from contextlib import suppress
from urllib.parse import urlencode

import msgspec

from engine.history.trial_file import trial_bytes
from tests.engine.history.trial_maker import uuid7
from tests.faults import foreign
from tests.faults.app import until
from tests.faults.failure import Failure
from tests.faults.foreign import Maker, nasty
from tests.faults.page import Page
from tests.faults.world import CANARY, World

INBOX_WITHIN_S = 20.0


def hostile_paste(world: World, draw: random.Random) -> None:
    """A text in the import field that is slow, endless or of no kind: the page says so in time."""
    name = draw.choice(sorted(TEXTS))
    text = TEXTS[name](draw).decode("utf-8", "replace")
    world.doing = f"paste {name}, {len(text):,} characters"
    page = _import_page(world)
    page.fill(history_pasted=text)
    _take_in(world, page)


def hostile_file(world: World, draw: random.Random) -> None:
    """A chosen file that is damaged, a bomb or of wrong types."""
    name = draw.choice(sorted(FILES))
    content = FILES[name](draw)
    world.doing = f"choose {name}, {len(content):,} bytes"
    page = _import_page(world)
    page.upload("history_file_0", f"{draw.choice(('a', 'é', 'CON', 'x' * 180))}.zip", content)
    _take_in(world, page)


def hostile_archive(world: World, draw: random.Random) -> None:
    """An archive with a value of a wrong type somewhere: refused in words, or every page can show what is in it."""
    members = _renewed(foreign.archive_members())
    ids = {
        kind: [json.loads(line)["id"] for line in members[kind].splitlines()] for kind in ("runs.jsonl", "trials.jsonl")
    }
    member = draw.choice(
        ("runs.jsonl", "runs.jsonl", "trials.jsonl", "manifest.json", "marks.jsonl", "tokenizers.jsonl")
    )
    world.doing = f"an archive with another {member}"
    members[member] = foreign.json_changed(draw, member, members[member])
    page = _import_page(world)
    page.upload("history_file_0", "archive.zip", foreign.packed(members))
    _take_in(world, page)
    run, trial = ids["runs.jsonl"][0], ids["trials.jsonl"][0]
    addresses = (
        ("benchmark", {"run": run}), ("compare", {"runs": ",".join(ids["runs.jsonl"])}), ("", {"trial": trial}),
        ("history", {"view": "runs"}), ("history", {"view": "trials"}), ("compare", {"trials": trial}),
    )  # fmt: skip
    for name, query in addresses:
        world.doing = f"an archive with another {member}, then /{name}?{urlencode(query)}"
        page.go_to(name, urlencode(query))


def inbox(world: World, draw: random.Random) -> None:
    """Files that lie in the inbox: hostile ones are set aside, right ones beside them are kept."""
    folder = world.home.path / "inbox"
    folder.mkdir(exist_ok=True)
    name = draw.choice(sorted(TRIALS))
    world.doing = f"{name} in the inbox"
    bad = folder / f"{uuid7()}{draw.choice(('.trial', '.run.zip'))}"
    good = foreign.trial()
    bad.write_bytes(TRIALS[name](draw))
    unfinished = folder / f"{good.id}.part"
    unfinished.write_bytes(trial_bytes(good))
    unfinished.rename(folder / f"{good.id}.trial")
    until(lambda: not (folder / f"{good.id}.trial").exists(), "a right trial stayed in the inbox", INBOX_WITHIN_S)
    world.ended.append(good.id)
    until(lambda: not bad.exists(), f"{bad.name} was not taken from the inbox", INBOX_WITHIN_S)


def _import_page(world: World) -> Page:
    """The History page in a tab that has taken nothing in yet."""
    world.lose_tab(6)
    page = world.tab(6)
    page.go_to("history", "view=runs")
    return page


def _take_in(world: World, page: Page) -> None:
    """Take in what the page recognised, where it did; wait for its end."""
    if page.find("history_take_in") is None:
        if not page.errors():
            raise Failure(f"the page neither shows what is in it nor says why not: {page.words()[-300:]!r}")
        return
    page.press("history_take_in")

    def is_over() -> bool:
        page.rerun()
        return page.find("history_import_stop") is None

    until(is_over, "the import did not end")


def _renewed(members: dict[str, bytes]) -> dict[str, bytes]:
    """The same archive with ids that no history has."""
    members = dict(members)
    for name in ("runs.jsonl", "trials.jsonl"):
        for line in members[name].splitlines():
            old, new = json.loads(line)["id"].encode(), uuid7().encode()
            members = {one: _swapped(one, content, old, new) for one, content in members.items()}
    return members


def _swapped(name: str, content: bytes, old: bytes, new: bytes) -> bytes:
    # Tables hold ids as plain text too, of the same length; their pages are not compressed away at this size.
    return content.replace(old, new)


def _repeated(before: str, unit: str, after: str = "") -> Maker:
    return lambda draw: (before + unit * draw.choice((40, 3000, 60_000)) + after).encode()


TEXTS: dict[str, Maker] = {
    "quotes for llama-bench": _repeated("INSERT INTO llama_bench VALUES ('", "''"),
    "an open bracket for llama-bench": _repeated("CREATE TABLE llama_bench (", "a ("),
    "many inserts": _repeated("", "INSERT INTO llama_bench VALUES "),
    "digits without an end": _repeated("x", "1"),
    "spaces and digits": _repeated("1", " 1"),
    "brackets": _repeated("", "["),
    "objects": _repeated("", '{"n_prompt":'),
    "candidates": _repeated("[1] - 1", " - 1"),
    "candidates with numbers": _repeated("", "[999999999999] sampled token: \n"),
    "a log without an end": _repeated("llama_perf_context_print: ", "eval time = "),
    "JSON lines of llama-bench": _repeated("", '{"n_prompt": 1e999, "samples_ts": [' + "1," * 50 + "1]}\n"),
    "numbers beyond all bounds": _repeated("", "1e999 tokens in 0s = -1e999 tok/s (99999999999 threads)\n"),
    "markup": lambda draw: f"{nasty(draw)} 12 tokens in 3s {nasty(draw)}".encode(),
    "a mix": lambda draw: "".join(nasty(draw) for _ in range(draw.choice((3, 60)))).encode(),
}
FILES: dict[str, Maker] = {
    "a damaged archive": lambda draw: foreign.damaged(draw, foreign.packed(foreign.archive_members())),
    "a damaged run": lambda draw: foreign.damaged(draw, foreign.run_file()),
    "a damaged trial": lambda draw: foreign.damaged(draw, trial_bytes(foreign.trial())),
    "a damaged table": lambda draw: foreign.damaged(draw, foreign.table({"label": ["a"], "tok_per_s": [1.0]})),
    "a label in every row": lambda _: foreign.label_bomb(),
    "a bomb": lambda draw: foreign.zip_bomb(draw.choice(("runs.jsonl", "steps.parquet", "manifest.json"))),
    "a climbing member": lambda _: foreign.packed({**foreign.archive_members(), f"../../{CANARY}": b"x"}),
    "an absolute member": lambda _: foreign.packed({**foreign.archive_members(), f"/tmp/{CANARY}": b"x"}),
    "a nested trial": lambda draw: foreign.nested_trial(draw.choice((100, 50_000))),
    "a plan of lists": lambda draw: foreign.packed(
        {**foreign.archive_members(), "runs.jsonl": b'{"plan":{"a":' + b"[" + b"[]," * 40_000 + b"[]]}}\n"}
    ),
    "a deep plan": lambda draw: foreign.packed(
        {**foreign.archive_members(), "runs.jsonl": b'{"plan":' + b"[" * 90_000}
    ),
    "noise": lambda draw: draw.choice((b"PK\3\4", b"PAR1", b"\xde\0", b"GGUF", b"")) + draw.randbytes(5000),
    "one long string": lambda draw: b'{"completion":"' + b"x" * 2_000_000,
}  # fmt: skip
TRIALS: dict[str, Maker] = {
    "a damaged trial": FILES["a damaged trial"],
    "a damaged run": FILES["a damaged run"],
    "a nested trial": FILES["a nested trial"],
    "a bomb": FILES["a bomb"],
    "noise": FILES["noise"],
    "a trial with a value of another type": lambda draw: _changed_trial(draw),
}


def _changed_trial(draw: random.Random) -> bytes:
    plain = foreign.changed(draw, msgspec.msgpack.decode(trial_bytes(foreign.trial()), strict=False))
    with suppress(OverflowError, TypeError, ValueError):
        return msgspec.msgpack.encode(plain)
    return msgspec.msgpack.encode(str(plain))
