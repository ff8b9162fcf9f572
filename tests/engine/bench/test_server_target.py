"""Targets of servers: what is measured of them, how they fail, how their answers are compared."""

import gc
import math
import re
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from engine.backends.known import KnownEngine, add_known
from engine.backends.managed_programs import ManagedKind, managed_missing
from engine.bench.baselines.arms import open_target
from engine.bench.measurement import server_target
from engine.bench.measurement.clients import Deadline
from engine.bench.measurement.load_generator import LoadGenerator
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.metrics import metrics_of
from engine.bench.measurement.prompt_tokens import PromptTokens
from engine.bench.measurement.server_target import ServerTarget, open_server_target
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning import engines
from engine.bench.planning.plan import Objective, Plan
from engine.bench.running.comparing import compared_answers
from engine.bench.running.runner import first_record
from engine.bench.running.session import Session
from engine.errors import BenchTimeout, ConfigError, ServerFailed
from engine.jobs import Job
from engine.models.tokenizer import Tokenizer
from engine.runs import RunRecord
from tests.engine.backends.fake_server import COMPLETIONS, Request, chunk, fake_server
from tests.engine.bench.desk import DESK, SMALL, WITHIN_S, Keeper, desk, six
from tests.processes import children, children_with
from tests.servers import llama_server

pytestmark = pytest.mark.usefixtures("installed")


def test_a_server_is_measured_by_when_its_tokens_come(home: Path, made: Any) -> None:
    with desk(home, six) as seen, closing(open_server_target(made(DESK)[0])) as target:
        target.warm_up(WITHIN_S)
        metrics = target.sample(1, WITHIN_S).metrics
        assert target.facts["repetitions"] >= 1
    assert metrics["end_to_end_per_s"] > 0 and metrics["ttft_s"] > 0
    assert metrics["tpot_s"] >= 0, "events of this server may be read at the same moment"
    assert not {"pss_bytes", "private_bytes", "cpu_cores"} & metrics.keys()
    assert math.isnan(metrics["prefill_per_s"]), "the server does not report the tokens of a prompt"
    assert target.remark == (
        "prompts: texts of as many words, as it takes no token ids; it may reuse the beginnings of earlier prompts; an "
        "answer may end early, as its end cannot be barred; model: m; memory and processor use: not measured, as it "
        "was not started here"
    )
    prompts = [one.body["prompt"] for one in seen if one.path == COMPLETIONS and one.body["max_tokens"] == 6]
    assert len(prompts) > 1 and {len(prompt.split()) for prompt in prompts} == {16}


def test_gaps_are_unknown_where_a_server_sends_several_tokens_at_once(home: Path, made: Any) -> None:
    def counted(request: Request) -> None:
        usage = {"choices": [], "usage": {"prompt_tokens": 16, "completion_tokens": 6, "total_tokens": 22}}
        request.events(chunk(" a b c"), chunk(" d e f", finish="length"), usage)

    with desk(home, counted), closing(open_server_target(made(DESK)[0])) as target:
        load = LoadGenerator(target.engine, made(DESK)[0].workload, PromptTokens.of_common_words())
        repetitions = load.run(0, 1, 0.0, Deadline(WITHIN_S))
        metrics = metrics_of(repetitions, Objective())
    requests = [request for stream in repetitions[0] for request in stream]
    for request in requests:
        assert (len(request.tokens), request.num_computed) == (6, 16)
        assert request.gaps is not None and len(request.gaps) == 5
    assert all(math.isnan(metrics[name]) for name in ("gap_p50_s", "gap_p95_s"))
    spans = [request.tokens[-1] - request.tokens[0] for request in requests]
    assert metrics["tpot_s"] == pytest.approx(np.median(spans) / 5)


def broken(request: Request) -> None:
    """Answer with an error."""
    request.json({"error": {"message": "out of slots"}}, 500)


