"""Sentences a second beside SentenceTransformer.encode at its defaults, how near the vectors are, a worker's memory."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from engine import EmbeddingPool, EmbedSpec
from engine.embedding.models import find_model
from engine.results import Floats
from tests.speed.common import Row, at_least, at_most, interleaved, num_threads, ratio
from tests.speed.peers import ROOT

ROUNDS = 5
SHAPE = ""
SENTENCES_PER_ROUND = 2_000
"""Five rounds are 10,000 sentences."""

SPEED_GOALS = {"torch": 1.05, "torch-bf16": 1.6}
FASTEST_GOAL = 2.1
WORST_GOALS = {"torch": 0.9999, "torch-bf16": 0.995}
FASTEST_MEAN_GOAL = 0.985


class Likeness(NamedTuple):
    """Cosines between our vectors and the peer's, of all sentences."""

    worst: float
    mean: float

    def __str__(self) -> str:
        return f"worst {self.worst:.6f}, mean {self.mean:.6f}"


class Peer:
    """SentenceTransformer.encode in a process of its own, all parameters at their defaults."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        words = [sys.executable, "-m", "tests.speed.embedding", str(find_model("").path)]
        self.process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def encode(self, texts: list[str]) -> tuple[float, Floats]:
        """Seconds, and the vectors made to length 1."""
        (self._folder / "texts.json").write_text(json.dumps(texts))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(self._folder, file=self.process.stdin, flush=True)
        seconds = float(self.process.stdout.readline())
        vectors: Floats = np.load(self._folder / "vectors.npy")
        return seconds, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sentences(num: int, seed: int) -> list[str]:
    """Python's own manual in pieces of 3 to 400 words, most of them of 30 to 120."""
    words = " ".join(topics.values()).split()
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(4.1, 0.8, num), 3, 400).astype(int)
    starts = random.integers(0, len(words) - 400, num)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Each backend's speed over the peer's, its cosines, and what a further worker costs; `shape` is not used."""
    texts = [sentences(SENTENCES_PER_ROUND, seed) for seed in range(num_rounds)]
    vectors: dict[str, list[Floats]] = {name: [] for name in ("peer", *SPEED_GOALS)}
    with ExitStack() as stack:
        peer = Peer(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.callback(peer.process.wait)
        stack.callback(peer.process.terminate)
        peer.encode(texts[0][:64])
        pools = {name: stack.enter_context(_pool(name)) for name in SPEED_GOALS}

        def peer_rate() -> float:
            seconds, found = peer.encode(texts[len(vectors["peer"])])
            vectors["peer"].append(found)
            return SENTENCES_PER_ROUND / seconds

        def our_rate(name: str) -> float:
            given = texts[len(vectors[name])]
            began = perf_counter()
            vectors[name].append(pools[name].embed(given))
            return SENTENCES_PER_ROUND / (perf_counter() - began)

        found = interleaved(num_rounds, peer=peer_rate, **{name: partial(our_rate, name) for name in SPEED_GOALS})
    rows, ratios = [], {}
    for name, goal in SPEED_GOALS.items():
        ratios[name] = faster = ratio(found[name], found["peer"])
        near = _likeness(vectors[name], vectors["peer"])
        beside = f"{faster}; {np.median(found[name]):.1f} against {np.median(found['peer']):.1f} sentences/s"
        rows.append(at_least(f"embedding, {name}, against encode", faster.value, goal, beside))
        rows.append(at_least(f"worst cosine, {name}", near.worst, WORST_GOALS[name], str(near), ""))
    fastest = max(ratios, key=lambda name: ratios[name].value)
    near = _likeness(vectors[fastest], vectors["peer"])
    rows.append(at_least("embedding, fastest, against encode", ratios[fastest].value, FASTEST_GOAL, fastest))
    rows.append(at_least("mean cosine, fastest", near.mean, FASTEST_MEAN_GOAL, str(near), ""))
    return [*rows, _memory(texts[0])]


def _pool(backend: str) -> EmbeddingPool:
    """A worker for each core, after a first job that is not counted."""
    pool = EmbeddingPool(EmbedSpec(backend=backend, workers=num_threads()))
    pool.embed(sentences(64, 0))
    return pool


def _likeness(ours: list[Floats], theirs: list[Floats]) -> Likeness:
    cosines = (np.concatenate(ours) * np.concatenate(theirs)).sum(axis=1)
    return Likeness(float(cosines.min()), float(cosines.mean()))


def _memory(texts: list[str]) -> Row:
    """What a second worker adds to the memory of the pool, as a part of the weights' size."""

    def taken(workers: int) -> float:
        with EmbeddingPool(EmbedSpec(workers=workers, threads=1)) as pool:
            pool.embed(texts[: 128 * workers])
            return pool.measure().pss_bytes

    weights = (find_model("").path / "model.safetensors").stat().st_size
    one, two = taken(1), taken(2)
    beside = f"{(two - one) / 1e6:.0f} MB more than {one / 1e6:.0f} MB; the weights are {weights / 1e6:.0f} MB"
    return at_most("memory of a further worker over the weights", (two - one) / weights, 1.0, beside)


def _serve_peer(model: str) -> None:
    """Encode texts.json of each folder that is named on standard input."""
    from sentence_transformers import SentenceTransformer

    loaded: Any = SentenceTransformer(model, device="cpu")
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        texts = json.loads((folder / "texts.json").read_text())
        began = perf_counter()
        vectors = loaded.encode(texts)
        seconds = perf_counter() - began
        np.save(folder / "vectors.npy", vectors)
        print(seconds, flush=True)


if __name__ == "__main__":
    os.environ["TQDM_DISABLE"] = "1"
    _serve_peer(sys.argv[1])
