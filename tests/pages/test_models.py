"""The Models page without a browser: library, one model, whether it fits."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.models import by_size, by_type, embedded_model, memory, read_library, read_model
from engine.models.described import described
from engine.models.experts import weights_read
from engine.models.fit import SEQUENCES, FitRow, MachineMemory, contexts_for, fit_row, grid, notes_example
from engine.models.synthetic import write_synthetic
from engine.specs import PoolSpec
from engine.units import digits, parameters, quantity
from engine.workbench import Workbench
from engine.workbench.model_library import Speed, look_at
from pages.parts.models import fit_charts, fit_view, library_view, place, playground, tensor_charts
from pages.parts.plain import plain
from tests.engine.models import headers
from tests.pages.app import HOSTILE, address, open_page, primary, said
from tests.pages.bench_harness import ScriptedManager, make_run


class Machine:
    """Limits of a machine, as far as a library asks."""

    bandwidth_bytes_per_s = 10e9
    cache_bytes = 1 << 20


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights whose layers have sliding windows."""
    path = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    write_synthetic("tiny-gemma", path, "Q8_0")
    return path


def page(**query: str) -> AppTest:
    return open_page("models.py", "Models", **query)


def table(at: AppTest, column: str) -> pd.DataFrame:
    return next(shown.value for shown in at.main.dataframe if column in shown.value)


# library


def test_it_opens_on_the_models_found_here(manager: ScriptedManager, models_folder: Path) -> None:
    shutil.copy(embedded_model(), models_folder / "other.gguf")
    at = page()
    shown = table(at, "quantisation")
    assert list(shown["place"]) == ["Embedded", "Models"]
    assert list(shown["fits"]) == ["fits", "fits"]
    assert set(shown["vocabulary"]) == {read_model(embedded_model()).n_vocab}
    assert "2 models" in said(at)
    assert "all fit" in said(at)
    assert address(at) == {}
    assert primary(at) == []


def test_broken_files_stand_there_with_their_reason(manager: ScriptedManager, models_folder: Path) -> None:
    (models_folder / "cut.gguf").write_bytes(b"GGUF\x03")
    at = page()
    broken = table(at, "reason")
    assert list(broken["file"]) == ["cut.gguf"]
    assert str(models_folder) not in broken["reason"][0] and broken["reason"][0]
    assert "1 file cannot be used" in said(at)


def test_without_limits_no_speed_is_estimated(manager: ScriptedManager, models_folder: Path) -> None:
    at = page()
    assert "source of speed" not in table(at, "quantisation")
    at.button(key="models_limits").click().run()
    assert manager.calls == [("measure_limits", "", 512)]


def test_speed_is_estimated_from_the_limits(manager: ScriptedManager, models_folder: Path) -> None:
    manager.machine = Machine()
    shown = table(page(), "quantisation")
    assert list(shown["source of speed"]) == ["estimated"]
    per_s = 10e9 / read_model(embedded_model()).weights_bytes
    assert shown["one sequence, tok/s"][0] == pytest.approx(per_s)


