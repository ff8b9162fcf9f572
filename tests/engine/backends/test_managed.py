"""Managed engines: servers that the workbench starts, watches and ends."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from engine.backends import managed, managed_programs
from engine.backends.answer_stream import NOTHING_SENT
from engine.backends.link import Link
from engine.backends.managed import ManagedEngine, ManagedKind, managed_missing, open_managed
from engine.backends.managed_programs import MANAGED, flags, managed_estimate, managed_spec
from engine.backends.report import found_facts
from engine.errors import (
    ConfigError,
    MemoryRefused,
    ModelError,
    PoolClosed,
    PromptTooLong,
    ServerFailed,
    WorkerDied,
)
from engine.llama.python_server import settings_of
from engine.machine.cores import cores_for
from engine.models import estimate, llama_programs, memory
from engine.models.reading import read_model
from engine.pool.pool import Pool
from engine.specs import PoolSpec, Sampling
from tests.processes import children, children_with, has_ended
from tests.waiting import until

GREEDY = Sampling(temperature=0)
SPEC = PoolSpec(parallel=1, n_ctx=256, threads=1)
PARENT = """
import sys
from engine.backends.managed import open_managed
from engine.specs import PoolSpec
opened = open_managed(sys.argv[1], sys.argv[2], PoolSpec(parallel=1, n_ctx=256, threads=1))
print(*opened.pids, flush=True)
sys.stdin.read()
"""
CRASHING = """
import os, socket, time
with socket.create_server(("127.0.0.1", 0)) as listening:
    listening.accept()[0].close()
print("GGML_ASSERT(false) failed", flush=True)
time.sleep(0.2)
os.abort()
"""
"""As llama-server does it: it ends its HTTP first, then itself."""


@pytest.fixture(scope="module", params=MANAGED)
def kind(request: pytest.FixtureRequest) -> ManagedKind:
    """Each kind of server; llama-server where `make peers` has built it."""
    found: ManagedKind = request.param
    if found == "llama-server" and managed_missing(found):
        pytest.skip("llama-server is not built: run `make peers`")
    return found


@pytest.fixture(scope="module")
def engine(kind: ManagedKind, story_model: Path) -> Iterator[ManagedEngine]:
    """One for the tests that leave it as it is: a start takes seconds."""
    with open_managed(kind, str(story_model), SPEC) as opened:
        yield opened


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shell script in place of llama-server, still to be written."""
    path = tmp_path / "llama-server"
    path.touch(0o755)
    monkeypatch.setenv("LOGITBENCH_LLAMA_SERVER", str(path))
    return path


def test_it_answers_as_the_pool_does(engine: ManagedEngine, pool: Pool) -> None:
    ours, theirs = (one.submit("Once upon", GREEDY, max_tokens=12, top_k=5).result(60) for one in (pool, engine))
    assert theirs.text == ours.text
    assert [step.logprob for step in theirs.steps] == pytest.approx([step.logprob for step in ours.steps], abs=0.01)
    assert (engine.capabilities.n_ctx, engine.capabilities.num_sequences) == (256, 1)
    assert ("Concurrent requests", "1") in found_facts(engine.found)
    assert (engine.spec.threads, engine.spec.threads_batch, engine.spec.share_weights) == (1, 1, False)


def test_only_the_holder_of_its_key_is_answered(engine: ManagedEngine) -> None:
    connection = HTTPConnection(urlsplit(engine.address).netloc, timeout=60)
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == 401
    connection.close()
    variables = psutil.Process(engine.pids[0]).environ()
    (key,) = (variables[name] for name in ("LLAMA_API_KEY", "API_KEY") if name in variables)
    assert key not in " ".join(psutil.Process(engine.pids[0]).cmdline())


