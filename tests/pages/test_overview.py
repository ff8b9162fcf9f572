"""The Overview without a browser: the card in its forms, what is empty, what runs, what fails, and where one lands."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from streamlit.testing.v1 import AppTest

from engine.api.openai.server import server_of
from engine.api.openai.traffic import Figures, Traffic
from engine.errors import EngineError
from engine.history import History
from engine.runs import RunRecord
from engine.settings import Settings
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.machine_card import FILE, MachineCard, own_machine, write_cards
from engine.workbench.machine_card_manager import NAME, MachineCardManager
from engine.workbench.machine_facts import facts_of
from engine.workbench.trials import Draft, LiveTrial
from pages.parts.overview import card_file
from pages.parts.overview.sparkline import sparkline
from pages.parts.plain import plain
from tests.engine.workbench.test_machine_facts import CARD
from tests.pages.app import HOSTILE, ROUTER, frame, open_page, press, primary, said
from tests.pages.bench_harness import ScriptedManager
from tests.scripted_task import ScriptedTask
from tests.waiting import until

PICTURE = re.compile(r'<img class="ov-spark" alt="([^"]*)" src="data:image/svg\+xml,([^"]*)">')
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def cards(
    bench: Workbench, history: History, manager: ScriptedManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MachineCardManager]:
    """No card, an empty history, no call of the API, and no trial in memory."""
    settings = Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path)})
    made = MachineCardManager(settings, bench.model_manager, bench.bench, bench.machine)
    monkeypatch.setattr(bench, "cards", made)
    monkeypatch.setattr(bench.trials, "_trials", {})
    monkeypatch.setattr(server_of(bench), "traffic", Traffic())
    yield made
    made.close()


@pytest.fixture
def card(bench: Workbench, tmp_path: Path) -> MachineCard:
    """A kept card of the loaded model."""
    made = changed(model_hash=bench.model.loaded()[1].hash, machine=own_machine())
    write_cards(tmp_path, [made])
    return made


def changed(**changes: Any) -> MachineCard:
    return MachineCard(**{**{name: getattr(CARD, name) for name in CARD.__struct_fields__}, **changes})


def page() -> AppTest:
    return open_page("overview.py", "Overview")


def bodies(at: AppTest) -> str:
    """The HTML of the page."""
    return "\n".join(element.proto.body for element in at.main.get("html"))


def answers(at: AppTest) -> list[str]:
    """The answers on the tiles, with their provenance."""
    return [element.value for element in at.main.markdown if element.value.startswith("**")]


def links(at: AppTest) -> dict[str, tuple[str, str]]:
    """The page and the query of each link by its label."""
    protos = [element.proto for element in at.main.get("page_link")]
    return {proto.label: (proto.page, proto.query_string) for proto in protos}


def run(bench: Workbench, prompt: str = "Once upon a time", **options: Any) -> LiveTrial:
    request = Request(**{"max_tokens": 12, "top_k": 5, **options})
    trial = bench.trials.submit(Draft(prompt, sampling=Sampling(seed=3), request=request))
    trial.job.result(60)
    until(lambda: trial.is_stored)
    return trial


# what is empty


def test_a_new_workbench_has_one_thing_to_do_in_each_part(bench: Workbench) -> None:
    at = page()
    assert primary(at) == ["Measure this machine · 60 s"]
    assert [value for value in answers(at) if value.endswith(":small[not measured]")] == [
        "**–** :small[not measured]"
    ] * 4
    linked = links(at)
    assert {"Run a prompt", "Ask how fast this machine is", "Point a program here"} <= set(linked)
    assert linked["Search for the best settings"] == ("benchmark", "question=settings")
    assert linked["Does another model fit?"] == ("models", "view=fit")
    assert "No trials yet." in said(at) and "No benchmarks yet." in said(at)
    assert not at.main.error


def test_without_a_model_nothing_can_be_measured(bench: Workbench) -> None:
    bench.model_manager.eject()
    assert page().button(key="overview_measure").disabled
    bench.load_default()
    until(lambda: bench.model.engine)
    assert not page().button(key="overview_measure").disabled


# what was run


def test_trials_are_listed_with_the_surprise_of_every_token(bench: Workbench) -> None:
    trial = run(bench)
    at = page()
    assert links(at)["Once upon a time"] == ("", f"trial={trial.id}")
    ((title, picture),) = PICTURE.findall(bodies(at))
    assert unquote(picture).count("M") == len(trial.steps) == 12
    assert title.startswith("Surprise of 12 tokens: at most")
    assert "12 tokens" in said(at)


def test_text_of_people_and_models_stays_text(bench: Workbench) -> None:
    run(bench, HOSTILE, max_tokens=2)
    at = page()
    assert plain(HOSTILE, 60) in links(at)
    assert "<script>" not in bodies(at)


def test_runs_are_listed_with_their_answers(runs: list[RunRecord]) -> None:
    at = page()
    linked = links(at)
    for run in runs:
        assert linked[run.name] == ("benchmark", f"run={run.id}")
    assert "No benchmarks yet." not in said(at)


def test_a_week_is_set_beside_the_one_before(bench: Workbench) -> None:
    run(bench)
    assert "| trials | 1 | 0 |\n| calls | 0 | 0 |\n| tokens generated | 12 | 0 |\n| runs | 0 | 0 |" in said(page())


def test_calls_of_other_programs_are_summed_up_by_client(bench: Workbench) -> None:
    traffic = server_of(bench).traffic
    for client in ("curl/8 **bold**", "curl/8 **bold**", "openai/2"):
        traffic.add(client, "/v1/completions", "story", b"{}").end(Figures(num_generated=7))
    text = said(page())
    assert "3 calls" in text
    assert plain("curl/8 **bold**: 2 calls, 14 tokens") in text
    assert plain("openai/2: 1 call, 7 tokens") in text


# the card


def test_a_kept_card_stands_there_with_its_conditions(card: MachineCard) -> None:
    at = page()
    card_answers = answers(at)
    assert card_answers[0] == f"**{plain('1,310 tok/s')}** :green[:small[measured]]"
    for value in ("Compute", "16 or more", "2 × 1 thread", "Story F16"):
        assert any(f"**{plain(value)}**" in answer for answer in card_answers), value
    assert plain(card.conditions) in said(at)
    for condition in ("28 November 2026, 09:05 UTC", "context 256", "llama.cpp 0.3.36 (abc)", "quiet machine"):
        assert condition in card.conditions
    assert primary(at) == []
    assert at.button(key="overview_measure").label == "Measure again · 60 s"
    assert links(at)["Samples"] == ("benchmark", "run=run")
    (text,) = at.main.code
    assert "Speed, one user: 1,310 tok/s (measured)" in text.value


def test_every_form_of_the_card_has_the_same_figures(card: MachineCard) -> None:
    facts = facts_of(card)
    image = ET.fromstring(card_file.svg(card, facts))
    drawn = [element.text or "" for element in image.iter(f"{SVG}text")]
    file = card_file.html(card, facts).decode()
    text = card_file.text(card, facts)
    for fact in facts:
        assert fact.value in drawn
        assert f"{fact.label}: {fact.value} ({fact.provenance})" in text
        assert f"{fact.value}<span" in file
    assert card.conditions in file and card.conditions in text
    assert " ".join(drawn).endswith(card.conditions) and {card.title, card.machine} <= {*drawn}
    assert "default-src 'none'" in file


def test_a_hostile_card_stays_text_in_every_form() -> None:
    evil = "<script>alert(1)</script>&\u202e\x00"
    card = changed(model=evil, machine=evil, quantisation=evil, llama=evil, limit_sentence=evil, users_sentence=evil)
    facts = facts_of(card)
    image = ET.fromstring(card_file.svg(card, facts))
    assert not [one for one in image.iter() if one.tag.endswith("script")]
    assert "<script>alert" not in card_file.html(card, facts).decode() + card_file.table(facts)
    assert "\x00" not in card_file.text(card, facts) and "\u202e" not in card_file.text(card, facts)


def test_a_long_note_stays_within_the_image() -> None:
    card = changed(limit_sentence="word " * 200, disturbed="x")
    image = ET.fromstring(card_file.svg(card, facts_of(card)))
    for element in image.iter(f"{SVG}text"):
        assert len(element.text or "") <= card_file.CONDITION_CHARACTERS
        assert 0 <= float(element.get("y", "nan")) <= card_file.HEIGHT


# the measurement


def test_a_measurement_shows_its_progress_and_stops(bench: Workbench, cards: MachineCardManager) -> None:
    task = ScriptedTask(NAME, 0.25, "sample 3 of 12", 40.0)
    cards._runner.start(task, lambda: bench.machine.acquire(NAME, "measurement"))
    at = page()
    (bar,) = at.main.get("progress")
    assert (bar.proto.value, bar.proto.text) == (25, plain("sample 3 of 12 · 40 s left"))
    assert "This machine" in [caption.value for caption in at.sidebar.caption]
    press(at, "overview_stop")
    assert task.is_stopped and task.wait(60)
    assert "was stopped" in said(page())


def test_a_machine_in_use_is_explained_where_the_button_is(bench: Workbench) -> None:
    with bench.machine.acquire("A download", "shared"):
        at = press(page(), "overview_measure")
        assert any("A download is still running" in error.value for error in at.main.error)


def test_a_measurement_that_failed_says_why(cards: MachineCardManager) -> None:
    task = ScriptedTask(NAME)
    cards._runner.start(task)
    task.fail(EngineError("the worker died"))
    assert [error.value for error in page().main.error] == ["The worker died"]


def test_kept_cards_that_cannot_be_read_are_explained(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    at = page()
    assert any("cannot be read" in error.value for error in at.main.error)
    assert primary(at) == ["Measure this machine · 60 s"]


# where one lands


def test_the_first_visit_opens_the_prompt_lab_and_a_later_one_the_overview(bench: Workbench) -> None:
    assert landed() == "Prompt lab"
    trial = run(bench)
    assert landed() == "Overview"
    assert landed(trial=trial.id) == "Prompt lab"
    bench.trials.delete(trial.id)
    assert landed() == "Prompt lab"


def test_a_benchmark_counts_as_a_visit_and_a_session_stays_where_it_is(runs: list[RunRecord]) -> None:
    assert landed() == "Overview"
    assert [title.value for title in frame().run().title] == ["Prompt lab"]


def test_a_history_that_fails_lands_on_the_prompt_lab(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.kept, "history", None)
    assert landed() == "Prompt lab"


def landed(**query: str) -> str:
    """The title of the page that a new session opens with."""
    at = AppTest.from_file(str(ROUTER), default_timeout=60)
    for name, value in query.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception, at.exception
    (title,) = at.title
    return str(title.value)


# the picture of surprise


@pytest.mark.parametrize(("bits", "band"), [(0.0, "b0"), (5.0, "b0"), (7.0, "b5"), (12.0, "b6")])
def test_only_the_most_surprising_tokens_are_coloured(bits: float, band: str) -> None:
    assert re.findall(r'class="(b\d)"', picture([bits], 1)) == [band]


def test_tokens_without_a_figure_are_not_drawn() -> None:
    assert "<path" not in picture([float("nan")] * 3, 3)
    assert "No surprise was recorded" in sparkline([float("nan")] * 3, 3)
    assert 'viewBox="0 0 1 100"' in picture([], 0)
    assert "at most 10.0 bits" in sparkline([10.0, 3.0], 2)


def picture(bits: list[float], num_tokens: int) -> str:
    """The SVG of a sparkline, which is well-formed."""
    ((_title, address),) = PICTURE.findall(sparkline(bits, num_tokens))
    ET.fromstring(unquote(address))
    return unquote(address)


def test_a_card_of_another_model_is_not_shown(card: MachineCard, tmp_path: Path) -> None:
    write_cards(tmp_path, [changed(model_hash="another", machine=card.machine)])
    assert primary(page()) == ["Measure this machine · 60 s"]
