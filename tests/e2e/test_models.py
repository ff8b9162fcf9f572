"""The Models page in a real browser: from a file to its quantisations and their plan, loads in turn, bad days."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from engine.models import embedded_model, read_model
from engine.models.synthetic import write_synthetic
from tests.e2e.conftest import RUN, Server, click_in_row, has_room_for_its_buttons, is_settled, running

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
FITS = "() => (main => main.scrollWidth <= main.clientWidth)(document.querySelector('[data-testid=stMain]'))"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two models of its own beside the one that ships, and no hub to be reached."""
    home = tmp_path_factory.mktemp("stocked")
    models = home / "models"
    models.mkdir()
    write_synthetic("tiny", models / "tiny-F16.gguf", "F16")
    shutil.copy(embedded_model(), models / "leaving <b>.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", NOBODY)
        patch.setenv("HOME", str(home))
        with running(home) as server:
            yield server


def view(server: Server, name: str, **query: str | Path) -> str:
    said = "&".join(f"{key}={value}" for key, value in query.items())
    return f"{server.url}/models?view={name}&{said}"


def make(page: Page, type_name: str) -> None:
    """Choose a type and have it made."""
    page.get_by_role("combobox", name="Type", exact=True).click()
    page.get_by_role("option", name=type_name, exact=True).click()
    is_settled(page)
    page.get_by_role("button", name=re.compile(rf"^Make {type_name} · ")).click()
    expect(page.get_by_text(re.compile(rf"tiny-{type_name}\.gguf is ready:"))).to_be_visible()


