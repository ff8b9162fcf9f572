"""Worker of a pool whose model transformers runs, a folder or a GGUF file, over the same messages."""

import socket
from collections.abc import Callable
from dataclasses import replace

from engine.llama.library import start_backend
from engine.pool import messages as m
from engine.pool.worker import Opened, serve_pool
from engine.programs.folder_vocabulary import vocabulary_of
from engine.programs.transformers_context import TransformersContext


def main(end: socket.socket) -> None:
    """Load the model named in the first message, then serve."""
    serve_pool(end, _open)


def _open(load: m.LoadModel, on_progress: Callable[[float], None]) -> Opened:
    start_backend()
    model = vocabulary_of(load.model)
    context = TransformersContext(load.model, load.spec, model.num_vocab, load.threads, load.threads_batch)
    model.description = context.description
    on_progress(1.0)
    return Opened(model, context, replace(load.spec, threads=load.threads))
