"""The Share popover of the Prompt lab: a trial and its branches in every form, and what becomes of the files."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import Server, has_ended
from tests.e2e.test_prompt_lab import OpenPage, answer, fill, run


def downloaded(page: Page, form: str) -> bytes:
    """What the Share popover, which is open, gives in this form; its button tells the size."""
    button = page.get_by_role("button", name=re.compile(f"^{form} · "))
    size_text = re.fullmatch(rf"{form} · ([\d.,]+) (bytes|kB|MB)", button.inner_text().splitlines()[-1])
    assert size_text is not None
    with page.expect_download() as download:
        button.click()
    content = Path(download.value.path()).read_bytes()
    size = float(size_text[1].replace(",", "")) * {"bytes": 1, "kB": 1e3, "MB": 1e6}[size_text[2]]
    assert size == pytest.approx(len(content), rel=0.01)
    return content


@pytest.mark.slow
def test_a_trial_is_shared_in_every_form_and_comes_back(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "3")
    run(page)
    has_ended(page)
    page.get_by_role("button", name="Share", exact=True).click()
    text = "".join(answer(page).all_text_contents())
    assert b"default-src 'none'" in downloaded(page, "HTML page")
    assert downloaded(page, "CSV").startswith(b"part,position,id")
    assert downloaded(page, "Text").decode().startswith("prompt:\n")
    values = json.loads(downloaded(page, "JSON"))
    assert (values["format"], values["version"]) == ("logitbench-trial", 1)
    assert values["completion"]["text"].split() == text.split()
    assert page.get_by_text("All 2 branches").count() == 0


@pytest.mark.slow
def test_branches_are_shared_as_a_page_and_as_json_that_is_known_here(
    shipped: Server, open_page: OpenPage, browser: Browser, tmp_path: Path
) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "6")
    run(page)
    has_ended(page)
    answer(page).nth(2).click()
    page.get_by_role("button", name=re.compile("^Continue with")).first.click()
    expect(page.get_by_role("treeitem")).not_to_have_count(0)
    has_ended(page)
    page.get_by_role("button", name="Share", exact=True).click()
    page.get_by_text("All 2 branches").click()
    expect(page.get_by_role("button", name=re.compile("^CSV"))).to_have_count(0)
    files = {}
    for form, name in (("HTML page", "branches.html"), ("JSON", "branches.json"), ("Text", "branches.txt")):
        button = page.get_by_role("button", name=re.compile(f"^{form} · about "))
        with page.expect_download() as download:
            button.click()
        files[form] = tmp_path / name
        download.value.save_as(files[form])

    assert len(re.findall(r"^ *- ", files["Text"].read_text("utf-8"), re.MULTILINE)) >= 2
    trials = {trial["id"]: trial["parent"] for trial in json.loads(files["JSON"].read_bytes())["trials"]}
    assert len(trials) == 2 and len({*trials} & {*trials.values()}) == 1
    with browser.new_context(offline=True) as elsewhere:
        opened = elsewhere.new_page()
        opened.goto(files["HTML page"].as_uri())
        expect(opened.locator(".t.answer")).to_have_count(6)
        expect(opened.get_by_role("treeitem")).not_to_have_count(0)

    page.goto(f"{shipped.url}/history")
    page.get_by_role("button", name="Import", exact=True).click()
    page.locator("input[type=file]").set_input_files(files["JSON"])
    expect(page.get_by_text("trials of this workbench · 2 rows")).to_be_visible()
    page.locator(".st-key-history_take_in button").click()
    expect(page.get_by_text("2 were already present.")).to_be_visible()
