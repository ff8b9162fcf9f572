"""Tokenizer of a file without its weights: the same results as the loaded model, and every way to fail."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import psutil
import pytest

from engine.errors import ConfigError, LimitExceeded, ModelError, WorkerDied
from engine.models.tokenizer import Tokenizer
from engine.pool.pool import Pool
from tests.engine.models import headers
from tests.processes import children_with

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant]"
MESSAGES = [{"role": "user", "content": "What is a token?"}]


@pytest.fixture(scope="module")
def story(story_model: Path) -> Iterator[Tokenizer]:
    tokenizer = Tokenizer(story_model)
    yield tokenizer
    tokenizer.close()


@pytest.fixture
def splitting(tmp_path: Path) -> Iterator[Tokenizer]:
    """Tokenizer of a file that splits texts by a regular expression for which llama.cpp has no code of its own."""
    path = tmp_path / "bpe.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("tekken")
    tokens = ["<s>", "</s>", *map(chr, range(33, 127)), "aa"]
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(["a a"])
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = Tokenizer(path)
    yield tokenizer
    tokenizer.close()


@pytest.mark.skipif(sys.platform == "darwin", reason="the stack of a running program does not grow there")
def test_a_long_run_of_one_letter_does_not_end_the_program(splitting: Tokenizer) -> None:
    assert len(splitting.tokenize("a" * 300_000)) == 150_000


def child() -> psutil.Process:
    """Return the program that was started last."""
    return children_with("engine.llama.tokenizer")[-1]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    "text", ["", "Once upon a time", "naïve 🐈\n\n  \tline", "<s> </s>", "Привет 你好", "a" * 5_000]
)
def test_it_answers_as_the_loaded_model_does(story: Tokenizer, pool: Pool, text: str, special: bool) -> None:
    assert story.tokenize(text, special=special) == pool.tokenize(text, special=special)


def test_it_has_the_same_vocabulary(story: Tokenizer, pool: Pool) -> None:
    assert story.vocabulary == pool.vocabulary
    assert story.vocabulary.hash == pool.vocabulary.hash


def test_a_model_without_a_template_says_so_and_goes_on(story: Tokenizer, pool: Pool) -> None:
    with pytest.raises(ConfigError) as theirs:
        pool.render_chat(MESSAGES)
    with pytest.raises(ConfigError) as ours:
        story.render_chat(MESSAGES)
    assert str(ours.value) == str(theirs.value)
    assert story.tokenize("on")


@pytest.mark.slow
def test_a_template_writes_what_the_loaded_model_would_get(story_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat.gguf"
    program = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--chat-template", TEMPLATE]
    subprocess.run([*program, story_model, path], check=True, capture_output=True, timeout=120)
    tokenizer = Tokenizer(path)
    try:
        with Pool(path, parallel=1, n_ctx=64) as pool:
            assert tokenizer.render_chat(MESSAGES) == pool.render_chat(MESSAGES)
        assert "[user] What is a token?" in tokenizer.render_chat(MESSAGES)[0]
    finally:
        tokenizer.close()


def test_the_weights_are_not_read(story: Tokenizer, story_model: Path) -> None:
    assert story.is_alive
    assert str(story_model) not in {one.path for one in child().memory_maps()}


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF\x03" + bytes(64))
    with pytest.raises(ModelError, match=r"no\.gguf"):
        Tokenizer(path)
    with pytest.raises(ModelError, match="could not load"):
        Tokenizer(headers.write(tmp_path, headers.gguf(headers.KEYS), "empty.gguf"))


def test_a_program_that_is_killed_is_said(story_model: Path) -> None:
    tokenizer = Tokenizer(story_model)
    os.kill(child().pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"story\.gguf: the process that reads its vocabulary was killed"):
        tokenizer.tokenize("Once")
    assert not tokenizer.is_alive
    tokenizer.close()
    tokenizer.close()


def test_one_that_hangs_is_ended(story_model: Path) -> None:
    tokenizer = Tokenizer(story_model)
    tokenizer._patience_s = 0.2
    os.kill(child().pid, signal.SIGSTOP)
    with pytest.raises(LimitExceeded, match="took longer than 0.2 s"):
        tokenizer.tokenize("Once")
    assert not tokenizer.is_alive
    tokenizer.close()