def test_why_a_model_has_no_speed_is_said(
    manager: ScriptedManager, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.machine = Machine()
    assert library_view.IN_CACHE not in said(page())
    monkeypatch.setattr(Machine, "cache_bytes", 1 << 30)
    at = page()
    assert "source of speed" not in table(at, "quantisation")
    assert plain(f"1 model without a speed: {library_view.IN_CACHE}") in said(at)


def test_parameters_are_counted_as_in_the_sidebar(manager: ScriptedManager, models_folder: Path) -> None:
    (shown,) = [one for one in page().main.dataframe if "parameters" in one.value]
    words = convert_arrow_bytes_to_pandas_df(shown.proto.arrow_data.styler.display_values)
    assert words["parameters"].tolist() == [parameters(number) for number in shown.value["parameters"]]
    assert "7.87 M" in words["parameters"].tolist()


def test_how_much_lies_in_memory_is_a_share(models_folder: Path) -> None:
    (model,) = look_at(read_library())
    assert library_view.frame([model])["in RAM, %"][0] == pytest.approx(100 * model.resident)


# one model


def test_a_model_has_a_page_with_what_its_header_says(manager: ScriptedManager, models_folder: Path) -> None:
    at = page(model=str(embedded_model()))
    file = read_model(embedded_model())
    assert at.main.subheader[0].value == plain(file.name)
    metadata = table(at, "key")
    assert set(metadata["key"]) == set(file.metadata) - {"tokenizer.chat_template"}
    tensors = table(at, "tensor")
    assert tensors["tensors"].sum() == len(file.tensors)
    assert primary(at) == ["Load"]


def test_the_tokenizer_answers_with_ids_and_bytes(
    bench: Workbench, manager: ScriptedManager, models_folder: Path
) -> None:
    at = page(model=str(embedded_model()))
    at.text_area(key=playground.TEXT).set_value("Once upon a time\n🐈").run()
    shown = table(at, "bytes")
    pool = bench.model.engine
    assert pool is not None
    assert list(shown["id"]) == pool.tokenize("Once upon a time\n🐈")
    raw = b"".join(bytes.fromhex(one) for one in shown["bytes"])
    assert raw.decode().strip() == "Once upon a time\n🐈"
    (columns,) = [json.loads(one.proto.columns) for one in at.main.dataframe if "bytes" in one.value]
    assert columns["id"]["type_config"]["format"] == "localized"


def test_models_that_look_the_same_are_told_apart_by_their_files(models_folder: Path) -> None:
    shutil.copy(embedded_model(), models_folder / "other.gguf")
    labels = place.labels(place.models())
    ends = {label.rpartition(" · ")[2] for label in labels.values()}
    assert ends == {"other.gguf", embedded_model().name}


def test_the_tokenizer_answers_for_a_model_that_is_not_loaded(
    bench: Workbench, manager: ScriptedManager, models_folder: Path, gemma: Path
) -> None:
    at = page(model=str(gemma))
    at.text_area(key=playground.TEXT).set_value("One\ntwo").run()
    assert not at.error
    assert list(table(at, "bytes")["id"]) == bench.tokenizer.of(gemma).tokenize("One\ntwo")
    assert bench.model.path != gemma
    assert not at.button(key="model_load").disabled


def test_while_a_benchmark_measures_no_tokenizer_is_opened(
    manager: ScriptedManager, models_folder: Path, story_model: Path
) -> None:
    other = shutil.copy(story_model, models_folder / "other.gguf")
    plan = Plan(model=str(other))
    manager.begin(make_run(plan), plan)
    at = page(model=str(other))
    assert "A benchmark has exclusive use of the machine" in at.error[0].value
    assert at.main.dataframe


def test_from_a_model_to_whether_it_fits_and_back(manager: ScriptedManager, models_folder: Path, gemma: Path) -> None:
    at = page(model=str(gemma))
    at.button(key="model_fit").click().run()
    assert address(at) == {"view": "fit", "model": str(gemma)}
    at = page(model=str(gemma))
    at.button(key="model_back").click().run()
    assert address(at) == {}


@pytest.mark.parametrize("name", ["nowhere.gguf", HOSTILE, "/", ""])
def test_a_model_that_is_not_there_is_said_in_place(name: str, manager: ScriptedManager, models_folder: Path) -> None:
    at = page(model=name)
    if name:
        assert len(at.error) == 1
        assert "<script>" not in at.error[0].value
    else:
        assert not at.error


def test_names_and_templates_of_files_are_shown_as_they_are(manager: ScriptedManager, models_folder: Path) -> None:
    named = headers.key("general.name", headers.TEXT, headers.text(HOSTILE))
    keys = [named if b"general.name" in one else one for one in headers.KEYS]
    path = headers.write(models_folder, headers.gguf(keys), "hostile.gguf")
    assert HOSTILE.replace("\u202e", "\ufffd") in list(table(page(), "quantisation")["name"])
    at = page(model=str(path))
    assert at.main.subheader[0].value == plain(HOSTILE)
    assert [one.value for one in at.main.code] == ["{{ messages }}" * 1000]


def test_steering_characters_of_a_template_are_not_shown() -> None:
    assert playground.visible("{{ a }}\n\u202e{{ b }}") == "{{ a }}\n\ufffd{{ b }}"


def test_charts_of_tensors_account_for_all_bytes(gemma: Path) -> None:
    file = read_model(gemma)
    types, sizes = by_type(file), by_size(file)[: tensor_charts.MOST_BARS]
    for figure, groups in ((tensor_charts.types(types), types), (tensor_charts.largest(by_size(file)), sizes)):
        assert sum(figure.data[0].x) * 1e6 == pytest.approx(sum(group.num_bytes for group in groups))
        assert figure.layout.title.text.startswith(groups[0].name)


# whether it fits


def test_fit_opens_on_the_loaded_model(bench: Workbench, manager: ScriptedManager, models_folder: Path) -> None:
    at = page(view="fit")
    file = read_model(embedded_model())
    assert answer(at).startswith(f"{file.name} at {file.quantisation} takes ")
    assert "and fits here" in answer(at)
    assert len(table(at, "sequences")) == len(SEQUENCES) * len(contexts_for(file))
    assert primary(at) == []


def answer(at: AppTest) -> str:
    """The answer as it is read: without the marks that keep Streamlit from reading it as Markdown."""
    return re.sub(r"\\(.)", r"\1", at.main.subheader[0].value).replace("\u2060", "")


def test_what_is_asked_stands_in_the_address(manager: ScriptedManager, models_folder: Path, gemma: Path) -> None:
    at = page(view="fit", model=str(gemma), sequences="4", type_k="q8_0", n_ctx="512")
    assert "4 sequences of 512 tokens" in answer(at)
    assert "q8" in said(at)
    at.selectbox(key="fit_sequences").select(8).run()
    assert address(at)["sequences"] == "8"
    assert "8 sequences of 512 tokens" in answer(at)
    assert any("window" in caption.value for caption in at.main.caption)


@pytest.mark.parametrize(
    ("ask", "beginning"),
    [
        ("mistral 7b q4", "Mistral 7B at Q4_K_M takes "),
        ("13b q5_k_m", "A 13B model at Q5_K_M takes "),
        ("llama 3 70b", "Llama 3 70B at Q4_K_M takes "),
        ("30b", "A 30B model at Q4_K_M takes about "),
        ("mixtral 8x7b q4", "Mixtral 8x7B at Q4_K_M takes "),
        ("80b a3b", "An 80B A3B model at Q4_K_M takes about "),
    ],
)
def test_a_model_in_words_is_answered(
    ask: str, beginning: str, manager: ScriptedManager, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.machine = Machine()
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 40)
    at = page(view="fit", ask=ask)
    assert not at.error
    assert answer(at).startswith(beginning)
    assert " with 4,096 tokens" in answer(at)
    assert "Estimated from the dimensions" in said(at)
    weights = weights_read(described(ask).model, 1)
    assert plain(f"At most {digits(10e9 / weights)} tok/s with one sequence, estimated") in said(at)
    assert len(at.get("plotly_chart")) == 2


def test_of_a_mixture_of_experts_it_is_said_how_much_a_token_uses(
    manager: ScriptedManager, models_folder: Path
) -> None:
    manager.machine = Machine()
    at = page(view="fit", ask="mixtral 8x7b q4")
    assert plain("Each token uses 12.9 B of its 46.7 B parameters: 2 of 8 experts of each layer.") in said(at)
    assert "Each token uses" not in said(page(view="fit", ask="13b q4"))


def test_the_answer_has_the_figures_of_the_estimate(manager: ScriptedManager, models_folder: Path) -> None:
    at = page(view="fit", ask="llama 2 7b q8", n_ctx="2048", sequences="4")
    row = fit_row(described("llama 2 7b q8").model, 2048, 4, PoolSpec())
    assert f"takes {quantity(row.total, 'B')} with 4 sequences of 2,048 tokens" in answer(at)
    shown = table(at, "sequences")
    (found,) = shown[(shown["sequences"] == 4) & (shown["context"] == 2048)].to_dict("records")
    assert found["total, GB"] == pytest.approx(row.total / 1e9)


@pytest.mark.parametrize("ask", ["mistral", "mixtral", "3b a30b", "7b q7", HOSTILE, "x" * 5000, "/nowhere/<b>.gguf"])
def test_a_model_that_cannot_be_read_from_words_is_said(
    ask: str, manager: ScriptedManager, models_folder: Path
) -> None:
    at = page(view="fit", ask=ask)
    assert len(at.error) == 1
    assert "<script>" not in at.error[0].value and "<b>" not in at.error[0].value
    assert not at.main.subheader


def test_where_it_does_not_fit_one_click_leads_to_what_does(
    manager: ScriptedManager, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = fit_row(described("7b q4").model, 4096, 1, PoolSpec()).total
    monkeypatch.setattr(memory, "available_memory", lambda: free)
    manager.machine = Machine()
    at = page(view="fit", ask="7b f16")
    assert "too much here" in answer(at) and "tok/s" not in said(at)
    at.button(key="fit_smaller").click().run()
    assert answer(at).startswith("A 7B model at Q4_K_M takes ") and "and fits here" in answer(at)
    assert "fit_smaller" not in [button.key for button in at.button]


def test_a_model_here_is_found_by_its_name(manager: ScriptedManager, models_folder: Path) -> None:
    file = read_model(embedded_model())
    assert answer(page(view="fit", ask=file.name.upper())) == answer(page(view="fit"))


def test_a_model_of_the_catalogue_leads_to_its_download(manager: ScriptedManager, models_folder: Path) -> None:
    at = page(view="fit", ask="SmolLM2 135M Instruct Q4_K_M")
    at.button(key="fit_get").click().run()
    assert address(at) == {"view": "get", "get": "smollm2-135m"}
    assert not [button for button in page(view="fit", ask="7b").button if button.key == "fit_get"]


def test_without_limits_the_speed_is_offered_to_be_measured(manager: ScriptedManager, models_folder: Path) -> None:
    at = page(view="fit", ask="7b q4")
    assert "tok/s" not in said(at)
    at.button(key="fit_limits").click().run()
    assert manager.calls == [("measure_limits", "", 512)]


def test_weights_that_the_cache_holds_have_no_limit_by_memory(
    manager: ScriptedManager, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "cache_bytes", read_model(embedded_model()).weights_bytes)
    manager.machine = Machine()
    at = page(view="fit")
    assert "fit in the processor" in said(at) and "tok/s" not in said(at)
    assert "source of speed" not in table(page(), "quantisation")


def test_a_measured_speed_is_called_measured() -> None:
    text = fit_view.speed_text(read_model(embedded_model()), Speed(57.3, "measured here"), None)
    assert text == "57.3 tok/s with one sequence, the best measured here."


@pytest.mark.parametrize("query", [{"sequences": "0"}, {"n_ctx": "many"}, {"type_k": "f8"}, {"shared": "perhaps"}])
def test_an_address_that_asks_for_nonsense_gives_the_usual(
    query: dict[str, str], manager: ScriptedManager, models_folder: Path
) -> None:
    at = page(view="fit", **query)
    assert not at.error
    assert answer(at) == answer(page(view="fit"))


def test_the_example_of_the_notes_explains_itself(manager: ScriptedManager, models_folder: Path) -> None:
    at = page(view="fit", model=place.EXAMPLE)
    assert "118 layers" in said(at)
    assert plain("3.04 TB") in said(at)
    assert "too much here at any context length" in answer(at)


@pytest.mark.parametrize(("view", "shown"), [("library", {}), ("quantise", {"view": "quantise"})])
def test_the_example_is_left_behind_in_the_other_views(
    view: str, shown: dict[str, str], manager: ScriptedManager, models_folder: Path
) -> None:
    at = page(view="fit", model=place.EXAMPLE)
    at.segmented_control(key="models_view").set_value(view).run()
    assert not at.exception
    assert not at.error
    assert shown.items() <= address(at).items()
    assert address(at).get("model") != place.EXAMPLE


def rows_with(change: Callable[[FitRow], bool]) -> list[FitRow]:
    file = read_model(embedded_model())
    return [row for row in grid(file) if change(row)]


def test_the_stack_is_the_sum(models_folder: Path) -> None:
    rows = rows_with(lambda row: row.sequences == 8)
    figure = fit_charts.over_context(rows, MachineMemory(total=10**12, limit=None, available=10**12))
    for number, row in enumerate(rows):
        assert sum(bar.y[number] for bar in figure.data) * 1e6 == pytest.approx(row.total)
    assert figure.layout.title.text == "8 sequences: all of these fit"


def test_only_memory_near_the_columns_is_drawn() -> None:
    rows = rows_with(lambda row: row.sequences == 8)
    most = rows[-1].total
    near = fit_charts.over_context(rows, MachineMemory(total=100 * most, limit=2 * most, available=most // 2))
    assert [shape.name.split(":")[0] for shape in near.layout.shapes] == ["free now", "cgroup limit"]
    assert len({shape.line.dash for shape in near.layout.shapes}) == 2
    assert not near.layout.annotations
    far = fit_charts.over_context(rows, MachineMemory(100 * most, None, 90 * most))
    assert not far.layout.shapes
    assert "90 times the highest column" in far.layout.annotations[0].text


def test_no_column_covers_what_a_line_is_called() -> None:
    rows = rows_with(lambda row: row.sequences == 8)
    most = rows[-1].total
    for parts in (2, 3, 20):
        figure = fit_charts.over_context(rows, MachineMemory(most // parts, None, most // parts - 1))
        assert all(shape.showlegend and not shape.label.text for shape in figure.layout.shapes)
        assert [shape.name.split(":")[0] for shape in figure.layout.shapes] == ["free now", "this machine"]
        assert not figure.layout.annotations


@pytest.mark.parametrize(
    ("sequences", "is_fitting", "longest", "said"),
    [
        (1, True, 512, "It takes 95.0 MB with 512 tokens and fits here."),
        (8, True, 512, "It takes 95.0 MB with 8 sequences of 512 tokens and fits here."),
        (1, True, 4096, "It takes 95.0 MB with 512 tokens and fits here; up to 4,096 tokens would."),
        (8, False, 256, "It takes 95.0 MB with 8 sequences of 512 tokens, too much here; "
         "up to 256 tokens each would fit."),
        (1, False, 0, "It takes 95.0 MB with 512 tokens, too much here at any context length."),
    ],
)  # fmt: skip
def test_the_answer_is_a_sentence(sequences: int, is_fitting: bool, longest: int, said: str) -> None:
    row = FitRow(512, sequences, 1, 1, 1, 1, 1, 1, 95_000_000, is_fitting)
    subject = fit_view.Subject(read_model(embedded_model()), "It")
    assert fit_view.sentence(subject, row, longest) == said
    about = fit_view.sentence(subject._replace(words=described("30b")), row, longest)
    assert about.startswith("It takes about 95.0 MB")


def test_where_some_fit_the_title_says_up_to_which() -> None:
    example = notes_example()
    rows = grid(example.model, [512, 2048], (1, 512))
    one, many = (fit_charts.over_context([row for row in rows if row.sequences == count], MachineMemory(1, None, 1))
                 for count in (1, 512))  # fmt: skip
    assert one.layout.title.text.startswith("1 sequence: ")
    assert many.layout.title.text == "512 sequences: none of these fit"
