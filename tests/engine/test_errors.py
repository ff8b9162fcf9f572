"""Stored failures: the text is kept, never the frames that the error passed through."""

import ast
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import errors
from engine.embedding.job import EmbedJob
from engine.embedding.text_queue import TextQueue
from engine.errors import ConfigError, EngineError, PoolClosed
from engine.tasks import Task
from engine.workbench.machine_lease import MachineBusy
from tests.engine.pool.made import job_of

ROOT = Path(__file__).resolve().parents[2]
ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EngineError)]


@pytest.mark.parametrize("kind", ALL)
def test_a_bare_copy_is_the_same_failure_without_frames(kind: type[EngineError]) -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise kind("what to do") from first
    except EngineError as error:
        bare = error.bare()
        assert error.__traceback__ is not None
    assert (type(bare), str(bare), bare.args) == (kind, "what to do", ("what to do",))
    assert (bare.__traceback__, bare.__cause__, bare.__context__) == (None, None, None)


def test_a_bare_copy_keeps_what_else_a_failure_knows() -> None:
    bare = MachineBusy("the machine is busy", "a benchmark").bare()
    assert (type(bare), str(bare), bare.holder) == (MachineBusy, "the machine is busy", "a benchmark")


class Large:
    """Object that a frame holds."""


def _failing(held: Large) -> None:
    raise ConfigError(f"cannot be read: {type(held).__name__}")


def _task(held: Large) -> Callable[[], object]:
    task = Task("Reading", lambda _: _failing(held))
    task.run()
    return task.result


def _job(_held: Large) -> Callable[[], object]:
    job = job_of()
    job.fail(PoolClosed("closed"))
    return job.result


def _embed_job(_held: Large) -> Callable[[], object]:
    job = EmbedJob(1, 4, lambda _: None)
    job.fail(PoolClosed("closed"))
    return job.result


def _queue(_held: Large) -> Callable[[], object]:
    queue = TextQueue(100)
    queue.close(PoolClosed("closed"))
    return lambda: queue.put(EmbedJob(1, 4, lambda _: None), [], is_patient=False)


@pytest.mark.parametrize("keep", [_task, _job, _embed_job, _queue])
def test_a_failure_that_is_raised_often_holds_nobodys_variables(keep: Callable[[Large], Callable[[], object]]) -> None:
    held = Large()
    raising = keep(held)

    def ask(mine: Large) -> list[int]:
        try:
            raising()
        except EngineError as error:
            return [id(mine), _num_frames(error)]
        raise AssertionError("nothing was raised")

    asked, frames = [], []
    for _ in range(20):
        mine = Large()
        asked.append(weakref.ref(mine))
        frames.append(ask(mine)[1])
        del mine
    gc.collect()
    assert len(set(frames)) == 1
    assert not any(each() for each in asked)


def _num_frames(error: BaseException) -> int:
    trace, number = error.__traceback__, 0
    while trace is not None:
        trace, number = trace.tb_next, number + 1
    return number


def _kept(tree: ast.AST) -> Iterator[int]:
    """Yield lines where an error leaves its handler as it was caught, or where a stored error itself is raised."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            raised = node.exc.value if isinstance(node.exc, ast.Subscript) else node.exc
            if isinstance(raised, ast.Attribute):
                yield node.lineno
        if not isinstance(node, ast.ExceptHandler) or node.name is None:
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign) and any(
                isinstance(target, ast.Attribute | ast.Subscript) for target in inner.targets
            ):
                parts = inner.value.elts if isinstance(inner.value, ast.Tuple) else [inner.value]
                if any(isinstance(part, ast.Name) and part.id == node.name for part in parts):
                    yield inner.lineno


@pytest.mark.parametrize(
    "text",
    [
        "raise self._error",
        "raise self.errors[0]",
        "try: work()\nexcept EngineError as error: self.error = error",
        "try: work()\nexcept EngineError as error: state[KEY] = name, error",
    ],
)
def test_a_kept_error_is_found(text: str) -> None:
    assert list(_kept(ast.parse(text)))


def test_every_kept_error_is_bare() -> None:
    paths = sorted([*ROOT.glob("engine/**/*.py"), *ROOT.glob("pages/**/*.py"), ROOT / "app.py"])
    assert len(paths) > 100
    assert [f"{path}:{line}" for path in paths for line in _kept(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("the prompt is empty", "The prompt is empty"),
        ("grammar ends unexpectedly", "Grammar ends unexpectedly"),
        ("a step, and no other", "A step, and no other"),
        ("no, never", "No, never"),
        ("Already a sentence", "Already a sentence"),
        ("temperature = -1: must be at least 0", "temperature = -1: must be at least 0"),
        ("max_tokens: Expected int", "max_tokens: Expected int"),
        ("llama.cpp refused it", "llama.cpp refused it"),
        ("n must be 1", "n must be 1"),
        ("/models/story.gguf: is cut", "/models/story.gguf: is cut"),
        ("", ""),
    ],
)
def test_an_error_that_stands_alone_begins_with_a_capital_unless_that_is_a_name(text: str, alone: str) -> None:
    assert errors.sentence(text) == alone
    assert errors.sentence(EngineError(text)) == alone
