"""Fields of a request that the API does not know: ignored, and named in the trial."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.requests import LONGEST_UNKNOWN, MOST_UNKNOWN, CompletionRequest, decoded, unknown_fields
from tests.engine.api.openai.conftest import Api
from tests.waiting import until

CHAT = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(("path", "asked"), [("completions", {"prompt": "a"}), ("chat/completions", CHAT)])
def test_unknown_fields_are_named_in_the_trial(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, object]
) -> None:
    monkeypatch.setattr(api.bench.model.loaded()[0], "chat_template", "{{ messages[0].content }}")
    answer = api.ask(f"/v1/{path}", {**asked, "max_tokens": 1, "best_of": 3, "suffix": None, "user": "me"})
    assert answer.status == 200, answer.body
    history, id = api.bench.history, answer.headers["x-logitbench-trial"]
    assert api.bench.trials.trial(id).draft.unknown_fields == ("best_of", "suffix")
    assert history is not None
    until(lambda: history.trial(id) is not None, "the trial was not stored")
    stored = history.trial(id)
    assert stored is not None and stored.unknown_fields == ("best_of", "suffix")


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.lists(st.text(), max_size=2), max_size=40))
def test_names_of_any_kind_are_bounded(fields: dict[str, object]) -> None:
    body = msgspec.json.encode({"prompt": "a", **{f"x{name}": value for name, value in fields.items()}})
    assert decoded(body, CompletionRequest).prompt == "a"
    names = unknown_fields(body, CompletionRequest)
    assert len(names) == min(len(fields), MOST_UNKNOWN)
    assert all(len(name) <= LONGEST_UNKNOWN and name.isprintable() for name in names)
