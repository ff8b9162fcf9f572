"""Code of calls, and what the Prompt lab and Compare make of them: the token ids of the prompt, or why not."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest

from engine.api.openai.server import ApiServer, server_of
from engine.api.openai.traffic import Traffic
from engine.commands import arguments, generate
from engine.errors import ConfigError
from engine.specs import Sampling
from engine.workbench import Workbench
from engine.workbench.trials import Draft, StoredTrial, Trial
from pages.parts import snippets
from pages.parts.plain import plain
from pages.parts.prompt_lab import call_prompt
from pages.parts.traffic import call_code
from tests.chat_model import write_chat_model
from tests.pages.app import address, open_page, press
from tests.pages.conftest import wait_for_model
from tests.waiting import until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<tool_call>{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
    "{% if mood %}({{ mood }}){% endif %}{% for m in messages %}[{{ m.role }}]{{ m.name or '' }}"
    "{% for call in m.tool_calls %}{{ call.function.name }} {% endfor %}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLED = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TEXTS = (
    *(
        "Once upon a time",
        "-",
        "--model x",
        "- a dash",
        'it\'s a "quoted" $HOME `word` \\n ! *',
        "two\n\nlines\n",
        "@file",
    ),
    *(
        "</s><s>[user] not control",
        "früh 早い 🦊\u202e",
        " a space",
        "%s %(x)s {{x}}",
        "tab\tand\rreturn",
        "word " * 40,
    ),
)
DUMP = "import json, os, sys; open(os.environ['DUMPED'], 'w').write(json.dumps(sys.argv[1:]))"
"""A program in the place of Python's: it writes down the arguments with which a shell starts it."""
MOST_CASES = 24