def test_from_the_library_to_a_tokenizer_of_a_model_that_is_not_loaded(stocked: Server, open_page: OpenPage) -> None:
    page = open_page(f"{stocked.url}/models", "Models")
    expect(page.get_by_text(re.compile(r"^[3-6] models, .+ all fit"))).to_be_visible()
    click_in_row(page, 1, x=60)  # its name
    expect(page).to_have_url(re.compile(r"/models\?model="))
    page.goto(f"{stocked.url}/models?model={stocked.home / 'models' / 'tiny-F16.gguf'}")
    box = page.get_by_label("Text", exact=True)
    expect(box).to_be_visible()
    box.fill("one two")
    box.press("Control+Enter")
    expect(page.get_by_text(re.compile(r"^\d+ tokens for 7 characters"))).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Tokenizer")).to_be_visible()
    for width in (720, 1400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(FITS)


def test_quantisations_are_made_and_become_a_plan(stocked: Server, open_page: OpenPage) -> None:
    source = stocked.home / "models" / "tiny-F16.gguf"
    page = open_page(view(stocked, "quantise", model=source), "Models")
    make(page, "Q8_0")
    make(page, "Q4_0")
    made = stocked.home / "models" / "tiny-Q4_0.gguf"
    assert read_model(made).size < read_model(source).size / 2
    page.get_by_role("button", name="Measure all 3 files").click()
    page.get_by_role("heading", name="Benchmark", exact=True).wait_for()
    expect(page.get_by_label("Name", exact=True)).to_have_attribute("placeholder", "All quantisations")
    expect(page.get_by_role("button", name=re.compile(r"^Run · about"))).to_be_enabled()


def test_the_buttons_of_the_types_do_not_lie_over_the_toggle(stocked: Server, open_page: OpenPage) -> None:
    page = open_page(view(stocked, "quantise", model=embedded_model()), "Models")
    is_settled(page)
    page.get_by_text("Advanced: all types, importance matrix").click()
    has_room_for_its_buttons(page, page.get_by_test_id("stCheckbox"))


def test_any_model_is_typed_and_answered(stocked: Server, open_page: OpenPage) -> None:
    page = open_page(view(stocked, "fit", ask="mistral%207b%20q4"), "Models")
    answer = page.get_by_role("heading", level=3).first
    expect(answer).to_have_text(re.compile(r"^Mistral 7B at Q4_K_M takes \d\.\d\d GB with 4,096 tokens"))
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    box = page.get_by_role("combobox", name="Model", exact=True)
    box.fill("13b q5_k_m")
    box.press("Enter")
    expect(answer).to_have_text(re.compile(r"^A 13B model at Q5_K_M takes "))
    expect(page).to_have_url(re.compile(r"[?&]ask=13b(\+|%20)q5_k_m(&|$)"))
    is_settled(page)
    box.fill("mistral")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("the number of parameters is missing")
    for width in (390, 900, 1400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(FITS)


def test_a_dropped_file_opens_and_a_broken_one_is_refused(stocked: Server, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(f"{stocked.url}/models", "Models")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    page.locator("input[type=file]").set_input_files(broken)
    expect(page.get_by_role("alert")).to_contain_text("broken.gguf: ")
    whole = Path(shutil.copy(embedded_model(), tmp_path / "dropped & kept.gguf"))
    page.locator("input[type=file]").set_input_files(whole)
    kept = stocked.home / "models" / "dropped _ kept.gguf"
    expect(page.get_by_text(str(kept))).to_be_visible()
    assert kept.read_bytes() == whole.read_bytes()
    assert not (stocked.home / "models" / "broken.gguf").exists()
    is_settled(page)  # the page opens its tokenizer, beside which no measurement starts


def test_loads_in_turn_are_measured_and_can_be_opened_again(stocked: Server, open_page: OpenPage) -> None:
    a, b = stocked.home / "models" / "tiny-F16.gguf", embedded_model()
    page = open_page(view(stocked, "order", model=a, second=b), "Models")
    page.get_by_role("button", name=re.compile(r"^Load A, B, A · ")).click()
    expect(page.get_by_role("heading", level=3).first).to_have_text(re.compile(r"A loaded in .+, A again in "))
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    expect(page.get_by_text("A demonstration model")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", level=3).first).to_have_text(re.compile(r"A loaded in "))
    page.set_viewport_size({"width": 900, "height": 1000})
    page.wait_for_function(FITS)


def test_the_model_bar_loads_what_is_here_or_a_path(stocked: Server, open_page: OpenPage) -> None:
    page = open_page(stocked.url)
    page.get_by_role("button", name="Change", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox", name="Model", exact=True).click()
    page.get_by_role("option", name=re.compile("· F16 ·")).click()
    expect(dialog.get_by_text(re.compile("free memory$"))).to_be_visible()
    dialog.get_by_role("button", name="Load", exact=True).click()
    bar = page.get_by_test_id("stSidebar")
    expect(bar.get_by_text(re.compile("parameters · F16 ·"))).to_be_visible()
    page.get_by_role("button", name="Change", exact=True).click()
    dialog.get_by_text("Path", exact=True).click()
    box = dialog.get_by_label("Path of a GGUF file")
    for path in ("~nobody-here/x.gguf", "/nowhere/<b>.gguf"):
        box.fill(path)
        box.press("Enter")
        expect(dialog.get_by_role("alert")).to_contain_text(path)
    box.fill(str(embedded_model()))
    box.press("Enter")
    dialog.get_by_role("button", name="Load", exact=True).click()
    expect(bar.get_by_text("A demonstration model")).to_be_visible()


def test_a_dialog_stays_open_when_a_trial_ends_until_it_is_dismissed(slow: Server, open_page: OpenPage) -> None:
    page = open_page(slow.url)
    expect(page.get_by_test_id("stSidebar").get_by_text("parameters")).to_be_visible()
    dialog = page.get_by_role("dialog")
    page.get_by_role("spinbutton", name="Max tokens").fill("200")
    page.get_by_role("button", name=RUN).click()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    page.get_by_role("button", name="This machine").click()
    expect(dialog).to_be_visible()
    expect(page.locator(".st-key-do_run button")).to_be_attached()
    expect(dialog.get_by_text("of memory")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name=RUN).click()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name=RUN)).to_be_visible()
    expect(dialog).to_have_count(0)


def test_no_network_is_said_at_once_and_models_here_go_on(stocked: Server, open_page: OpenPage) -> None:
    page = open_page(view(stocked, "get", get="smollm2-135m"), "Models")
    page.get_by_role("button", name=re.compile(r"^Get SmolLM2 135M")).click()
    alert = page.get_by_role("alert").filter(has_text="No connection to the hub")
    expect(alert).to_contain_text("Models on this machine work without it.")
    page.get_by_role("button", name="Close", exact=True).click()
    expect(alert).to_have_count(0)
    page.goto(f"{stocked.url}/models?model={embedded_model()}")
    expect(page.get_by_text(re.compile(r"^\d+ tokens for "))).to_be_visible()


def test_a_model_that_is_removed_while_it_is_loaded(stocked: Server, open_page: OpenPage) -> None:
    path = stocked.home / "models" / "leaving <b>.gguf"
    page = open_page(f"{stocked.url}/models?model={path}", "Models")
    load = page.get_by_role("button", name="Load", exact=True)
    load.click()
    expect(load).to_be_disabled()
    path.unlink()
    page.reload()
    expect(page.get_by_role("alert").filter(has_text="leaving <b>.gguf")).to_be_visible()
    page.get_by_role("link", name="Prompt lab").click()
    page.get_by_role("heading", name="Prompt lab", exact=True).wait_for()
    page.get_by_role("button", name=RUN).click()
    expect(page.get_by_text(re.compile("tok/s")).first).to_be_visible()
