"""What a person waits for on the way to a model: the list of many files, the header of one, a file made to mislead."""

import json
import shutil
import struct
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.errors import ModelError
from engine.models import read_model
from tests.engine.models.headers import KEYS, TEXT, array, gguf, key, tensor, text, write
from tests.speed.common import MODELS, Row, at_most, model, output_of

ROUNDS = 5
SHAPE = "qwen2.5-0.5b"
LISTED = "llama-1.1b-32k"
NUM_FILES, EVERY = 500, 10
LIST_S, READ_MS, READ_MB, REFUSAL_S = 2.0, 80, 20, 1.0
F64 = 12

READ = """
import json, os, sys, time, tracemalloc
from pathlib import Path
from engine.models import ModelFile, Place, read_library, read_model

path, os.environ["LOGITBENCH_HOME"], what = Path(sys.argv[1]), *sys.argv[2:]
if what == "memory":
    tracemalloc.start()
began = time.perf_counter()
if path.is_dir():
    found = sum(isinstance(entry.file, ModelFile) for entry in read_library([Place("Here", path)]))
else:
    found = read_model(path).n_vocab
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "found": found, "bytes": tracemalloc.get_traced_memory()[1]}))
"""


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """The slowest of the rounds. Each is a process of its own, so that nothing is remembered but what lies on disk."""
    with TemporaryDirectory(dir=MODELS) as folder:
        return [
            *_one_header(model(shape), Path(folder), num_rounds),
            *_many_files(Path(model(LISTED)), Path(model(shape)), Path(folder), num_rounds),
            _refusals(Path(folder)),
        ]


def _one_header(path: str, home: Path, num_rounds: int) -> list[Row]:
    found = [_read(path, home) for _ in range(num_rounds)]
    memory = _read(path, home, "memory")["bytes"]
    beside = f"{found[0]['found']:,} tokens"
    slowest = 1e3 * max(one["seconds"] for one in found)
    return [
        at_most("a header not read before", slowest, READ_MS, beside, "ms"),
        at_most("memory that reading it takes", memory / 1e6, READ_MB, beside, "MB"),
    ]


def _many_files(usual: Path, large: Path, folder: Path, num_rounds: int) -> list[Row]:
    """A first opening, that reads every header, and one that finds them kept; the files are holes after the header."""
    listed = folder / "models"
    listed.mkdir()
    for number in range(NUM_FILES):
        _hollow_copy(usual if number % EVERY else large, listed / f"{number}.gguf")
    first, again = [], []
    for number in range(num_rounds):
        home = folder / f"home-{number}"
        first.append(_read(listed, home))
        again.append(_read(listed, home))
    if any(one["found"] != NUM_FILES for one in (*first, *again)):
        raise SystemExit("Not every file of the library was read as a model.")
    shutil.rmtree(listed)
    beside = f"{NUM_FILES} files, nine of ten with 32,000 tokens, one with 151,936"
    return [
        at_most("a library opened for the first time", max(one["seconds"] for one in first), LIST_S, beside, "s"),
        at_most("the same opened again", max(one["seconds"] for one in again), LIST_S, beside, "s"),
    ]


def _hollow_copy(source: Path, target: Path) -> None:
    with source.open("rb") as file:
        target.write_bytes(file.read(read_model(source).tensors[0].offset))
    with target.open("r+b") as file:
        file.truncate(source.stat().st_size)


def _refusals(folder: Path) -> Row:
    """Files that claim as much as is read before they are refused."""
    numbers = [array(f"k{number}", F64, 1024, bytes(8 << 10)) for number in range(250)]
    texts = [key(f"t{number}", TEXT, text("x" * 4096)) for number in range(900)]
    strings = array("s", TEXT, (1 << 21) - 3, bytes((8 << 21) - 24))
    tensors = [tensor(f"{number}".ljust(63, "x"), (0, 1, 1, 1), 0, 0) for number in range((1 << 15) - 1)]
    last = tensor("last", (1 << 40,), 0, 0)
    greedy = {
        "everything up to its bound": gguf([*KEYS, *numbers, *texts, strings], [*tensors, last]),
        "strings": gguf([*KEYS, array("s", TEXT, (1 << 63) - 1, bytes(8 << 21))]),
        "one long text": gguf([*KEYS, key("t", TEXT, struct.pack("<Q", 1 << 62))]),
        "keys": gguf(num_keys=(1 << 64) - 1),
        "tensors": gguf(num_tensors=(1 << 64) - 1),
    }
    taken = {}
    for name, content in greedy.items():
        path = write(folder, content)
        began = time.perf_counter()
        try:
            read_model(path)
        except ModelError:
            taken[name] = time.perf_counter() - began
    if taken.keys() != greedy.keys():
        raise SystemExit("A file made to mislead was taken for a model.")
    slowest = max(taken, key=taken.__getitem__)
    return at_most("the slowest refusal", taken[slowest], REFUSAL_S, f"of {len(taken)} files: {slowest}", "s")


def _read(path: str | Path, home: Path, what: str = "time") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output_of([sys.executable, "-c", READ, path, home, what]))
    return found
