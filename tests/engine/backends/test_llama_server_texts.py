"""Texts and ids of llama-server in cases that its shipped model does not bring: a fake of its tokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine.backends import server_text
from engine.backends.openai_server import ServerEngine
from engine.calls import connect
from engine.errors import ConfigError
from tests.engine.backends.fake_server import Handler, Request, fake_server

END = 5
END_NAME = "<|end|>"
PROMPT = f"<b>hi{END_NAME}"


def tokenize(request: Request) -> None:
    """Answer as /tokenize: each character is a token; the control token is found where such are parsed."""
    text, tokens = request.body["content"], list[dict[str, Any]]()
    while text:
        is_control = request.body.get("parse_special") and text.startswith(END_NAME)
        piece = END_NAME if is_control else text[0]
        tokens.append({"id": END if is_control else ord(piece), "piece": piece})
        text = text[len(piece) :]
    request.json({"tokens": tokens})


def detokenize(request: Request) -> None:
    """Answer as /detokenize, which names control tokens."""
    request.json({"content": "".join(END_NAME if one == END else chr(one) for one in request.body["tokens"])})


def event(content: str, id: int, raw: bytes, num_predicted: int, stop_type: str = "") -> dict[str, Any]:
    """An event of /completion with one token."""
    token = {"id": id, "token": "", "bytes": list(raw), "logprob": -0.1, "top_logprobs": []}
    return {
        "content": content,
        "completion_probabilities": [token],
        "tokens_predicted": num_predicted,
        "stop": bool(stop_type),
        "stop_type": stop_type or "none",
    }


@contextmanager
def llama_server_with(*events: dict[str, Any]) -> Iterator[tuple[ServerEngine, dict[str, list[str]]]]:
    """An engine on a server that answers every prompt with these events, and the models asked for by path."""
    models: dict[str, list[str]] = {}

    def noted(answer: Handler) -> Handler:
        def answering(request: Request) -> None:
            models.setdefault(request.path, []).append(request.body["model"])
            answer(request)

        return answering

    answers = {
        "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}, {"id": "other", "owned_by": "llamacpp"}]},
        "/props": {"default_generation_settings": {"n_ctx": 64}, "total_slots": 1, "chat_template": "x"},
        "/tokenize": noted(tokenize),
        "/detokenize": noted(detokenize),
        "/apply-template": noted(lambda request: request.json({"prompt": PROMPT})),
        "/completion": noted(lambda request: request.events(*events)),
    }
    with fake_server(answers) as (address, _), connect(address, "other") as engine:
        yield engine, models


@pytest.mark.parametrize("is_rendered", [True, False])
def test_a_control_token_of_the_prompt_is_no_text_of_the_answer(is_rendered: bool) -> None:
    with llama_server_with(event("a", ord("a"), b"a", 1), event("", END, b"", 2, "eos")) as (engine, _):
        ids = [*map(ord, "<b>hi"), END]
        if is_rendered:
            assert engine.render_chat([{"role": "user", "content": "hi"}]) == (PROMPT, ids)
            for wrong in ([], "hi", [{"role": "user"}]):
                with pytest.raises(ConfigError, match="^messages"):
                    engine.render_chat(wrong)  # type: ignore[arg-type]
        done = engine.submit(ids).result(60)
    vocabulary = done.steps.vocabulary
    assert (done.text, list(done.steps.ids)) == ("a", [ord("a"), END])
    assert vocabulary.is_end(END) and vocabulary.text(END) == END_NAME
    assert vocabulary.pieces[ord("<")] == b"<"  # of a text


def test_an_answer_goes_on_where_a_character_is_spelled_in_another_way_than_the_tokenizer_would() -> None:
    events = (event("É", 0x2000, b"\x89", 2), event("a", ord("a"), b"a", 3, "limit"))
    with llama_server_with(*events) as (engine, _):
        done = engine.submit("Once", max_tokens=3).result(60)
    assert list(done.steps.ids) == [0x2000, ord("a")] and done.text.endswith("a")
    assert (done.timings.num_generated, done.is_context_full) == (3, False)


def test_every_request_names_its_model() -> None:
    with llama_server_with(event("a", ord("a"), b"a", 1, "limit")) as (engine, models):
        engine.render_chat([{"role": "user", "content": "hi"}])
        engine.submit([END, 7], max_tokens=1).result(60)
    assert set(models) == {"/tokenize", "/detokenize", "/apply-template", "/completion"}
    assert all(set(asked) == {"other"} for asked in models.values())


def test_a_text_is_tokenised_once_for_all_its_answers_and_again_once_others_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_text, "MOST_KEPT", 2)
    with llama_server_with(event("a", ord("a"), b"a", 1, "limit")) as (engine, models):
        num_before = len(models.get("/tokenize", ()))  # of the probe
        for text, num_asked in (("one", 1), ("one", 1), ("two", 2), ("one", 2), ("three", 3), ("two", 4), ("two", 4)):
            done = engine.submit(text, max_tokens=1).result(60)
            assert list(done.prompt_ids) == [*map(ord, text)]
            assert len(models["/tokenize"]) - num_before == num_asked


def test_a_candidate_without_id_text_and_bytes_is_not_the_first_token_of_the_vocabulary() -> None:
    nameless = event("a", ord("a"), b"a", 1, "limit")
    best = {"id": ord("a"), "token": "a", "bytes": list(b"a"), "logprob": -0.1}
    nameless["completion_probabilities"][0]["top_logprobs"] = [best, {"logprob": -2.0}]
    with llama_server_with(nameless) as (engine, _):
        done = engine.submit("Once", max_tokens=1, top_k=2).result(60)
    first, second = done.steps.top_ids[0].tolist()
    assert first == ord("a") and second > 0
