"""Child program of a ScoringModel whose model transformers runs; see engine.llama.scoring_program."""

import socket

from engine.llama.context import Decoder
from engine.llama.library import start_backend
from engine.llama.model import Model
from engine.llama.scoring import LoadScoring
from engine.llama.scoring_program import serve_scoring
from engine.programs.folder_vocabulary import vocabulary_of
from engine.programs.transformers_context import TransformersContext


def main(end: socket.socket) -> None:
    """Load the model that the first request names, then score batches of its one text."""
    serve_scoring(end, _open)


def _open(load: LoadScoring) -> tuple[Model, Decoder]:
    start_backend()
    model = vocabulary_of(load.model)
    threads_batch = load.spec.threads_batch or load.threads
    return model, TransformersContext(load.model, load.spec, model.num_vocab, load.threads, threads_batch)
