"""Sandbox that evaluates foreign text: what is cached, what a crash costs others, how it ends."""

import threading
from collections.abc import Iterator

import psutil
import pytest

from engine.errors import ConfigError, PoolClosed, QueueFull
from engine.llama.sandbox import Sandbox
from engine.specs import Sampling
from engine.vocabulary import TokenKind, Vocabulary
from tests.processes import children_with
from tests.waiting import until

END = bytes([TokenKind.CONTROL, TokenKind.CONTROL | TokenKind.END])
VOCABULARY = Vocabulary((b"", b""), END, {0: "<s>", 1: "</s>"}, bos=0, add_bos=True, add_space_prefix=False)
HELLO = [{"role": "user", "content": "Hi"}]
HANG_S = 60
STUCK = Sampling(json_schema='{"type": "string", "pattern": "^]$"}')


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    opened = Sandbox()
    yield opened
    opened.close()


def processes() -> set[psutil.Process]:
    return set(children_with("engine.llama.sandbox_program"))


@pytest.mark.parametrize(
    ("template", "text", "add_bos"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>", False),
        ("{{ messages[0].content }}", "Hi", True),
        ("a{{ bos_token }}", "a<s>", True),
    ],
)
def test_bos_is_added_only_where_the_template_has_not_written_it(
    sandbox: Sandbox, template: str, text: str, add_bos: bool
) -> None:
    assert sandbox.render_chat(template, HELLO, VOCABULARY) == (text, add_bos)


def test_a_model_without_a_template_needs_no_process(sandbox: Sandbox) -> None:
    before = processes()
    with pytest.raises(ConfigError, match="no chat template"):
        sandbox.render_chat("", HELLO, VOCABULARY)
    assert sandbox.compile(Sampling(temperature=0)) == Sampling(temperature=0)
    assert processes() <= before


def test_a_schema_becomes_a_grammar_and_a_grammar_stays(sandbox: Sandbox) -> None:
    compiled = sandbox.compile(Sampling(json_schema='{"const": 5}', seed=7))
    assert (compiled.json_schema, compiled.seed) == ("", 7)
    assert 'root ::= "5"' in compiled.grammar
    assert sandbox.compile(compiled) == compiled


@pytest.mark.slow
def test_a_text_that_ends_its_process_does_not_fail_those_that_come_with_it(sandbox: Sandbox) -> None:
    sandbox.compile(Sampling(grammar='root ::= "warm"'))
    failed: list[str] = []

    def attack() -> None:
        with pytest.raises(ConfigError, match="took longer than 2 s"):
            sandbox.compile(STUCK)
        failed.append("attack")

    attacker = threading.Thread(target=attack)
    attacker.start()
    number = 0
    while not failed:
        number += 1
        sandbox.compile(Sampling(grammar=f'root ::= "{number}"'))
    attacker.join()
    assert number > 5


@pytest.mark.slow
def test_a_time_limit_is_not_kept_as_an_outcome(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match="took longer than 2 s"):
        sandbox.compile(STUCK)
    assert not sandbox._outcomes


@pytest.mark.slow
def test_a_text_that_is_not_read_for_others_is_not_at_fault(sandbox: Sandbox) -> None:
    schema = Sampling(json_schema='{"const": 5}')
    refused = pytest.raises(QueueFull, match="json_schema was not read: .* was busy until the time limit: try again")
    with sandbox._running().claimed(HANG_S), sandbox._running().claimed(HANG_S), refused:
        sandbox.compile(schema)
    assert sandbox.compile(schema).grammar


def test_what_is_kept_is_bounded(sandbox: Sandbox) -> None:
    for number in range(80):
        sandbox.compile(Sampling(grammar=f'root ::= "{number}"'))
    assert len(sandbox._outcomes) == 64


def test_a_closed_sandbox_says_so_and_leaves_no_process(sandbox: Sandbox) -> None:
    before = processes()
    sandbox.compile(Sampling(grammar='root ::= "a"'))
    assert len(processes() - before) == 2
    sandbox.close()
    sandbox.close()
    assert processes() <= before
    with pytest.raises(PoolClosed):
        sandbox.compile(Sampling(grammar='root ::= "b"'))


def test_closing_ends_what_is_being_asked(sandbox: Sandbox) -> None:
    sandbox.compile(Sampling(grammar='root ::= "a"'))
    threading.Timer(0.3, sandbox.close).start()
    with pytest.raises(PoolClosed):
        sandbox.compile(STUCK)


def test_a_sandbox_nobody_holds_ends_its_processes() -> None:
    before = processes()
    held = Sandbox()
    held.compile(Sampling(grammar='root ::= "a"'))
    assert processes() - before
    del held
    until(lambda: processes() <= before)