def test_a_server_that_fails_fails_its_configuration_only(home: Path, story_model: Path) -> None:
    plan = Plan(model=str(story_model), axes={"arm": ("pool", DESK), "users": (1,)}, workload=SMALL, rounds=1)
    with desk(home, broken):
        run = Session(plan, Keeper()).run()
    assert [cell.status for cell in run.cells] == ["done", "failed"]
    assert "out of slots" in run.cells[1].reason and set(run.samples["cell"].tolist()) == {0}


def test_a_run_is_stopped_while_a_server_keeps_its_answer_back(home: Path, story_model: Path) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def held(request: Request) -> None:
        is_asked.set()
        may_answer.wait(WITHIN_S)
        six(request)

    plan = Plan(model=str(story_model), axes={"arm": (DESK,), "users": (1,)}, workload=SMALL, rounds=1)
    ended: list[RunRecord] = []
    with desk(home, held):
        session = Session(plan, Keeper())
        thread = threading.Thread(target=lambda: ended.append(session.run()), daemon=True)
        thread.start()
        try:
            assert is_asked.wait(WITHIN_S)
            session.stop()
            thread.join(WITHIN_S / 2)
            assert not thread.is_alive(), "the answer is still kept back"
        finally:
            may_answer.set()
    assert [(run.status, len(run.samples)) for run in ended] == [("stopped", 0)]


def test_a_server_that_does_not_answer_is_no_target(home: Path, made: Any) -> None:
    with desk(home, six):
        (cell,) = made(DESK)
    with pytest.raises(ServerFailed, match="cannot be reached"):
        open_server_target(cell)


@pytest.mark.parametrize("names", [("pool", DESK), (DESK, "pool")])
def test_answers_of_a_server_are_compared_by_their_texts(home: Path, made: Any, names: tuple[str, str]) -> None:
    with desk(home, six), closing(TargetPool(open_target)) as targets:
        cells = made(*names)
        records = list(compared_answers([(cell, first_record(cell)) for cell in cells], targets.target, WITHIN_S))
    of_pool, of_desk = (next(one.facts for one in records if one.settings["arm"] == name) for name in ("pool", DESK))
    assert of_pool["num_different"] == 0
    assert of_desk["num_different"] == 8 and "kl_mean" not in of_desk


def test_a_comparison_that_fails_is_added_to_the_remark(home: Path, made: Any) -> None:
    with desk(home, broken), closing(TargetPool(open_target)) as targets:
        cells = made("pool", DESK)
        records = [replace(first_record(cell), reason="prompts: random words") for cell in cells]
        found = list(compared_answers(list(zip(cells, records, strict=True)), targets.target, WITHIN_S))
    assert found[0].reason == "prompts: random words"
    assert re.fullmatch(r"prompts: random words; its answers could not be compared: .*out of slots.*", found[1].reason)


def test_the_remark_says_what_a_server_cannot_be_asked(home: Path, made: Any) -> None:
    def chatted(request: Request) -> None:
        said = {"index": 0, "delta": {"content": " a"}, "finish_reason": "length"}
        request.events({"choices": [said]})

    with fake_server({"/v1/chat/completions": chatted}) as (address, _seen):
        add_known(home, KnownEngine(name="desk", url=address))
        (cell,) = made(DESK)
        with closing(open_server_target(cell)) as target:
            assert "each is a chat message, to which a template adds tokens; it may reuse" in target.remark
        texts = replace(cell, workload=replace(cell.workload, asked="prompts", prompts=("Once",)))
        with closing(open_server_target(texts)) as target:
            assert target.remark.startswith("prompts: the texts of the plan; each is a chat message")
            assert "it may reuse the beginnings of earlier prompts" in target.remark


def test_a_llama_server_that_runs_already_gets_words(home: Path, made: Any, story_model: Path) -> None:
    with llama_server(story_model, "-c", "512", "-np", "2", "-t", "1") as address:
        add_known(home, KnownEngine(name="desk", url=address))
        with closing(open_server_target(made(DESK)[0])) as target:
            assert target.sample(1, WITHIN_S).metrics["tokens_per_s"] > 0
    assert target.remark.startswith("prompts: texts of as many words, as its vocabulary is not known; model: ")


