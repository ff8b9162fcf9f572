"""Sentences a second of each backend beside SentenceTransformer.encode at its defaults, how near the vectors are, a
worker's memory."""

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
from engine.embedding.agreement import Agreement, agreement
from engine.embedding.backends import KINDS, usable
from engine.embedding.models import find_model
from engine.step_parts import Floats
from tests.minilm_gguf import write_minilm
from tests.speed.common import MODELS, Ratio, Row, at_least, at_most, interleaved, num_threads, ratio
from tests.speed.peers import ROOT

ROUNDS = 5
SHAPE = ""
SENTENCES_PER_ROUND = 2_000
"""Five rounds are 10,000 sentences."""

FOLDER_BACKENDS = tuple(kind.name for kind in KINDS if not kind.is_gguf)
GGUF_TYPES = ("F16", "Q8_0")
"""Of the same model, for llama.cpp; no registry has such files, so they are written on the first use. They take 512
tokens of a text and the folder 256: vectors of the longest sentences differ, and these take more time."""


class Goal(NamedTuple):
    """What the fastest backend should reach of those that are near enough to the peer's vectors."""

    speed: float
    worst_cosine: float
    mean_cosine: float

    def __str__(self) -> str:
        near = f"every cosine >= {self.worst_cosine}" if self.worst_cosine > 0 else f"mean cosine >= {self.mean_cosine}"
        return f"embedding, {near}"


GOALS = (Goal(1.05, 0.9999, 0.9999), Goal(1.6, 0.995, 0.995), Goal(2.1, 0, 0.985))


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
    """Each backend's speed over the peer's and its cosines, and what a further worker costs; `shape` is not used."""
    texts = [sentences(SENTENCES_PER_ROUND, seed) for seed in range(num_rounds)]
    with ExitStack() as stack:
        peer = Peer(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.callback(peer.process.wait)
        stack.callback(peer.process.terminate)
        peer.encode(texts[0][:64])
        pools = {name: stack.enter_context(_pool(spec)) for name, spec in _specs().items()}
        vectors: dict[str, list[Floats]] = {name: [] for name in ("peer", *pools)}

        def peer_rate() -> float:
            seconds, found = peer.encode(texts[len(vectors["peer"])])
            vectors["peer"].append(found)
            return SENTENCES_PER_ROUND / seconds

        def our_rate(name: str) -> float:
            given = texts[len(vectors[name])]
            began = perf_counter()
            vectors[name].append(pools[name].embed(given))
            return SENTENCES_PER_ROUND / (perf_counter() - began)

        rates = interleaved(num_rounds, peer=peer_rate, **{name: partial(our_rate, name) for name in pools})
    theirs = np.concatenate(vectors["peer"])
    found = {
        name: (ratio(rates[name], rates["peer"]), agreement(np.concatenate(vectors[name]), theirs)) for name in pools
    }
    rows = [_reached(goal, found) for goal in GOALS]
    for name, (faster, near) in found.items():
        speeds = f"{np.median(rates[name]):.1f} against {np.median(rates['peer']):.1f} sentences/s"
        rows.append(
            Row(f"embedding, {name}, against encode", faster.value, beside=f"{faster}; {speeds}; {_near(near)}")
        )
    return [*rows, _memory(texts[0])]


def _specs() -> dict[str, EmbedSpec]:
    """Every backend that is installed, with a worker for each core."""
    can = usable(find_model(""))
    specs = {name: EmbedSpec(backend=name, workers=num_threads()) for name in FOLDER_BACKENDS if name in can}
    for kind in GGUF_TYPES:
        path = MODELS / f"all-MiniLM-L6-v2-{kind}.gguf"
        if not path.is_file():
            MODELS.mkdir(parents=True, exist_ok=True)
            write_minilm(path, kind)
        specs[f"llama {kind}"] = EmbedSpec(model=str(path), workers=num_threads())
    return specs


def _pool(spec: EmbedSpec) -> EmbeddingPool:
    """The workers after a first job that is not counted."""
    pool = EmbeddingPool(spec)
    pool.embed(sentences(64, 0))
    return pool


def _reached(goal: Goal, found: dict[str, tuple[Ratio, Agreement]]) -> Row:
    """The fastest of those near enough."""
    near = {
        name: faster
        for name, (faster, like) in found.items()
        if like.worst_cosine >= goal.worst_cosine and like.mean_cosine >= goal.mean_cosine
    }
    name = max(near, key=lambda name: near[name].value)
    return at_least(str(goal), near[name].value, goal.speed, f"{name}: {near[name]}; {_near(found[name][1])}")


def _near(found: Agreement) -> str:
    worst, mean, ranks = found
    return f"cosine worst {worst:.5f}, mean {mean:.5f}, ranks {ranks:.4f}"


def _memory(texts: list[str]) -> Row:
    """What a second worker adds to the memory of the pool, as a part of the weights' size."""

    def taken(workers: int) -> float:
        with EmbeddingPool(EmbedSpec(backend="torch", workers=workers, threads=1)) as pool:
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
