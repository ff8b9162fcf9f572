"""Names of files that a person, a plan or the environment gives: no such name is a defect, whatever is in it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine import Pool
from engine.bench.planning.candidates import planned_cells
from engine.bench.planning.presets import preset
from engine.bench.planning.quantisations import quantisations_plan
from engine.cost import count_folder
from engine.embedding import models as embedding
from engine.errors import ConfigError, EngineError
from engine.files import expanded_path, named_path
from engine.models import library, read_model
from engine.models.places import find_places
from engine.settings import Settings

NAMES = st.one_of(
    st.text(max_size=40),
    st.builds("{}{}".format, st.sampled_from(["~", "~nobody-here/", "/", "../", "\0", "a/"]), st.text(max_size=300)),
)
HOSTILE = ("a\0b.gguf", "~no-such-user/model.gguf", "x" * 5000, "/dev/null/model.gguf", "\ud800", "~", "~\0")
USES: dict[str, Callable[[str], object]] = {
    "open a pool": Pool,
    "open a profile": Pool.from_profile,
    "plan a benchmark": lambda name: planned_cells(preset("quick", name)),
    "plan an embedding": lambda name: planned_cells(preset("embedding", name)),
    "compare quantisations": lambda name: quantisations_plan([name, "other.gguf"]),
    "open an embedding model": embedding.find_model,
    "find a model": library.find_model,
    "look at a model": lambda name: read_model(expanded_path(name)),
    "count documents": lambda name: count_folder(f"{name}/no-such-folder", len),
    "choose a home": lambda name: Settings.from_environment({"LOGITBENCH_HOME": name}),
    "choose folders of models": lambda name: Settings.from_environment({"LOGITBENCH_MODELS": name}),
}


def test_names_that_cannot_be_paths_are_refused() -> None:
    for name in (*HOSTILE[:2], HOSTILE[6]):
        with pytest.raises(ConfigError, match="is not a valid path"):
            named_path(name)


@pytest.mark.parametrize("use", USES)
@given(name=NAMES)
@example(name=HOSTILE[0])
@example(name=HOSTILE[1])
@example(name=HOSTILE[2])
@example(name=HOSTILE[3])
@example(name=HOSTILE[4])
@example(name=HOSTILE[5])
@example(name=HOSTILE[6])
@settings(max_examples=60, deadline=None)
def test_any_name_is_taken_or_refused_in_words(use: str, name: str) -> None:
    try:
        USES[use](name)
    except EngineError as error:
        assert str(error)


@pytest.mark.parametrize("name", HOSTILE[:2])
def test_a_folder_of_the_environment_that_cannot_be_is_passed_over(name: str) -> None:
    settings = Settings.from_environment()
    expected = [place.folder for place in find_places(settings, {})]
    found = [place.folder for place in find_places(settings, {"HF_HOME": name, "OLLAMA_MODELS": name})]
    assert found == expected


def test_the_home_of_a_user_is_expanded_in_one_place() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("engine/**/*.py"), *root.glob("pages/**/*.py"), root / "app.py"]
    found = {path.relative_to(root).as_posix() for path in files if "expanduser" in path.read_text("utf-8")}
    assert found == {"engine/files.py"}
