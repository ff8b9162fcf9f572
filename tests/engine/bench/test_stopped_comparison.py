"""Stop while the answers of a run are compared: it ends at once, and keeps what was measured."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.backends.known import KnownEngine, add_known
from engine.bench.planning.plan import Plan
from engine.bench.running.session import Session
from engine.runs import RunRecord, RunStatus
from tests.engine.backends.fake_server import COMPLETIONS, Request, chunk, fake_server
from tests.engine.bench.fakes import Kept

WITHIN_S = 60.0
NUM_GENERATED = 6


class Keeper(Kept):
    """Keeper that notes how the run ended."""

    status: RunStatus | None = None

    def begin(self, run: RunRecord) -> None: ...

    def finish(self, status: RunStatus, outcome: Mapping[str, Any]) -> None:
        self.status = status


def test_a_comparison_of_answers_is_stopped(home: Path, story_model: Path) -> None:
    is_compared, may_answer = threading.Event(), threading.Event()

    def held(request: Request) -> None:
        """Answer what is measured, and hold an answer that is compared."""
        if request.body["max_tokens"] > NUM_GENERATED:
            is_compared.set()
            may_answer.wait(WITHIN_S)
        request.events(chunk(" a", finish="length"))

    workload = {"num_prompt": 16, "num_generated": NUM_GENERATED, "duration_s": 0.2}
    axes = {"arm": ("pool", "external:desk"), "users": (1,)}
    pool = {"threads": 1, "parallel": 1}
    with fake_server({COMPLETIONS: held}) as (address, _seen):
        add_known(home, KnownEngine(name="desk", url=address))
        plan = Plan(
            question="engines",
            model=str(story_model),
            axes=axes,
            pool=pool,
            workload=workload,
            rounds=2,
            compares_answers=True,
        )
        keeper = Keeper()
        session = Session(plan, keeper)
        thread = threading.Thread(target=session.run)
        thread.start()
        try:
            assert is_compared.wait(WITHIN_S)
            session.stop()
            thread.join(WITHIN_S / 2)
            is_ended = not thread.is_alive()
        finally:
            may_answer.set()
            thread.join()
    assert is_ended and keeper.status == session.record.status == "stopped"
    assert len(session.record.samples) == len(keeper.samples) > 0
    of_pool, of_desk = session.record.cells
    assert of_pool.facts["num_different"] == 0
    assert "num_different" not in of_desk.facts and "compared" not in of_desk.reason
