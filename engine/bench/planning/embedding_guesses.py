"""First guesses for embedding on a typical machine: memory, seconds of a sample, seconds of loading."""

import math

from engine.bench.planning.plan import EmbeddingCell
from engine.embedding.models import EmbeddingModel
from engine.embedding.specs import EmbedSpec

TOKENS_PER_WORD = 1.5

# Memory of a program with PyTorch or another library, of a worker besides the shared weights, and of the activations of
# a token in a layer of 4 x 384 numbers with attention over its neighbours, all as measured with MiniLM.
_TORCH_BYTES, _OTHER_BYTES = 350_000_000, 60_000_000
_MAY_BE_TORCH = ("torch", "auto")
_WORKER_BYTES = 60_000_000
_BYTES_PER_TOKEN = 40_000
_LOAD_S = 6.0
_PART_S = 0.05
_BYTES_PER_PARAMETER = 4
_OPERATIONS_PER_S_OF_CORE = 100e9


def weights_bytes(model: EmbeddingModel) -> int:
    """Return the bytes of the files that hold a model's weights; for a folder, those of safetensors."""
    files = [model.path] if model.path.is_file() else list(model.path.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files)


def guessed_bytes(spec: EmbedSpec, model: EmbeddingModel) -> int:
    """Return the memory of the program and its workers, which share the weights, in float32 as their largest form."""
    each = _WORKER_BYTES + _BYTES_PER_TOKEN * spec.resolved_tokens_per_batch
    program = _TORCH_BYTES if spec.backend.startswith(_MAY_BE_TORCH) and not model.is_gguf else _OTHER_BYTES
    return program + weights_bytes(model) + spec.workers * each


def guessed_embedding_s(cell: EmbeddingCell, model: EmbeddingModel, cores: int, at_least_s: float) -> float:
    """Return the seconds of one sample: its texts once, and again until it lasts `at_least_s`.

    Counts two operations for each weight and token.
    """
    asked = cell.workload
    words = asked.num_words
    if asked.texts:
        words = math.ceil(sum(len(text.split()) for text in asked.texts) / len(asked.texts))
    operations = 2 * weights_bytes(model) / _BYTES_PER_PARAMETER * words * TOKENS_PER_WORD * asked.num_texts
    used = min(cell.spec.workers * cell.spec.resolved_threads, cores)
    once_s = max(operations / (_OPERATIONS_PER_S_OF_CORE * used), 1e-3)
    return math.ceil(at_least_s / once_s) * once_s


def guessed_embedding_load_s(spec: EmbedSpec) -> float:
    """Return the seconds until the workers are ready: mostly for the libraries, which are imported once."""
    return _LOAD_S + spec.workers * _PART_S
