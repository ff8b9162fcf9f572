"""Request routing: sends a prompt to the worker that has most of it cached, else to the one with the fewest jobs.

Compares bytes, not ids: the pool knows the text of a prompt before any worker has tokenised it.
"""

from collections.abc import Sequence

from engine.llama.prefix import WORTHWHILE
from engine.pool.worker_process import WorkerProcess
from engine.vocabulary import Vocabulary


def best_worker(
    workers: Sequence[WorkerProcess], prompt: str | list[int], vocabulary: Vocabulary, parallel: int
) -> WorkerProcess:
    """Return the worker to run `prompt` on; a shared prefix counts from 32 tokens, and only if a sequence is free."""
    if len(workers) == 1:
        return workers[0]
    text = _bytes(prompt, vocabulary)

    def merit(worker: WorkerProcess) -> tuple[float, int]:
        shared = _shared_tokens(worker, text) if len(worker.jobs) < parallel else 0.0
        return (shared if shared >= WORTHWHILE else 0.0, -len(worker.jobs))

    return max(workers, key=merit)


def _bytes(prompt: str | list[int], vocabulary: Vocabulary) -> bytes:
    """Return the text of a prompt; empty if an id is outside the vocabulary, which the worker will report."""
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    return vocabulary.join(prompt) if max(prompt, default=0) < len(vocabulary) else b""


def remember(worker: WorkerProcess, job_id: str, text: bytes, num_tokens: int, parallel: int) -> None:
    """Note that the worker's cache holds `text`, `num_tokens` long; as many notes are stored as it has sequences."""
    worker.texts[job_id] = (text, num_tokens)
    worker.texts.move_to_end(job_id)
    while len(worker.texts) > parallel:
        worker.texts.popitem(last=False)


def _shared_tokens(worker: WorkerProcess, text: bytes) -> float:
    """Estimate the tokens of the longest prefix that `text` shares with a noted text, from the shared bytes and that
    text's bytes per token."""
    longest = 0.0
    for held, num_tokens in worker.texts.values():
        shared = shared_bytes(held.removeprefix(b" "), text.removeprefix(b" "))
        longest = max(longest, shared * num_tokens / max(len(held), 1))
    return longest


def shared_bytes(left: bytes, right: bytes) -> int:
    """Return the length in bytes of two texts' common prefix, by binary search."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