@pytest.mark.parametrize("name", [engines.LLAMA_SERVER, pytest.param(engines.LLAMA_CPP_SERVER, marks=pytest.mark.slow)])
def test_a_server_that_is_started_here_is_measured_with_its_memory_and_ended(
    name: ManagedKind, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := managed_missing(name):
        pytest.skip(missing)
    cell = made(name)[0]
    target = open_target(cell)
    assert isinstance(target, ServerTarget)
    (pid,) = target.engine.pids  # type: ignore[attr-defined]  # a ManagedEngine has them
    with closing(target):
        asked = _asked(target, monkeypatch)
        target.warm_up(WITHIN_S)
        asked.clear()
        metrics = target.beside(cell).sample(3, WITHIN_S).metrics
    assert metrics["tokens_per_s"] > 0 and metrics["prefill_per_s"] > 0
    assert metrics["pss_bytes"] > 10e6 and metrics["cpu_cores"] > 0
    assert not psutil.pid_exists(pid)
    _woken, first, *others = asked
    assert all(1 <= job.result().timings.num_generated <= SMALL["num_generated"] for job in (first, *others))
    if name == engines.LLAMA_SERVER:
        assert {job.result().timings.num_generated for job in (first, *others)} == {SMALL["num_generated"]}
        with closing(open_target(made("pool")[0])) as pool:
            of_pool = _asked(pool, monkeypatch)
            pool.sample(3, WITHIN_S)
        assert first.prompt == of_pool[1].prompt, "both get the same token ids"
    else:
        with closing(Tokenizer(Path(cell.model))) as tokenizer:
            assert isinstance(first.prompt, str)
            assert len(tokenizer.tokenize(first.prompt)) == cell.workload.num_prompt


def test_a_server_that_never_listens_is_given_up(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("LOGITBENCH_LLAMA_SERVER", str(program))
    monkeypatch.setattr(server_target, "LoadTimeout", lambda: LoadTimeout(0.2))
    (cell,) = made(engines.LLAMA_SERVER)
    before = children()
    with pytest.raises(BenchTimeout, match="did not load within"):
        open_server_target(cell)
    assert children() <= before


def test_a_server_whose_prompts_cannot_be_made_is_ended(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_vocabulary: object) -> None:
        raise ConfigError("no words")

    monkeypatch.setattr(PromptTokens, "of_words", failing)
    (cell,) = made(engines.LLAMA_CPP_SERVER)
    before = set(children_with("python_server"))  # of other tests
    gc.disable()  # which would end it as well, some time
    try:
        with pytest.raises(ConfigError, match="no words"):
            open_server_target(cell)
        assert set(children_with("python_server")) <= before
    finally:
        gc.enable()


def _asked(target: Any, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Return the list to which the jobs are added that the engine of a target gets from now on."""
    found: list[Job] = []
    submit = target.engine.submit

    def noting(*given: Any, **options: Any) -> Job:
        found.append(submit(*given, **options))
        return found[-1]

    monkeypatch.setattr(target.engine, "submit", noting)
    return found


def test_a_server_on_the_same_file_is_compared_token_by_token(made: Any) -> None:
    if missing := managed_missing(engines.LLAMA_SERVER):
        pytest.skip(missing)
    with closing(TargetPool(open_target)) as targets:
        cells = made("pool", engines.LLAMA_SERVER, pool={"threads": 1, "n_ctx": 512})
        records = list(compared_answers([(cell, first_record(cell)) for cell in cells], targets.target, WITHIN_S))
    assert 0 <= records[1].facts["kl_mean"] <= records[1].facts["kl_max"] < 0.1
    assert records[1].facts["num_different"] <= 2
