"""`python -m engine embed --cluster`: a corpus of Parquet files embedded on the nodes of a cluster."""

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

from engine.cluster.cluster import EXTRA, check_reachable
from engine.commands.printing import print_json, print_text
from engine.commands.watched import watch
from engine.embedding.backends import check_usable
from engine.embedding.choice import chosen_backend
from engine.embedding.models import find_model
from engine.embedding.specs import AUTO, EmbedSpec
from engine.errors import ConfigError
from engine.exchange.text_files import TEXT_NAMES
from engine.over_nodes.corpus import (
    CorpusPart,
    CorpusSettings,
    EmbedParts,
    begin,
    corpus_files,
    end,
    missing,
    parts_of,
    versions_of,
)
from engine.private_files import persons_umask
from engine.process.program import Program
from engine.tasks import Progress, Task
from engine.units import counted

LISTED_EVERY = 20
"""Pause before the folder is listed again, in times that the last listing took: many files take seconds."""


def embed_corpus(given: argparse.Namespace) -> None:
    """Embed what is not embedded yet. Raises EngineError; after Ctrl+C the parts that are done stay."""
    if given.out is None or given.out.suffix == ".npy":
        raise ConfigError("--out: with --cluster it must name the folder of the vectors, which every node sees")
    if given.workers != 1:
        raise ConfigError("--workers: with --cluster each node has one")
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(EXTRA)
    check_reachable(given.cluster)  # before the folder is begun, and as Ray itself would wait for minutes
    out = given.out.resolve()
    spec = EmbedSpec(model=given.model, backend=given.backend, is_query=given.query)
    if spec.engine:
        raise ConfigError(f"--backend {given.backend}: nodes embed by themselves; leave --cluster out")
    if out.is_relative_to(Path(given.file).resolve()):
        raise ConfigError(f"--out {out}: lies in the folder of the corpus; give another one")
    files, column = corpus_files(Path(given.file)), given.column or TEXT_NAMES[0]
    parts, settings = parts_of(files, column), _settings(spec, files, column)
    with persons_umask():  # nodes may run as another user
        lock = begin(out, settings, is_mixed=given.mixed)
    with lock:
        left = missing(out, parts)
        if left:
            watch(_Embedding(EmbedParts(given.cluster, str(out), settings, left, given.mixed), parts))
        end(out, parts)
    _tell(out, parts, len(parts) - len(left), is_json=given.json)


def _settings(spec: EmbedSpec, files: list[Path], column: str) -> CorpusSettings:
    model = find_model(spec.model)
    backend = chosen_backend(model) if spec.backend == AUTO else spec.backend
    check_usable(backend, model)
    stats = {str(path): path.stat() for path in files}
    known = {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
    hashed, found = model.content_hash(), versions_of(backend)
    return CorpusSettings(spec.model, hashed, backend, spec.is_query, column, known, found)


class _Embedding(Task[int]):
    """Task that has the program embed the parts, and sees its progress by the files that are there."""

    def __init__(
        self, order: EmbedParts, parts: list[CorpusPart], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("The embedding of the corpus", lambda _task: self._embedded(), clock=clock)
        self._order, self._parts = order, parts
        self._num_rows = sum(part.num_rows for part in parts) or 1
        self._seen, self._again_at = Progress(), clock()

    def _embedded(self) -> int:
        program = Program("engine.over_nodes.corpus_program", does="embeds a corpus on the cluster", answers=int)
        self.on_stop(program.stop)
        self.follow(self._progress)
        try:
            num_texts: int = program.ask(self._order)
            return num_texts
        finally:
            program.close()
            self.check()

    def _progress(self) -> Progress:
        if (began := self._clock()) >= self._again_at:
            self._seen = self._listed()
            self._again_at = began + LISTED_EVERY * (self._clock() - began)
        return self._seen

    def _listed(self) -> Progress:
        left = missing(Path(self._order.out), self._parts)
        share = 1 - sum(part.num_rows for part in left) / self._num_rows
        return Progress(share, f"{len(self._parts) - len(left):,} of {counted(len(self._parts), 'row group')}")


def _tell(out: Path, parts: list[CorpusPart], num_before: int, *, is_json: bool) -> None:
    num_rows = sum(part.num_rows for part in parts)
    if is_json:
        print_json({"out": str(out), "num_parts": len(parts), "num_before": num_before, "num_rows": num_rows})
        return
    before = f", {num_before:,} of them before" if num_before else ""
    print_text(f"{counted(num_rows, 'row')} in {counted(len(parts), 'row group')}{before}: vectors in {out}")
