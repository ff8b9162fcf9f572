"""An external engine "desk" for the tests of benchmarks, and the configurations of engines."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.backends.known import KnownEngine, add_known
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Cell, Plan
from engine.runs import RunRecord, RunStatus
from tests.engine.backends.fake_server import COMPLETIONS, Request, chunk, fake_server
from tests.engine.bench.fakes import Kept

DESK = "external:desk"
SMALL: dict[str, Any] = {"num_prompt": 16, "num_generated": 6, "duration_s": 0.2}
WITHIN_S = 60.0


def cells(story_model: Path, *names: str, **changes: Any) -> list[Cell]:
    """Return the configurations of engines with one user, unless the plan says something else."""
    axes = {"arm": names, "users": (1,), **changes.pop("axes", {})}
    plan = {"question": "engines", "model": str(story_model), "pool": {"threads": 1, "parallel": 2}, **changes}
    return cells_of(Plan(**{"workload": SMALL, **plan}, axes=axes))


@contextmanager
def desk(home: Path, answer: Callable[[Request], None]) -> Iterator[list[Request]]:
    """A known engine "desk" that answers like this; gives the requests that it gets after it was asked what it is."""
    is_probed: list[bool] = []

    def answered(request: Request) -> None:
        if request.body["max_tokens"] > 1 or is_probed:
            is_probed.append(True)
            answer(request)
        else:
            request.events(chunk(" a", finish="length"))

    with fake_server({COMPLETIONS: answered}) as (address, seen):
        add_known(home, KnownEngine(name="desk", url=address))
        yield seen


def six(request: Request) -> None:
    """Answer with six tokens."""
    request.events(*[chunk(" a") for _ in range(5)], chunk(" a", finish="length"))


class Keeper(Kept):
    """Keeper that stores nothing."""

    def begin(self, run: RunRecord) -> None: ...

    def finish(self, status: RunStatus, outcome: Mapping[str, Any]) -> None: ...
