"""Conversations in the history: which trial gave an answer, and from which trials one derives."""

from typing import Any

import pytest

from engine.history import History, TrialRecord
from engine.history.conversations import Given, given
from tests.engine.history.trial_maker import NASTY, make_trial, uuid7

ASKED = ({"role": "user", "content": NASTY},)
THEN = (*ASKED, {"role": "assistant", "content": "what it said"}, {"role": "user", "content": "And then?"})


def stored(history: History, **changes: Any) -> TrialRecord:
    trial = make_trial(2, 2, **{"messages": ASKED, **changes})
    history.record(trial, is_urgent=True).result()
    return trial


def test_an_answer_is_found_by_its_messages_and_its_text(history: History) -> None:
    first, second = stored(history), stored(history)
    later = stored(history, messages=THEN)
    stored(history, messages=())
    stored(history, messages=({"role": "user", "content": "Another"},))
    wanted = [given(ASKED, "what it said"), given(ASKED, "another text"), given(THEN, "what it said")]
    found = history.conversations.gave(wanted)
    assert {one.id for one in found} == {first.id, second.id, later.id}
    assert [one.id for one in found if one.messages == wanted[0].messages] == [second.id, first.id]
    assert all(one._replace(id="") in wanted for one in found)
    history.delete(second.id)
    assert [one.id for one in history.conversations.gave(wanted[:1])] == [first.id]
    assert history.conversations.gave([]) == []


def test_messages_are_compared_in_order_and_whole(history: History) -> None:
    trial = stored(history, messages=THEN)
    assert [one.id for one in history.conversations.gave([given(THEN, "what it said")])] == [trial.id]
    for other in (THEN[:-1], THEN[::-1], (*THEN, THEN[0]), ({"role": "system", "content": NASTY},)):
        assert history.conversations.gave([given(other, "what it said")]) == []


def test_ancestors_reach_the_first_trial_and_survive_a_circle(history: History) -> None:
    first = stored(history)
    second = stored(history, parent=first.id)
    third = stored(history, parent=second.id)
    stored(history, parent=first.id)
    assert history.conversations.ancestors(third.id) == {first.id, second.id, third.id}
    one, other = uuid7(), uuid7()
    stored(history, id=one, parent=other)
    stored(history, id=other, parent=one)
    assert history.conversations.ancestors(one) == {one, other}
    assert history.conversations.ancestors("nonsense") == set()


@pytest.mark.parametrize("text", ["', ''); DROP TABLE trials; --", "\0", "{}"])
def test_hostile_texts_are_looked_up_as_text(history: History, text: str) -> None:
    trial = stored(history)
    assert history.conversations.gave([Given(text, text)]) == []
    assert [one.id for one in history.recent()] == [trial.id]
