"""A model that several nodes get at once: its progress is reported by one thread at a time."""

from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Lock
from types import SimpleNamespace
from typing import Any

import pytest

from engine.cluster import model_on_nodes
from engine.cluster.model_files import ModelOffer, Tell
from engine.cluster.model_on_nodes import ModelOnNodes
from engine.models import read_model


def test_progress_is_reported_by_one_thread_at_a_time(story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    telling, both, shares = Lock(), Barrier(2), list[float]()

    def send(_offer: ModelOffer, _node: object, tell: Tell) -> str:
        tell(0.5, "")
        return ""

    def tell(share: float, _doing: str) -> None:
        assert telling.acquire(blocking=False), "two threads tell at once"
        if share:
            with suppress(BrokenBarrierError):  # the other thread has the time to come too
                both.wait(0.2)
        shares.append(share)
        telling.release()

    monkeypatch.setattr(model_on_nodes, "send_model", send)
    nodes: list[Any] = [SimpleNamespace(id=name, name=name, is_lost=False) for name in "ab"]
    ModelOnNodes(read_model(story_model)).send(nodes, tell)
    assert shares == sorted(shares) and shares[-1] == 1.0