@pytest.fixture(scope="module")
def bench_of_chats(bench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """The workbench on a model whose template knows tools, names and a variable."""
    bench.model_manager.load(write_chat_model(tmp_path_factory.mktemp("chat") / "chat.gguf", TEMPLATE))
    wait_for_model(bench)
    yield bench
    bench.load_default()
    wait_for_model(bench)


@pytest.fixture(scope="module")
def api(bench_of_chats: Workbench) -> Iterator[ApiServer]:
    """The server of the workbench, without calls."""
    server = server_of(bench_of_chats)
    server.traffic = Traffic()
    server.start(0)
    yield server
    server.stop()


@dataclass
class Sent:
    """Pool that submits nothing: it notes what would be sent, as token ids."""

    pool: Any
    ids: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def render_chat(self, messages: Any) -> tuple[str, list[int]]:
        found: tuple[str, list[int]] = self.pool.render_chat(messages)
        return found

    def submit(self, prompt: str | Sequence[int], _sampling: Sampling, **_options: Any) -> list[Any]:
        self.ids = tuple(self.pool.tokenize(prompt) if isinstance(prompt, str) else prompt)
        return []


def call(api: ApiServer, bench: Workbench, endpoint: str, body: dict[str, Any]) -> Trial:
    """The trial of a call, once it has ended."""
    headers = {"Authorization": f"Bearer {api.key}", "User-Agent": "test/1"}
    request = HttpRequest(f"{api.address.removesuffix('/v1')}{endpoint}", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=60) as answer:
        answer.read()
    trial = bench.trials.trial(api.traffic.rows()[0].trials[0])
    until(trial.done)
    return trial


def cases(pool: Any) -> list[tuple[str, dict[str, Any]]]:
    """Requests of all kinds, drawn: texts, ids, conversations, with and without what a template gets besides them."""
    drawn = random.Random(5)
    found: list[tuple[str, dict[str, Any]]] = [(COMPLETIONS, {"prompt": text}) for text in TEXTS]
    found += [(CHAT, {"messages": [{"role": "user", "content": text}]}) for text in TEXTS]
    found.append((COMPLETIONS, {"prompt": pool.tokenize("Once upon a time")}))
    found.append((COMPLETIONS, {"prompt": pool.tokenize("Once upon")[1:]}))
    for _ in range(MOST_CASES):
        if drawn.random() < 0.25:
            ids = [drawn.randrange(3, len(pool.vocabulary)) for _ in range(drawn.randrange(1, 20))]
            found.append((COMPLETIONS, {"prompt": ids}))
            continue
        messages: list[dict[str, Any]] = []
        if drawn.random() < 0.5:
            messages.append({"role": "system", "content": drawn.choice(("", *TEXTS))})
        for _ in range(drawn.randrange(3)):
            messages.append({"role": "user", "content": drawn.choice(TEXTS)})
            messages.append({"role": "assistant", "content": drawn.choice(TEXTS)})
            if drawn.random() < 0.4:
                messages[-1] |= {"tool_calls": [CALLED]}
                messages.append({"role": "tool", "tool_call_id": "1", "content": drawn.choice(TEXTS)})
        if not messages or drawn.random() < 0.7:
            messages.append({"role": "user", "content": drawn.choice(TEXTS)})
            messages[-1] |= {"name": "Ann"} if drawn.random() < 0.3 else {}
        options: list[dict[str, Any]] = [
            {"tools": [TOOL]}, {"add_generation_prompt": False}, {"continue_final_message": True},
            {"chat_template_kwargs": {"mood": "sad"}}, {"chat_template_kwargs": {"other": 1}}, {"tools": []},
        ]  # fmt: skip
        body: dict[str, Any] = {"messages": messages}
        body |= drawn.choice(options) if drawn.random() < 0.6 else {}
        found.append((CHAT, body))
    return found


@pytest.fixture(scope="module")
def trials(api: ApiServer, bench_of_chats: Workbench) -> list[Trial]:
    """A trial of each case, as it is while it is in memory; every other one as it is read from the history."""
    pool, _ = bench_of_chats.model.loaded()
    made = [call(api, bench_of_chats, endpoint, {"max_tokens": 2, "seed": 3, **body}) for endpoint, body in cases(pool)]
    history = bench_of_chats.history
    assert history is not None
    until(lambda: all(history.trial(one.id) for one in made))
    stored = [StoredTrial(record) for one in made if (record := history.trial(one.id))]
    return [*made, *stored]


def ids_of(bench: Workbench, trial: Trial) -> tuple[int, ...]:
    """The ids that the code of a trial has in the place of its text; empty for none."""
    is_same = bench.plain_prompts.is_same(trial)
    assert is_same is not None
    return () if is_same else trial.prompt_ids


def sent_by_python(program: str, pool: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    sent = Sent(pool)
    monkeypatch.setattr("engine.Pool", lambda *_words, **_options: sent)
    exec(compile(program, "copied", "exec"), {})
    return sent.ids


def arguments_of(line: str, folder: Path) -> list[str]:
    """What a real shell gives the program of a command line."""
    (folder / "python").write_text(f"#!{sys.executable}\n{DUMP}\n")
    (folder / "python").chmod(0o700)
    (folder / "copied.sh").write_text(line, encoding="utf-8")
    dumped = folder / "dumped"
    subprocess.run(
        ["sh", folder / "copied.sh"], check=True, timeout=60, stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "DUMPED": str(dumped)},
    )  # fmt: skip
    words: list[str] = json.loads(dumped.read_text())
    return words


def sent_by_shell(line: str, pool: Any, folder: Path) -> tuple[int, ...]:
    words = arguments_of(line, folder)
    assert words[:2] == ["-m", "engine"]
    sent = Sent(pool)
    generate.submit(sent, arguments.parse(words[2:]))  # type: ignore[arg-type]
    return sent.ids


def test_copied_code_sends_the_ids_of_the_prompt(
    bench_of_chats: Workbench, trials: list[Trial], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool, _ = bench_of_chats.model.loaded()
    num_by_ids = num_in_shell = 0
    for trial in trials:
        ids = ids_of(bench_of_chats, trial)
        program = snippets.as_python(trial.draft, pool.model, pool.spec, None, ids)
        assert sent_by_python(program, pool, monkeypatch) == trial.prompt_ids, trial.draft
        num_by_ids += bool(ids)
        if not snippets.against_shell(trial.draft, pool.model, ids):
            line = snippets.as_shell(trial.draft, pool.model, pool.spec)
            assert sent_by_shell(line, pool, tmp_path) == trial.prompt_ids, trial.draft
            num_in_shell += 1
    assert 10 < num_by_ids < len(trials) - 10 and num_in_shell > 20


def test_a_variant_has_the_ids_of_the_call_or_there_is_none(bench_of_chats: Workbench, trials: list[Trial]) -> None:
    pool, _ = bench_of_chats.model.loaded()
    num_refused = 0
    for trial in {trial.id: trial for trial in trials}.values():
        try:
            plan = bench_of_chats.compare.of_trials([trial.id]).plan
        except ConfigError as error:
            assert str(error).startswith("This call cannot be a variant: ")
            messages = trial.draft.messages
            is_text = all(message.keys() == {"role", "content"} and message["role"] != "tool" for message in messages)
            if is_text and (not messages or messages[-1]["role"] == "user"):
                assert bench_of_chats.plain_prompts.is_same(trial) is False
            num_refused += 1
            continue
        text = plan.text(plan.arms[0], plan.rows[0])
        messages = (*map(dict, plan.before), {"role": "user", "content": text}) if plan.is_chat else ()
        sent = pool.render_chat(list(messages))[1] if messages else pool.tokenize(text)
        assert tuple(sent) == trial.prompt_ids, trial.draft
    assert 10 < num_refused < len(trials) - 10


def test_calls_with_other_beginnings_are_no_variants_of_one_prompt(bench_of_chats: Workbench, api: ApiServer) -> None:
    question = {"role": "user", "content": "Who?"}
    ids = [
        call(
            api, bench_of_chats, CHAT, {"messages": [{"role": "system", "content": text}, question], "max_tokens": 1}
        ).id
        for text in ("Be brief.", "Be long.")
    ]
    with pytest.raises(ConfigError, match="before the last one differ"):
        bench_of_chats.compare.of_trials(ids)


@pytest.mark.parametrize(
    ("endpoint", "body", "said"),
    [
        (COMPLETIONS, {"prompt": "Once upon a time"}, ""),
        (COMPLETIONS, {"prompt": [40, 41, 42]}, call_prompt.OTHER_IDS),
        (CHAT, {"messages": [{"role": "user", "content": "Who?"}]}, ""),
        (CHAT, {"messages": [{"role": "user", "content": "Who?"}], "tools": [TOOL]}, call_prompt.OTHER_MESSAGES),
    ],
)
def test_the_lab_says_what_it_does_not_take_over_and_regenerate_keeps_it(
    bench_of_chats: Workbench, api: ApiServer, endpoint: str, body: dict[str, Any], said: str
) -> None:
    trial = call(api, bench_of_chats, endpoint, {"max_tokens": 2, **body})
    at = open_page("prompt_lab.py", "Prompt lab", trial=trial.id)
    captions = [element.value for element in at.main.caption]
    for each in (call_prompt.OTHER_IDS, call_prompt.OTHER_MESSAGES):
        assert (each in captions) == (each == said), each
    assert plain("Edited since this run.") not in captions
    program = next(element.value for element in at.main.code if "engine import" in element.value)
    assert (repr(list(trial.prompt_ids))[:60] in program) == bool(said)
    at = press(at, "do_refresh")
    again = bench_of_chats.trials.trial(address(at)["trial"])
    assert again.id != trial.id
    until(again.done)
    assert again.prompt_ids == trial.prompt_ids


def test_the_page_of_a_call_offers_its_ids_and_says_why_there_is_no_command_line(
    bench_of_chats: Workbench, api: ApiServer
) -> None:
    trial = call(api, bench_of_chats, COMPLETIONS, {"prompt": [40, 41, 42], "max_tokens": 2})
    at = open_page("traffic.py", "Traffic", call=str(api.traffic.rows()[0].number))
    assert snippets.OTHER_IDS in [element.value for element in at.main.caption]
    codes = [element.value for element in at.main.code]
    assert any(f"prompt = {list(trial.prompt_ids)}" in code for code in codes)
    assert not any("engine generate" in code for code in codes)


def test_a_call_of_another_model_says_that_the_code_runs_the_loaded_one(
    bench_of_chats: Workbench, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = call(api, bench_of_chats, COMPLETIONS, {"prompt": "Once upon", "max_tokens": 2})
    monkeypatch.setattr(trial, "model", replace(trial.model, name="other **model**", hash="another"))
    at = open_page("traffic.py", "Traffic", call=str(api.traffic.rows()[0].number))
    said = plain(
        "This runs the loaded model. other **model**, which answered, is another one. It sends the text of its prompt."
    )
    assert [element.value for element in at.main.caption].count(said) == 2


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (Draft("-"), "hyphen"),
        (Draft("", ({"role": "user", "content": "-"},)), "hyphen"),
        (Draft("a\0b"), "null"),
        (Draft("é" * 70_000), "131,000 bytes"),
        (Draft("a", sampling=Sampling(dry_sequence_breakers=("-",))), "begins with a hyphen"),
        (Draft("a", sampling=Sampling(dry_sequence_breakers=())), "empty list"),
        (Draft("", ({"role": "user", "content": "a", "name": "b"},)), "longer chat"),
        (Draft("a"), ""),
    ],
)
def test_what_a_command_line_cannot_say_is_said(draft: Draft, said: str) -> None:
    found = snippets.against_shell(draft, "/models/a.gguf")
    assert said in found and bool(found) == bool(said)


def test_a_prompt_of_as_many_ids_as_are_written_fits_into_one_argument(bench_of_chats: Workbench) -> None:
    linux_allows = 131_072
    assert snippets.LONGEST_ARGUMENT + len("--json-schema=") < linux_allows
    body = {"model": "m" * 200, "prompt": [262_143] * snippets.MOST_IDS, "max_tokens": 1 << 24}
    assert len(call_code.body_of(body)) < snippets.LONGEST_ARGUMENT < linux_allows
    line = call_code.as_curl(COMPLETIONS, body, "http://127.0.0.1:1/v1", "")
    given = line.partition("-d ")[2]
    done = subprocess.run(["sh"], input=f"printf %s {given} | wc -c; env true {given}", text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert int(done.stdout) == len(call_code.body_of(body))


def test_a_request_too_long_for_a_command_line_says_so(bench_of_chats: Workbench, api: ApiServer) -> None:
    schema = {"enum": ["a"], "description": "x" * snippets.LONGEST_ARGUMENT}
    call(api, bench_of_chats, COMPLETIONS, {"prompt": "Once", "max_tokens": 2, "json_schema": schema})
    at = open_page("traffic.py", "Traffic", call=str(api.traffic.rows()[0].number))
    assert "too long for a command line" in " ".join(element.value for element in at.main.caption)
    assert not any(element.value.startswith("curl ") and "-d" in element.value for element in at.main.code)


@pytest.mark.parametrize("text", TEXTS)
def test_copied_curl_sends_the_body_through_a_real_shell(text: str, tmp_path: Path) -> None:
    (tmp_path / "curl").write_text(f"#!{sys.executable}\n{DUMP}\n")
    (tmp_path / "curl").chmod(0o700)
    body = {"prompt": text, "stop": [text]}
    key = "a b$c'`\"\\"
    line = call_code.as_curl(COMPLETIONS, body, "http://127.0.0.1:1/v1", key)
    dumped = tmp_path / "dumped"
    subprocess.run(
        ["sh", "-c", line], check=True, timeout=60,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DUMPED": str(dumped)},
    )  # fmt: skip
    words = json.loads(dumped.read_text())
    assert words[0] == "http://127.0.0.1:1/v1/completions"
    assert f"Authorization: Bearer {key}" in words
    assert json.loads(words[words.index("-d") + 1]) == body
