"""The composition root, imported as Streamlit's server does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
import app
from streamlit.runtime.scriptrunner.exec_code import modified_sys_path

before = list(sys.path)
with modified_sys_path(str(app.app._resolved_script_path)):
    assert sys.path == before, sys.path
assert sys.path == before
"""


@pytest.mark.slow
def test_runs_of_scripts_leave_the_module_path_as_it_is(tmp_path: Path) -> None:
    """Or another thread that searches it meanwhile skips an entry, and misses a package that is installed."""
    home = {**os.environ, "LOGITBENCH_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=home, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"LOGITBENCH_SHOWN_TOP_K": "0"}, "LOGITBENCH_SHOWN_TOP_K = '0': must be a whole number from 1 to 50"),
        ({"LOGITBENCH_HOEM": "x"}, "There is no setting LOGITBENCH_HOEM; did you mean LOGITBENCH_HOME?"),
        ({"LOGITBENCH_HOME": "what?"}, "DuckDB cannot use a path with ? in it"),
        ({"LOGITBENCH_HOME": "caf\u00e9", "LC_ALL": "C", "PYTHONUTF8": "0"}, "start it with PYTHONUTF8=1"),
    ],
)
def test_a_wrong_setting_ends_the_start_in_one_sentence(environment: dict[str, str], says: str) -> None:
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless=true", "--server.port=0"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, encoding="utf-8", timeout=120
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and says in done.stderr and done.stderr.count("\n") == 1, done.stderr
