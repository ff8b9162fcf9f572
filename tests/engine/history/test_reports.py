"""Reports: their parts are kept in order, what cannot be a part is refused, a deleted report comes back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, HistoryError
from engine.history import History, reports
from engine.history.reports import Block
from tests.engine.history.trial_maker import NASTY, uuid7

BLOCKS = (
    Block(kind="text", text=NASTY),
    Block(kind="run", of=uuid7()),
    Block(kind="trend", of=f"{uuid7()}.3", metric="tokens_per_s"),
    Block(kind="trial", of=uuid7()),
)


def test_a_report_is_kept_and_changed(path: Path) -> None:
    with History.open(path) as history:
        made = history.reports.create("  Two layouts ", BLOCKS)
        assert made.name == "Two layouts"
    with History.open(path) as history:
        assert history.reports.report(made.id) == made
        history.reports.rename(made.id, "Three")
        history.reports.add(made.id, BLOCKS[:1])
        found = history.reports.report(made.id)
        assert found is not None and (found.name, found.blocks) == ("Three", (*BLOCKS, BLOCKS[0]))
        assert found.changed_at > made.changed_at and found.created_at == made.created_at
        other = history.reports.create("Other")
        assert [one.id for one in history.reports.all()] == [other.id, made.id]
        history.reports.rename(made.id, "Four")
        assert [one.id for one in history.reports.all()] == [made.id, other.id]


def test_parts_are_replaced_moved_and_removed(history: History) -> None:
    text, run, trend, trial = BLOCKS
    made = history.reports.create("mine", BLOCKS)

    def blocks() -> tuple[Block, ...]:
        found = history.reports.report(made.id)
        assert found is not None
        return found.blocks

    history.reports.move(made.id, 0, text, 2)
    assert blocks() == (run, trend, text, trial)
    history.reports.move(made.id, 3, trial, 0)
    assert blocks() == (trial, run, trend, text)
    history.reports.remove(made.id, 1, run)
    other = Block(kind="text", text="other")
    history.reports.put(made.id, 2, text, other)
    assert blocks() == (trial, trend, other)
    history.reports.move(made.id, 0, trial, 99)
    assert blocks() == (trend, other, trial)


def test_a_part_that_changed_elsewhere_is_not_overwritten(history: History) -> None:
    text, *_ = BLOCKS
    made = history.reports.create("mine", BLOCKS)
    history.reports.put(made.id, 0, text, Block(kind="text", text="theirs"))
    acts: list[Callable[[], None]] = [
        lambda: history.reports.put(made.id, 0, text, Block(kind="text", text="mine")),
        lambda: history.reports.remove(made.id, 0, text),
        lambda: history.reports.move(made.id, 0, text, 1),
        lambda: history.reports.remove(made.id, 4, text),
    ]
    for act in acts:
        with pytest.raises(ConfigError, match="changed elsewhere"):
            act()
    found = history.reports.report(made.id)
    assert found is not None and found.blocks == (Block(kind="text", text="theirs"), *BLOCKS[1:])


def test_a_deleted_report_comes_back_until_it_is_purged(history: History) -> None:
    made = history.reports.create("mine", BLOCKS)
    assert history.reports.delete(made.id)
    assert history.reports.report(made.id) is None and history.reports.all() == []
    assert history.reports.restore(made.id)
    assert history.reports.report(made.id) == made
    history.reports.delete(made.id)
    assert history.gc() == 1
    assert not history.reports.restore(made.id)


def test_a_report_that_is_gone_is_refused(history: History) -> None:
    made = history.reports.create("mine")
    history.reports.delete(made.id)
    for id in (made.id, uuid7(), "nonsense"):
        assert history.reports.report(id) is None
        with pytest.raises(HistoryError, match="deleted or never saved"):
            history.reports.rename(id, "new")
        with pytest.raises(HistoryError, match="deleted or never saved"):
            history.reports.add(id, BLOCKS)
    assert not history.reports.delete("nonsense")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": "poem"}, "kind"),
        ({"kind": "text", "text": "x" * 20_001}, "text"),
        ({"kind": "text", "text": "\udcff"}, "text"),
        ({"kind": "run", "of": "nonsense"}, "of"),
        ({"kind": "run", "of": f"{uuid7()}.1"}, "of"),
        ({"kind": "trial"}, "of"),
        ({"kind": "trial", "of": 7}, "of"),
        ({"kind": "trend", "of": uuid7(), "metric": "tokens_per_s"}, "of"),
        ({"kind": "trend", "of": f"{uuid7()}.{'9' * 10}", "metric": "tokens_per_s"}, "of"),
        ({"kind": "trend", "of": f"{uuid7()}.1", "metric": "beauty"}, "metric"),
    ],
)
def test_what_is_no_part_names_its_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}"):
        Block.from_dict(values)


def test_an_unknown_name_in_a_part_is_refused() -> None:
    with pytest.raises(ConfigError, match="colour"):
        Block.from_dict({"kind": "text", "colour": "red"})


def test_reports_and_their_parts_are_limited(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    made = history.reports.create("mine", BLOCKS[:1] * 50)
    with pytest.raises(ConfigError, match="up to 50"):
        history.reports.add(made.id, BLOCKS[:1])
    with pytest.raises(ConfigError, match="1 to 120"):
        history.reports.create(" ")
    monkeypatch.setattr(reports, "MOST_REPORTS", 1)
    with pytest.raises(ConfigError, match="delete one first"):
        history.reports.create("another")
    found = history.reports.report(made.id)
    assert found is not None and len(found.blocks) == 50
