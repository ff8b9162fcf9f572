"""Times of a server: those of its start, as of a pool, and of a request."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine.backends.managed import ManagedEngine
from engine.backends.managed_programs import ManagedKind, managed_missing
from engine.bench.measurement.clients import Deadline, answers
from engine.bench.measurement.server_target import ServerTarget, open_server_target
from engine.bench.planning import engines
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Plan
from engine.jobs import Job
from engine.specs import Sampling

WITHIN_S = 60.0


@pytest.fixture(params=[engines.LLAMA_SERVER, pytest.param(engines.LLAMA_CPP_SERVER, marks=pytest.mark.slow)])
def target(request: pytest.FixtureRequest, story_model: Path) -> Iterator[ServerTarget]:
    """Target of a server of each kind that was started on the model that ships."""
    kind: ManagedKind = request.param
    if missing := managed_missing(kind):
        pytest.skip(missing)
    pool, workload = {"threads": 1, "parallel": 1}, {"num_prompt": 16, "num_generated": 6}
    (cell,) = cells_of(Plan(model=str(story_model), axes={"arm": (kind,)}, pool=pool, workload=workload))
    with closing(open_server_target(cell)) as opened:
        yield opened


def test_the_load_of_a_server_is_that_of_its_model(target: ServerTarget) -> None:
    assert isinstance(target.engine, ManagedEngine)
    startup = target.engine.startup
    assert target.facts == {"load_warm_s": startup.load_s, "interpreter_s": startup.interpreter_s}
    assert startup.load_s > 0 and startup.interpreter_s > 0


def test_the_first_token_of_a_text_includes_the_request_that_tokenizes_it(target: ServerTarget) -> None:
    def submit(prompt: str | list[int]) -> Job:
        return target.submit(prompt, Sampling(temperature=0), max_tokens=4, reuse_prefix=False)

    ((request,),) = answers(submit, ["Once upon a time"], Deadline(WITHIN_S))
    assert len(request.tokens) > 1
    assert request.first == pytest.approx(request.tokens[0], rel=0, abs=1e-6)
