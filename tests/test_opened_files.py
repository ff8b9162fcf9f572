"""Files are opened in one way: a path may be a pipe or a device by the time it is read, which would never end."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
READS = {"read_bytes", "read_text"}
SYSTEM = {
    "engine/files.py": "opens them for all others",
    "engine/llama/build_info.py": "a library of llama.cpp",
    "engine/llama/library.py": "/proc",
    "engine/models/repacking.py": "/proc and a library of llama.cpp",
    "engine/process/child.py": "/proc",
    "engine/models/catalogue.py": "shipped",
    "engine/embedding/sentences.py": "shipped",
    "engine/exchange/text_files.py": "shipped",
    "engine/models/header.py": "looks at the kind of the file itself, for its message",
    "engine/bench/baselines/llama_bench_program.py": "the build folder of llama-bench",
    "engine/commands/arguments.py": "named in a shell, where a pipe is meant",
    "engine/commands/embed.py": "named in a shell, where a pipe is meant",
    "engine/exchange/prompt_files.py": "named in a shell, where a pipe is meant; read line by line",
    "engine/history/console_copy.py": "the database, which DuckDB has open",
    "engine/history/reading.py": "a copy in its own scratch folder",
    "engine/history/archives/staging.py": "a table in its own scratch folder",
    "engine/models/quantise.py": "the partial file that is locked",
}
"""Modules that read files in another way, each with what it reads."""


def test_a_file_is_read_by_the_functions_that_refuse_pipes_and_devices() -> None:
    found = {
        name
        for path in sorted(ROOT.glob("engine/**/*.py"))
        if not (name := path.relative_to(ROOT).as_posix()).startswith("engine/machine/") and _reads(path)
    }
    assert found - SYSTEM.keys() == set(), "use read_regular or open_regular of engine.files"
    assert SYSTEM.keys() - found - {"engine/files.py"} == set(), "these read no files any more"


def _reads(path: Path) -> bool:
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    return any(_is_read(call) for call in calls)


def _is_read(call: ast.Call) -> bool:
    """Return whether a call opens a file by its path for reading."""
    modes = [given.value for given in call.args if isinstance(given, ast.Constant) and isinstance(given.value, str)]
    if isinstance(call.func, ast.Name):
        return call.func.id == "open" and not any(mode in ("wb", "xb", "ab", "w", "a") for mode in modes)
    if not isinstance(call.func, ast.Attribute):
        return False
    is_path = call.func.attr == "open" and any(mode in ("r", "rb", "r+b") for mode in modes)
    return is_path or call.func.attr in READS
