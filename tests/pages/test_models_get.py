"""Get and Quantise on the Models page, without a browser: a hub of our own, small models, real llama.cpp."""

import random
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from huggingface_hub import constants
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.errors import ConfigError
from engine.machine.limits import Limits
from engine.models import embedded_model, read_model
from engine.models.catalogue import read_catalogue
from engine.models.quantise import QuantiseJob
from engine.models.synthetic import write_synthetic
from engine.settings import Settings
from engine.units import quantity
from engine.workbench import Workbench
from engine.workbench.model_files import ModelFiles
from pages.parts.models import get_view, library_view
from pages.parts.plain import plain
from tests.engine.models.hub_server import BLOCK, Hub, by_default, serving, without_login
from tests.pages.app import address, open_page, primary
from tests.pages.bench_harness import ScriptedManager, make_run

ENTRY = read_catalogue().entries[0]
HOSTILE = "<b>x **y** $z$.Q8_0.gguf"
DATA = random.Random(2).randbytes(300_000)
LIMITS = Limits(machine_hash="", num_cores=2, cache_bytes=0, bandwidth=((1, 1e10),), flops=1e11)
WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def files(bench: Workbench, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelFiles]:
    """Of the workbench of all pages, but with the folders of this test."""
    made = ModelFiles(Settings.from_environment(), bench.machine)
    monkeypatch.setattr(bench, "files", made)
    without_login(monkeypatch, home / "no-token")
    yield made
    made.close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub that HF_ENDPOINT names."""
    with serving() as served:
        by_default(monkeypatch, served)
        served.repositories[ENTRY.repository] = {f"it.{ENTRY.quantisation}.gguf": DATA, HOSTILE: DATA[:2000]}
        yield served


@pytest.fixture
def source(home: Path) -> Path:
    path = home / "models" / "tiny-F16.gguf"
    path.parent.mkdir(parents=True)
    write_synthetic("tiny", path, "F16")
    return path


def page(view: str, **query: str) -> AppTest:
    return open_page("models.py", "Models", view=view, **query)


def texts(at: AppTest) -> str:
    return "\n".join(caption.value for caption in [*at.main.caption, *at.main.error])


def table(at: AppTest) -> pd.DataFrame:
    return at.main.dataframe[0].value


def ended(files: ModelFiles) -> None:
    assert files.task is not None
    files.task.wait(WITHIN_S)
    assert not files.task.is_running


# get


def test_the_catalogue_says_what_each_needs_and_asks_nobody(bench: Workbench) -> None:
    at = page("get")
    shown = table(at)
    assert shown["model"].tolist() == [entry.title for entry in read_catalogue().entries]
    assert set(shown["fits"]) <= {"fits", "too large"} and "fits" in set(shown["fits"])
    assert plain(read_catalogue().dated) in texts(at)
    assert [button.label for button in at.main.button if button.proto.type == "primary"] == []


def test_speeds_are_what_memory_and_arithmetic_allow(bench: Workbench) -> None:
    shown = get_view.frame(bench, read_catalogue().entries, LIMITS)
    speeds = dict(zip(shown["model"], shown["at most, tok/s"], strict=True))
    assert speeds[ENTRY.title] == pytest.approx(1e10 / ENTRY.size_bytes)
    of_texts = shown["at most, texts/s"][shown["for"] == "embedding"]
    assert (of_texts > 0).all() and shown["at most, tok/s"][shown["for"] == "embedding"].isna().all()
    assert "at most, tok/s" not in get_view.frame(bench, read_catalogue().entries, None)


def test_a_sentence_says_which_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_view, "available_memory", lambda: 64 << 30)
    catalogue = read_catalogue()
    number = len(catalogue.entries)
    said = get_view.sentence(catalogue, LIMITS)
    assert said.startswith(f"{number} of {number} models fit into the ")
    largest, readable = catalogue.picks(64 << 30, LIMITS.bandwidth_bytes_per_s)
    assert largest is not None and readable is not None
    assert f"The largest text model: {largest.title} {largest.quantisation}, at most " in said
    assert f"The largest that may reach 10 tok/s: {readable.title} {readable.quantisation}, at most " in said
    assert "tok/s" not in get_view.sentence(catalogue, None)
    monkeypatch.setattr(get_view, "available_memory", lambda: 0)
    none_fit = get_view.sentence(catalogue, LIMITS)
    assert none_fit.startswith(f"0 of {number} models fit ") and "largest" not in none_fit


def test_an_entry_is_fetched_by_one_button(hub: Hub, files: ModelFiles) -> None:
    at = page("get", get=ENTRY.name)
    assert plain(ENTRY.repository) in texts(at) and "fit" in texts(at)
    (button,) = [button for button in at.main.button if button.proto.type == "primary"]
    assert ENTRY.title in button.label.replace("\\", "")
    button.click().run()
    ended(files)
    at.run()
    assert not at.main.error and files.task is not None
    (kept,) = files.task.result()
    assert plain(f"{ENTRY.name} is ready: {kept}") in texts(at)
    assert [button.label for button in at.main.button if button.key and button.key.startswith("models_file")] == [
        "Load", "Open", "Close",
    ]  # fmt: skip
    assert table(at)["here"][0] == "here"
    assert "models_get" not in [button.key for button in at.main.button]
    at.button(key="models_file_close").click().run()
    assert files.task is None and "Already here" in texts(at)
    at.button(key="models_get_open").click().run()
    assert address(at) == {"model": str(kept)}


def test_any_repository_is_listed_before_something_of_it_is_fetched(hub: Hub, files: ModelFiles) -> None:
    at = page("get", get=ENTRY.repository)
    at.button(key="models_get_list").click().run()
    choice = at.selectbox(key=get_view.CHOSEN)
    assert [label.split(" · ")[0] for label in choice.options] == [HOSTILE, f"it.{ENTRY.quantisation}.gguf"]
    assert plain(f"{ENTRY.repository} · licence mit") in texts(at)
    choice.set_value(0).run()
    at.button(key="models_get").click().run()
    ended(files)
    assert files.task is not None and files.task.error is None
    assert files.task.result()[0].name == HOSTILE
    at.run()
    assert not at.exception and plain(HOSTILE) in texts(at)


@pytest.mark.parametrize(
    ("name", "message"), [("nobody/nothing", "has no nobody/nothing"), ("a b/c", "is not the name of a repository")]
)
def test_a_repository_that_is_not_there_is_said(hub: Hub, name: str, message: str) -> None:
    at = page("get", get=name)
    at.button(key="models_get_list").click().run()
    assert plain(message) in at.main.error[0].value


def test_no_network_is_said_at_once_and_can_be_tried_again(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    at = page("get", get=ENTRY.name)
    at.button(key="models_get").click().run()
    ended(files)
    at.run()
    assert "No connection to the hub" in at.main.error[0].value
    assert at.button(key="models_file_refresh").label == "Continue"


def test_a_download_shows_how_far_it_is_and_stops(hub: Hub, files: ModelFiles) -> None:
    hub.pace.clear()
    at = page("get", get=ENTRY.name)
    at.button(key="models_get").click().run()
    assert hub.sent.wait(WITHIN_S)
    at.run()
    task = files.task
    assert task is not None and task.is_running
    assert at.button(key="models_get").disabled
    (line,) = [bar.proto.text for bar in at.main.get("progress")]
    assert line.startswith(plain("Fetching ")) and "300" in line
    at.button(key="models_file_stop").click()
    at.run()
    hub.pace.set()
    ended(files)
    at.run()
    assert not at.main.error and "stopped" in texts(at)
    at.button(key="models_file_refresh").click().run()
    ended(files)
    assert files.task is not None and files.task.error is None
    assert files.task.result()[0].stat().st_size == len(DATA) > BLOCK


def test_a_name_that_is_none_is_said_in_place(bench: Workbench) -> None:
    at = page("get", get="<script>no")
    assert plain("<script>no is not in the catalogue") in texts(at)
    assert "models_get" not in [button.key for button in at.main.button]


# quantise


def test_types_are_listed_with_their_size_and_one_is_made(files: ModelFiles, source: Path) -> None:
    at = page("quantise", model=str(source), type="Q8_0")
    shown = table(at).set_index("type")
    assert shown["can be made"]["Q8_0"] == "yes" and "importance matrix" in shown["remark"]["IQ2_XXS"]
    at.button(key="models_quantise_make").click().run()
    ended(files)
    assert files.task is not None and files.task.error is None
    made = files.task.result()[0]
    assert made == source.with_name("tiny-Q8_0.gguf")
    assert made.stat().st_size == pytest.approx(1e6 * shown["size, MB"]["Q8_0"], rel=0.01)
    at.run()
    assert plain(f"{made} already exists") in texts(at)
    assert at.button(key="models_quantise_make").disabled


def test_all_files_of_a_model_become_a_plan(source: Path) -> None:
    at = page("quantise", model=str(source))
    assert "With a second file" in texts(at)
    assert "models_quantise_measure" not in [button.key for button in at.main.button]
    smaller = source.with_name("tiny-Q8_0.gguf")
    QuantiseJob(read_model(source), "Q8_0", smaller, threads=1).start().result(WITHIN_S)
    at.run()
    at.button(key="models_quantise_measure").click().run()
    assert not at.exception
    assert [title.value for title in at.title] == ["Benchmark"]
    assert at.text_input(key="plan_name").placeholder == "All quantisations"
    assert at.session_state["plan_compares_answers"] is True
    assert "plan_run" in [button.key for button in at.main.button]


def test_a_quantised_model_is_not_quantised_again_unasked(bench: Workbench, story_model: Path) -> None:
    at = page("quantise", model=str(story_model))
    assert set(table(at)["can be made"]) == {"no"}
    assert plain("Already quantised (Q8_0): use the original") in texts(at)
    assert primary(at) == []
    toggle = at.toggle(key="models_quantise_again").label
    assert toggle.lower() in texts(at).lower(), "the remark names the way out as it stands there"
    at.query_params["type"] = "Q6_K"
    remarks = table(at.run()).set_index("type")["remark"]
    assert plain("Q6_K: already quantised (Q8_0): use the original") in texts(at)
    assert not remarks["Q6_K"] and remarks["Q8_0"] == "the model already has this type"
    at.toggle(key="models_quantise_again").set_value(True).run()
    assert "yes" in set(table(at)["can be made"])
    assert "lready quantised" not in texts(at)
    assert [label.partition(" ·")[0] for label in primary(at)] == [plain("Make Q6_K")]


def test_the_recommended_type_is_offered_first(source: Path) -> None:
    at = page("quantise", model=str(source))
    (size,) = table(at).set_index("type").loc[["Q4_K_M"], "size, MB"]
    assert primary(at) == [plain(f"Make Q4_K_M · {quantity(1e6 * size, 'B')}")]
    assert "of the size of this file and the usual choice" in texts(at)


def test_a_bad_importance_matrix_and_a_missing_model_are_said(source: Path) -> None:
    at = page("quantise", model=str(source))
    at.text_input(key="models_quantise_imatrix").set_value(str(source)).run()
    assert plain("is not the importance matrix") in at.main.error[0].value
    at = page("quantise", model="/nowhere/<b>.gguf")
    assert "<b>" not in texts(at) and at.main.error


def test_a_synthetic_model_is_made(files: ModelFiles, source: Path) -> None:
    at = page("quantise", model=str(source))
    at.selectbox(key="models_quantise_shape").set_value("tiny")
    at.selectbox(key="models_quantise_quantisation").set_value("Q4_0").run()
    at.button(key="models_quantise_write").click().run()
    ended(files)
    at.run()
    assert not at.main.error and plain("tiny-Q4_0.gguf is ready") in texts(at)


def test_while_a_benchmark_measures_nothing_is_fetched_or_made(
    manager: ScriptedManager, files: ModelFiles, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(model=str(source))
    manager.begin(make_run(plan), plan)
    monkeypatch.setattr(manager, "limits", lambda: LIMITS, raising=False)
    assert "A benchmark is running" in texts(page("quantise", model=str(source)))
    assert page("get", get=ENTRY.name).button(key="models_get").disabled
    with pytest.raises(ConfigError, match="A benchmark has exclusive use of the machine"):
        files.get(ENTRY.name)


# a file of one's own


def dropped(name: str, content: bytes) -> AppTest:
    """The library after a file was dropped on it."""
    at = page("library")
    at.file_uploader(key=library_view.ADDED).set_value([(name, content, "application/octet-stream")]).run()
    assert not at.exception
    return at


def test_a_dropped_file_is_in_the_models_folder_and_opens(bench: Workbench, home: Path) -> None:
    story = embedded_model().read_bytes()
    at = dropped("../my story.gguf", story)
    path = home / "models" / "my story.gguf"
    assert path.read_bytes() == story
    assert address(at) == {"model": str(path)}
    assert at.main.subheader[0].value == plain(read_model(path).name)
    at = dropped("my story.gguf", story)
    assert "already exists" in at.main.error[0].value
    at.file_uploader(key=library_view.ADDED).set_value([]).run()
    assert not at.main.error


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"GGUF\x03\0\0\0"])
def test_a_dropped_file_that_is_no_model_is_refused(bench: Workbench, home: Path, content: bytes) -> None:
    at = dropped("<b>x.gguf", content)
    assert plain("_b_x.gguf: ") in at.main.error[0].value
    assert not list((home / "models").glob("*gguf*"))


def test_a_larger_file_is_opened_by_its_path(source: Path) -> None:
    at = page("library")
    at.text_input(key=library_view.PATH).set_value(str(source)).run()
    assert address(at)["model"] == str(source)
    assert at.main.subheader[0].value == plain(read_model(source).name)
