"""Models of one name: lists and the search say what tells them apart."""

import shutil
from pathlib import Path

import pytest

from engine.models import embedded_model
from engine.workbench import Workbench
from pages.parts.models.alike import distinguishing_ends
from pages.parts.palette import entries
from tests.pages.app import open_page


@pytest.mark.parametrize(
    ("paths", "ends"),
    [
        ([], []),
        (["/a/x.gguf"], [""]),
        (["/a/x.gguf", "/a/y.gguf"], ["x.gguf", "y.gguf"]),
        (["/a/x.gguf", "/b/x.gguf", "/b/y.gguf"], ["a/x.gguf", "b/x.gguf", "b/y.gguf"]),
        (["/a/b/x.gguf", "/c/b/x.gguf"], ["a/b/x.gguf", "c/b/x.gguf"]),
        (["/b/x.gguf", "/a/b/x.gguf"], ["/b/x.gguf", "a/b/x.gguf"]),
    ],
)
def test_what_is_shown_alike_is_told_apart_by_file_and_folder(paths: list[str], ends: list[str]) -> None:
    assert list(distinguishing_ends(dict.fromkeys(paths, "Story")).values()) == ends


def test_models_that_differ_in_what_is_shown_need_no_path() -> None:
    assert distinguishing_ends({"/a/x.gguf": "Story, Q8_0", "/a/y.gguf": "Story, Q4_0"}) == {
        "/a/x.gguf": "",
        "/a/y.gguf": "",
    }


def test_the_library_and_the_search_tell_copies_apart(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        shutil.copy(embedded_model(), tmp_path / folder / "tale.gguf")
    monkeypatch.setenv("LOGITBENCH_MODELS", str(tmp_path))
    copies = {"one/tale.gguf", "two/tale.gguf"}
    (names,) = [one.value["name"] for one in open_page("models.py", "Models").main.dataframe if "name" in one.value]
    assert copies <= {name.rpartition(" · ")[2] for name in names}
    found = [entry for entry in entries.entries(bench, "story") if entry.kind == "Model"]
    assert copies <= {entry.detail.rpartition(" · ")[2] for entry in found}
    assert len({entry.detail for entry in found}) == len(found)
