"""Benchmarks of embeddings by external engines: what is measured, compared, refused, and sent to other machines."""

import base64
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.address import Address
from engine.backends.embedding_server import PATH
from engine.backends.known import KnownEngine, add_known
from engine.bench.measurement.embedding import open_embedding_target
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning import remote
from engine.bench.planning.axes import axis_of
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.embedding_cells import REQUESTS_AT_ONCE, embedding_cells
from engine.bench.planning.plan import Plan
from engine.bench.planning.preview import preview
from engine.bench.planning.remote import TEXTS, RemoteBudget, remote_requests
from engine.bench.planning.schedule import turns_of
from engine.bench.running.comparing import compared_vectors
from engine.bench.running.runner import first_record
from engine.bench.running.session import Session
from engine.embedding.models import EMBEDDED_NAME
from engine.embedding.sentences import shipped_sentences
from engine.errors import ConfigError
from tests.engine.backends.fake_server import Request, fake_server
from tests.engine.bench.desk import Keeper

PLAN = Plan(
    question="embedding",
    model=EMBEDDED_NAME,
    axes={"layout": ("1x1", "2x1"), "backend": ("torch", "external:desk")},
    workload={"num_texts": 8, "num_words": 4},
    rounds=6,
)
ONLY = replace(PLAN, axes={"backend": ("external:desk",)})


def answer(request: Request) -> None:
    """Vectors of four numbers; no count of tokens."""
    vectors = [
        np.frombuffer(text.encode().ljust(16, b"\x40")[:16], np.uint8).astype("<f4") for text in request.body["input"]
    ]
    data = [{"index": at, "embedding": base64.b64encode(row.tobytes()).decode()} for at, row in enumerate(vectors)]
    request.json({"data": data, "model": "tiny"})


@pytest.fixture
def desk(home: Path) -> Iterator[list[Request]]:
    with fake_server({PATH: answer}) as (address, seen):
        add_known(home, KnownEngine(name="desk", url=address))
        yield seen


@pytest.fixture
def elsewhere(desk: list[Request], monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """As `desk`, as if it were on another machine."""
    monkeypatch.setattr(Address, "is_loopback", property(lambda _address: False))
    return desk


def test_an_engine_is_one_configuration_whatever_the_layout(desk: list[Request]) -> None:
    *own, external = sorted(embedding_cells(PLAN), key=lambda cell: bool(cell.spec.engine))
    assert len(own) == 2
    assert (external.spec.workers, external.spec.threads, external.model) == (REQUESTS_AT_ONCE, None, EMBEDDED_NAME)
    assert external.label == "desk (external)" and not external.refusal and external.notes
    assert set(external.settings) == {"backend", "num_texts", "num_words"}
    assert axis_of("backend", "embedding").parse("external:desk") == "external:desk"
    assert preview(PLAN).remote == {} and "workers do not fit" not in preview(ONLY).sentence
    assert desk == []


def test_an_engine_that_is_not_known_is_refused() -> None:
    (cell,) = embedding_cells(ONLY)
    assert "There is no engine 'desk'" in cell.refusal
    with pytest.raises(ConfigError):
        axis_of("backend", "embedding").parse("external:")


def test_it_is_measured_from_outside(desk: list[Request]) -> None:
    (cell,) = embedding_cells(ONLY)
    with closing(open_embedding_target(cell, sample_s=0.05)) as target:
        target.warm_up(60)
        found = target.sample(1, 60)
    assert found.metrics["sentences_per_s"] > 0 and target.facts["one_text_s"] > 0
    assert set(found.metrics) == {"sentences_per_s", "workbench_share"}
    assert "cut_share" not in target.facts and "load_warm_s" not in target.facts
    assert target.remark.startswith("model: tiny; 4 requests of at most 64 texts at once; memory")


@pytest.mark.slow
def test_a_run_compares_its_vectors_with_those_of_the_model(desk: list[Request]) -> None:
    (cell,) = embedding_cells(ONLY)
    with closing(TargetPool(lambda cell, timeout: open_embedding_target(cell, timeout, sample_s=0.05))) as targets:
        (record,) = compared_vectors([(cell, first_record(cell))], targets.target, 60)
    assert -1 < record.facts["rank_correlation"] < 1
    assert np.isnan(record.facts["worst_cosine"])  # four numbers, and 384


def test_nothing_goes_to_another_machine_unconfirmed_and_what_goes_is_counted(elsewhere: list[Request]) -> None:
    cells = planned_cells(ONLY)
    (address,) = asked = remote_requests(ONLY, cells)
    assert asked[address] == len(shipped_sentences()) + 3 + 8 * len(turns_of(ONLY, cells))
    sentence = preview(ONLY).sentence
    assert f"This sends about {asked[address]:,} texts to 127.0.0.1." in sentence
    with pytest.raises(ConfigError, match="texts to 127.0.0.1. Nothing is sent there"):
        Session(ONLY, Keeper())
    with pytest.raises(ConfigError, match="Nothing is sent there"):
        open_embedding_target(embedding_cells(ONLY)[0])
    assert elsewhere == []
    budget = RemoteBudget([address], TEXTS._replace(most=20))
    with closing(open_embedding_target(embedding_cells(ONLY)[0], None, budget)) as target:
        target.warm_up(60)
        target.sample(1, 60)
        target.sample(2, 60)
        with pytest.raises(ConfigError, match="of these 1 are left"):
            target.sample(3, 60)


def test_a_plan_that_sends_too_much_is_refused(elsewhere: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"sends about [\d,]+ texts to 127.0.0.1; at most 5,000"):
        preview(replace(ONLY, workload={"num_texts": 1000}))
    assert "not sent" not in remote.describe_prompts(ONLY)
    assert remote.describe_prompts(ONLY).startswith("The texts are random sentences, and sentences that come with")
    assert elsewhere == []
