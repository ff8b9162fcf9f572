"""The Embeddings page without a browser: shipped sentences, pasted and uploaded texts, what is refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from engine.backends.address import Address
from engine.backends.embedding_server import PATH
from engine.backends.known import KnownEngine, add_known
from engine.bench.planning.plan import Plan
from engine.embedding.models import EMBEDDED_NAME
from engine.errors import ConfigError
from engine.exchange.text_files import shipped_texts
from engine.models import embedded_model
from engine.step_parts import Floats
from engine.workbench import Workbench
from engine.workbench.similarity import project
from pages.parts.embeddings import charts, explore, search
from pages.parts.plain import plain
from tests.engine.backends.embedding_answers import answer
from tests.engine.backends.fake_server import fake_server
from tests.pages.app import HOSTILE, open_page
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_embedding")


def page(bench: Workbench, **query: str) -> AppTest:
    """The page with the vectors of the shipped sentences, those in English and all."""
    for language in ("English", ""):
        assert bench.embedding.embed(shipped_texts(language).texts).wait(120)
    return open_page("embeddings.py", "Embeddings", **query)


def rerun(bench: Workbench, at: AppTest) -> AppTest:
    """Draw the page again once nothing is being embedded."""
    until(lambda: not bench.embedding.is_busy, within_s=120)
    at.run()
    assert not at.exception, at.exception
    return at


def tables(at: AppTest) -> list[pd.DataFrame]:
    return [frame.value for frame in at.main.dataframe if "cosine" in frame.value]


def table(at: AppTest) -> pd.DataFrame:
    return tables(at)[0]


def title(at: AppTest) -> str:
    (chart,) = at.get("plotly_chart")
    text: str = json.loads(chart.proto.spec)["layout"]["title"]["text"]
    return text


def test_it_opens_on_the_shipped_sentences(bench: Workbench) -> None:
    at = page(bench)
    assert title(at).startswith("Most alike")
    assert not at.main.error
    first = table(at).to_dict("records")[0]
    assert "roof" in first["text"] and first["group"] == "weather" and 0.3 < first["cosine"] < 1
    assert [button.label for button in at.main.button if button.proto.type == "primary"] == []


def test_view_and_text_stand_in_the_address(bench: Workbench) -> None:
    at = page(bench, view="map", text="21")
    assert title(at).startswith("This map preserves")
    assert at.selectbox(key="embed_text").value == "21"
    assert "kitten" in table(at)["text"][0]
    at.selectbox(key="embed_text").set_value("5").run()
    assert at.query_params["text"] in ("5", ["5"])
    assert "onion" in table(at)["text"][0]


@pytest.mark.parametrize("query", [{"text": "9999"}, {"text": "-1"}, {"view": "x"}, {"source": "x"}, {"backend": "x"}])
def test_an_address_that_names_nothing_opens_the_first(bench: Workbench, query: dict[str, str]) -> None:
    at = page(bench, **query)
    assert title(at).startswith("Most alike")
    assert at.selectbox(key="embed_text").value == "1"


def test_texts_are_found_by_meaning(bench: Workbench) -> None:
    at = rerun(bench, page(bench, find="we were too late for the ship"))
    found = tables(at)[0]
    assert found["group"].tolist()[:2] == ["travel", "travel"]
    assert f"“{found['text'][0]}”" in at.main.markdown[0].value.replace("\\", "")
    orders = [list(one.proto.column_order) for one in at.main.dataframe if one.proto.alt.startswith("The texts")]
    assert orders == [["cosine", "group", "text"]] * 2  # a long text does not push the figure out of the window


@pytest.mark.parametrize(
    ("question", "group"), list(zip(search.EXAMPLES, ("travel", "money", "kitchen", "computers"), strict=True))
)
def test_the_default_model_understands_the_examples(bench: Workbench, question: str, group: str) -> None:
    at = page(bench)
    at.pills(key="embed_examples").set_value(question).run()
    assert at.query_params["find"] in (question, [question])
    found = tables(rerun(bench, at))[0]
    assert found["group"][0] == group
    shared = set(question.split()) & set(found["text"][0].lower().split()) - {"the", "for", "we"}
    assert len(shared) <= 1, "found by its meaning, not by its words"


def test_texts_in_other_languages_are_marked_and_no_default(bench: Workbench) -> None:
    assert explore.ENGLISH not in [caption.value for caption in page(bench).main.caption]
    at = page(bench, source="Shipped")
    assert explore.ENGLISH in [caption.value for caption in at.main.caption]
    assert not at.main.error


def test_the_model_in_use_is_named(bench: Workbench) -> None:
    assert next(one.proto.popover.label for one in page(bench).get("popover")) == plain(EMBEDDED_NAME)


def test_pasted_lines_are_embedded_and_stay_text(bench: Workbench) -> None:
    at = page(bench, source="Pasted")
    assert not at.get("plotly_chart") and not at.main.error
    assert "two lines or more" in at.main.caption[-1].value
    at.text_area(key="embed_pasted").set_value("only one line").run()
    assert "nothing to be compared with" in at.main.caption[-1].value
    at.text_area(key="embed_pasted").set_value(f"{HOSTILE}\nThe soup needs salt.\nMore salt for the soup!").run()
    at = rerun(bench, at)
    assert "<script>" not in title(at) and "Most alike" in title(at)
    assert len(table(at)) == 2


def row_height(at: AppTest) -> int:
    """Of the neighbours, in pixels; 0 where it is the usual one."""
    (height,) = {one.proto.row_height for one in at.main.dataframe if one.proto.alt.startswith("The texts nearest")}
    return int(height)


def test_neighbours_wrap_where_one_is_too_long_for_its_column(bench: Workbench) -> None:
    assert row_height(page(bench)) > 60
    at = page(bench, source="Pasted")
    at.text_area(key="embed_pasted").set_value("Soup.\nMore salt for the soup!").run()
    assert not row_height(rerun(bench, at))


def test_a_file_is_read_and_its_column_chosen(bench: Workbench) -> None:
    at = page(bench, source="File")
    csv = b"first,text\ncats,Rent is due.\ndogs,Pay the rent.\ncats,It rains.\n"
    at.file_uploader(key="embed_file").set_value([("mine.csv", csv, "text/csv")]).run()
    at = rerun(bench, at)
    assert table(at)["text"].tolist()[0] == "Pay the rent."
    (column,) = [box for box in at.main.selectbox if box.label == "Column"]
    column.set_value("first").run()
    at = rerun(bench, at)
    assert table(at)["text"].tolist()[0] == "cats" and table(at)["cosine"][0] == pytest.approx(1)


def test_a_file_that_lies_about_its_type_is_said(bench: Workbench) -> None:
    at = page(bench, source="File")
    at.file_uploader(key="embed_file").set_value([("sheet.csv", b"PK\x03\x04\0\0", "text/csv")]).run()
    assert "ZIP archive" in at.main.error[0].value
    assert not at.exception and not at.get("plotly_chart")


def test_a_model_that_is_not_here_is_said_and_can_be_tried_again(bench: Workbench) -> None:
    at = rerun(bench, page(bench, model="nobody/nothing"))
    assert "not on this machine" in at.main.error[0].value
    at.button(key="embed_again_texts").click().run()
    at.text_input(key="embed_model").set_value("").run()
    assert title(rerun(bench, at)).startswith("Most alike")


@pytest.mark.parametrize("model", ["x" * 3_000, "~nobody/here", "a\0b", HOSTILE])
def test_a_name_that_no_model_can_have_is_said(bench: Workbench, model: str) -> None:
    at = rerun(bench, page(bench, model=model))
    assert len(at.main.error) == 1 and "defect" not in at.main.error[0].value
    assert "<script>" not in at.main.error[0].value


def test_what_was_stopped_is_said(bench: Workbench) -> None:
    at = page(bench, source="Pasted")
    lines = "\n".join(f"{number} " + "many words in a long line " * 40 for number in range(300))
    at.text_area(key="embed_pasted").set_value(lines).run()
    at.button(key="embed_stop_texts").click().run()
    assert "Stopped before the vectors were there." in [caption.value for caption in rerun(bench, at).main.caption]


def test_no_benchmark_begins_while_texts_are_embedded(bench: Workbench) -> None:
    work = bench.embedding.embed(tuple(f"{number} " + "many words in a line " * 40 for number in range(300)))
    with pytest.raises(ConfigError, match="An embedding of 300 texts"):
        bench.bench.start(Plan(model=str(embedded_model()), rounds=6))
    work.stop()
    assert work.wait(120) and bench.bench.running is None


def test_while_a_benchmark_measures_nothing_new_is_embedded(bench: Workbench) -> None:
    at = page(bench, source="Pasted")
    with bench.machine.acquire("A benchmark", "benchmark"):
        at.text_area(key="embed_pasted").set_value("new text\nanother new text").run()
        assert "A benchmark has exclusive use of the machine" in at.main.info[0].value and not at.main.error
        at.query_params["source"] = "Shipped"
        assert title(at.run()).startswith("Most alike")


# charts


@pytest.fixture(scope="module")
def vectors() -> Floats:
    rows = np.random.default_rng(4).normal(size=(9, 16))
    made: Floats = (rows / np.linalg.norm(rows, axis=1)[:, None]).astype(np.float32)
    return made


def test_the_heat_map_has_a_row_a_text_even_where_texts_are_the_same(vectors: Floats) -> None:
    figure = charts.heat_map([HOSTILE] * 9, vectors)
    (drawn,) = figure.data
    assert len(set(drawn.y)) == 9 and np.asarray(drawn.z).shape == (9, 9)
    assert not any("<script>" in name or "\u202e" in name for name in drawn.y)
    assert [drawn.z[place][place] for place in range(9)] == [1] * 9


def test_the_map_gives_groups_colours_and_the_rare_ones_grey(vectors: Floats) -> None:
    groups = [HOSTILE, HOSTILE, *"abcdefg"]
    figure = charts.text_map(["text"] * 9, groups, project(vectors), 3)
    *drawn, ring = figure.data
    assert sum(len(one.x) for one in drawn) == 9 and len(drawn) == 6
    assert [one.name for one in drawn][-1] == "others" and len(drawn[-1].x) == 3
    assert "<script>" not in drawn[0].name
    assert (ring.x[0], ring.y[0]) == tuple(project(vectors).points[3])


def test_an_engine_embeds_and_another_machine_only_after_a_question(
    bench: Workbench, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_server({PATH: answer}) as (address, seen):
        add_known(home, KnownEngine(name="desk", url=address))
        at = rerun(bench, open_page("embeddings.py", "Embeddings", backend="external:desk"))
        assert at.selectbox(key="embed_backend").value == "external:desk"
        assert title(at).startswith("Most alike")
        assert any("6 numbers each" in one.value for one in at.main.caption)
        assert bench.embedding.open_spec is None  # what the API serves stays on this machine
        bench.embedding.release()
        monkeypatch.setattr(Address, "is_loopback", property(lambda _address: False))
        seen.clear()
        at = open_page("embeddings.py", "Embeddings", backend="external:desk", source="Shipped")
        assert any(plain("is on another machine. This sends") in one.value for one in at.main.markdown)
        assert seen == [] and not bench.embedding.is_open
        at.button(key="embed_send").click().run()
        assert title(rerun(bench, at)).startswith("Most alike")