def test_a_server_that_dies_fails_its_jobs_with_the_end_of_its_log(kind: ManagedKind, story_model: Path) -> None:
    with open_managed(kind, str(story_model), SPEC) as engine:
        os.kill(engine.pids[0], signal.SIGSTOP)  # it would answer the first one before it dies
        running, waiting = (engine.submit("Once", max_tokens=200) for _ in range(2))
        os.kill(engine.pids[0], signal.SIGABRT)
        os.kill(engine.pids[0], signal.SIGCONT)
        for job in (running, waiting):
            with pytest.raises(WorkerDied, match=r"crashed \(SIGABRT\); the end of its log:\n"):
                job.result(60)
        until(lambda: engine.ending is not None)
        with pytest.raises(PoolClosed):
            engine.submit("Once")


@pytest.mark.parametrize("status", [None, 500])
def test_a_prompt_that_cannot_be_counted_fails_with_the_first_error(
    engine: ManagedEngine, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.kind != "llama_cpp.server":
        pytest.skip("only llama_cpp.server is asked for the length of a prompt that it did not answer")

    async def failing(*_given: object) -> object:
        raise ServerFailed("no answer", status=status)

    monkeypatch.setattr(managed, "_ENDS_WITHIN_S", 0.1)
    monkeypatch.setattr(Link, "ask", failing)
    error = engine.submit("Once " * 300, max_tokens=1).exception(60)
    assert isinstance(error, ServerFailed) and str(error) == NOTHING_SENT
    assert engine.num_open == 0


def test_a_job_can_be_stopped_while_the_end_of_its_server_is_awaited(
    engine: ManagedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_broken = threading.Event()

    @asynccontextmanager
    async def breaking(*_given: object, **_options: object) -> AsyncIterator[object]:
        is_broken.set()
        raise ServerFailed("the connection broke")
        yield

    monkeypatch.setattr(managed, "_ENDS_WITHIN_S", 600)
    monkeypatch.setattr(Link, "stream", breaking)
    job = engine.submit("Once", max_tokens=1)
    assert is_broken.wait(60)
    job.cancel()
    assert job.result(60).finish_reason == "cancelled"
    until(lambda: engine.num_open == 0)


def test_a_prompt_that_fills_the_context_is_too_long(engine: ManagedEngine, pool: Pool) -> None:
    n_ctx = engine.capabilities.n_ctx
    assert n_ctx is not None
    text = "Once" + " upon" * (n_ctx - len(pool.tokenize("Once")))
    assert len(pool.tokenize(text)) == n_ctx
    with pytest.raises(PromptTooLong, match="256"):
        engine.submit(text, GREEDY, max_tokens=1).result(60)
    assert len(engine.submit(text.removesuffix(" upon"), GREEDY, max_tokens=1).result(60).steps) == 1


def test_a_model_that_it_cannot_load_is_named_with_the_end_of_its_log(
    kind: ManagedKind, story_model: Path, tmp_path: Path
) -> None:
    unknown = tmp_path / "unknown.gguf"
    unknown.write_bytes(story_model.read_bytes().replace(b"llama", b"llamz"))
    with pytest.raises(ModelError, match=r"(?s)unknown\.gguf.*llamz"):
        open_managed(kind, str(unknown), SPEC)


def test_its_start_can_be_aborted(kind: ManagedKind, story_model: Path) -> None:
    before = children()
    with pytest.raises(PoolClosed, match="closed while this model was loading"):
        open_managed(kind, str(story_model), SPEC, on_opening=lambda abort: abort())
    assert children() <= before


def test_it_ends_with_a_parent_that_is_killed(kind: ManagedKind, story_model: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, kind, str(story_model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    until(lambda: not psutil.pid_exists(pid), "the server outlived its parent")


def test_the_environment_sets_no_parameter_and_closing_ends_the_server(
    kind: ManagedKind, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLAMA_ARG_ALIAS", "MODEL_ALIAS", "HOST", "LLAMA_ARG_HOST", "CONFIG_FILE"):
        monkeypatch.setenv(name, "elsewhere")
    engine = open_managed(kind, str(story_model), SPEC)
    assert engine.found.model.endswith("story.gguf")
    job = engine.submit("Once", max_tokens=200)
    engine.close("the test is over")
    with pytest.raises(PoolClosed, match="the test is over"):
        job.result(60)
    assert not psutil.pid_exists(engine.pids[0])
    assert str(engine.ending) == "the test is over"


def test_what_a_server_does_not_have_is_refused(story_model: Path, story_folder: Path, program: Path) -> None:
    for kind, model, spec, message in (
        ("llama-server", story_model, PoolSpec(instances=2), "instances = 2: llama-server is one process"),
        ("llama-server", story_folder, SPEC, "runs GGUF files"),
        ("llama-server", story_model, PoolSpec(dtype="float32"), "dtype"),
        ("llama_cpp.server", story_model, PoolSpec(parallel=4), "one request at a time"),
        ("llama_cpp.server", story_model, PoolSpec(parallel=1, share_weights=True), "always repacks"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_managed(kind, str(model), spec)  # type: ignore[arg-type]  # a str of the table


def test_every_parameter_becomes_a_flag() -> None:
    spec = PoolSpec(
        threads=3, threads_batch=4, parallel=2, n_ctx=300, n_batch=128, n_ubatch=64, flash_attn=False, type_k="q8_0",
        type_v="f32", n_gpu_layers=-1, load="mlock", share_weights=True,
    )  # fmt: skip
    words = flags(spec)
    given = {name: value for name, value in pairwise(words) if name.startswith("--")}
    assert given | {
        "--ctx-size": "1024", "--parallel": "2", "--threads": "3", "--threads-batch": "4", "--batch-size": "128",
        "--ubatch-size": "64", "--flash-attn": "off", "--cache-type-k": "q8_0", "--cache-type-v": "f32",
        "--n-gpu-layers": "999", "--load-mode": "mmap+mlock",
    } == given  # fmt: skip
    assert "--no-repack" in words and "--repack" not in words


def test_a_missing_program_is_reported_with_the_way_to_get_it(
    story_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_programs, "build_folder", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "make peers" in managed_missing("llama-server")
    with pytest.raises(ConfigError, match="make peers"):
        open_managed("llama-server", str(story_model), SPEC)
    monkeypatch.setattr(managed_programs, "find_spec", lambda _name: None)
    assert "pip install 'llama-cpp-python[server]==" in managed_missing("llama_cpp.server")
    monkeypatch.setenv("LOGITBENCH_LLAMA_SERVER", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="there is no such program"):
        managed_missing("llama-server")
    (tmp_path / "nothing").touch(0o644)
    with pytest.raises(ConfigError, match="may not be executed"):
        managed_missing("llama-server")


def test_a_program_that_ends_at_once_is_reported_with_its_last_words(story_model: Path, program: Path) -> None:
    program.write_text("#!/bin/sh\necho 'error: invalid argument: --fit' >&2\nexit 3\n")
    with pytest.raises(ModelError, match=r"(?s)llama-server exited with status 3.*invalid argument: --fit"):
        open_managed("llama-server", str(story_model), SPEC)


def test_a_program_that_never_listens_can_be_aborted(story_model: Path, program: Path) -> None:
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    before = children()

    def begin(abort: Callable[[], None]) -> None:
        (child,) = children() - before
        until(lambda: child.name() == "sleep")
        abort()

    with pytest.raises(PoolClosed):
        open_managed("llama-server", str(story_model), SPEC, on_opening=begin)
    assert children() <= before


def test_a_server_that_crashes_while_it_loads_is_reported_with_its_last_words(
    story_model: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed, "_ENDS_WITHIN_S", 60)
    program.write_text(f"#!{sys.executable}\n{CRASHING}")
    with pytest.raises(ModelError, match=r"(?s)crashed \(SIGABRT\) while loading the model.*GGML_ASSERT"):
        open_managed("llama-server", str(story_model), SPEC)


def test_the_log_of_a_server_that_still_loads_is_kept_short(story_model: Path, program: Path) -> None:
    program.write_text("#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' 'x'\nexec sleep 600\n")
    lengths: list[int] = []

    def abort_when_short(pid: int, abort: Callable[[], None]) -> None:
        log = Path(f"/proc/{pid}/fd/1")
        try:
            until(lambda: psutil.Process(pid).name() == "sleep")
            until(lambda: 0 < log.stat().st_size < 1 << 20)  # it is empty for a moment while it is shortened
            lengths.append(log.stat().st_size)
        finally:
            abort()

    def begin(abort: Callable[[], None]) -> None:
        if (child := next(iter(children_with("server_program") or children_with("sleep")), None)) is not None:
            threading.Thread(target=abort_when_short, args=(child.pid, abort), daemon=True).start()

    with pytest.raises(PoolClosed):
        open_managed("llama-server", str(story_model), SPEC, on_opening=begin)
    assert len(lengths) == 1


def test_a_port_that_may_not_be_read_is_an_error(
    story_model: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_process: psutil.Process, _kind: str) -> None:
        raise psutil.AccessDenied

    program.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(psutil.Process, "net_connections", denied)
    before = children()
    with pytest.raises(ModelError, match="the port of llama-server cannot be read"):
        open_managed("llama-server", str(story_model), SPEC)
    assert children() <= before


def test_an_engine_that_is_dropped_ends_its_server(kind: ManagedKind, story_model: Path) -> None:
    engine = open_managed(kind, str(story_model), SPEC)
    (pid,) = engine.pids
    del engine
    gc.collect()
    until(lambda: has_ended(pid))


def test_pinned_cores_reach_the_server(kind: ManagedKind, story_model: Path) -> None:
    with open_managed(kind, str(story_model), replace(SPEC, pin=True)) as engine:
        assert psutil.Process(engine.pids[0]).cpu_affinity() == cores_for(0, 1)


def test_the_memory_of_llama_cpp_server_has_the_logits_of_all_tokens(
    story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, spec = read_model(story_model), PoolSpec(parallel=1, n_ctx=300, threads=1)
    own, of_pool = managed_estimate("llama_cpp.server", file, spec), estimate(file, spec)
    assert own.total - of_pool.total == 512 * file.n_vocab * 4
    assert managed_estimate("llama-server", file, spec).total == of_pool.total
    monkeypatch.setattr(memory, "available_memory", lambda: own.total - 1)
    monkeypatch.setattr(managed_programs, "with_layout", lambda spec, *_others: spec)
    managed_spec("llama-server", file, spec, lambda _abort: None)
    with pytest.raises(MemoryRefused):
        managed_spec("llama_cpp.server", file, spec, lambda _abort: None)


def test_every_parameter_becomes_a_setting_of_llama_cpp_server() -> None:
    spec = PoolSpec(
        threads=3, threads_batch=4, parallel=1, n_ctx=300, n_batch=128, n_ubatch=64, flash_attn=False, type_k="q8_0",
        type_v="f32", n_gpu_layers=-1, load="mlock",
    )  # fmt: skip
    assert settings_of(spec, "a.gguf") == {
        "model": "a.gguf", "host": "127.0.0.1", "port": 0, "n_ctx": 512, "n_batch": 128, "n_ubatch": 64, "n_threads": 3,
        "n_threads_batch": 4, "flash_attn": False, "type_k": 8, "type_v": 0, "n_gpu_layers": -1, "use_mmap": True,
        "use_mlock": True, "interrupt_requests": False,
    }  # fmt: skip
    others = settings_of(PoolSpec(threads=1, threads_batch=1, load="none", flash_attn=None), "a.gguf")
    assert (others["use_mmap"], others["use_mlock"], others["flash_attn"]) == (False, False, True)
