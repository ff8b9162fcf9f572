"""The composition root, imported as Streamlit's server does."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_runs_of_scripts_leave_the_module_path_as_it_is(tmp_path: Path) -> None:
    """Or another thread that searches it meanwhile skips an entry, and misses a package that is installed."""
    home = {**os.environ, "LOGITBENCH_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=home, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
