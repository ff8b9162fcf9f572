"""Head of the page: the files that it fetches early are Streamlit's own, and another Streamlit is no trouble."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages.parts import first_paint


@pytest.fixture(autouse=True)
def made_anew() -> Iterator[None]:
    first_paint.head.cache_clear()
    yield
    first_paint.head.cache_clear()


def test_what_is_fetched_early_exists_and_is_small() -> None:
    names = re.findall(r'<link rel="(\w+)" href="/([^"]+)"', first_paint.head().decode())
    scripts = [name for kind, name in names if kind == "modulepreload"]
    assert len(scripts) > 20 and all((first_paint.STATIC / name).is_file() for _, name in names)
    assert max((first_paint.STATIC / name).stat().st_size for name in scripts) <= first_paint.LARGEST
    assert any("NumberInput" in name for name in scripts) and not any("PlotlyChart" in name for name in scripts)
    assert [kind for kind, name in names if "MaterialSymbols" in name] == ["preload"]


@pytest.mark.parametrize(
    "manifest", [None, "[]", "{", '{"../components/widgets/a": {}}', '{"/components/elements/a": {"file": "no"}}']
)
def test_another_streamlit_is_no_trouble(manifest: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_paint, "STATIC", tmp_path)
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    head = first_paint.head().decode()
    assert "<link" not in head and "</style><script>" in head
